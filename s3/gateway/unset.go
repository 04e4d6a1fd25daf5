package gateway

import (
	"cmp"
	"context"
	"net/http"

	"github.com/millrace/millrace/s3/wire"
)

// unset is how S3 answers for a configuration of a bucket that was never set: with a document or
// an error. Operations that need such a configuration are answered the same way.
type unset struct {
	root, element, text string
	code                wire.Code
	message             string
	status              int // of code; 0: 404
}

var unsetConfigurations = map[wire.Op]unset{
	wire.GetBucketVersioning:                {root: "VersioningConfiguration"},
	wire.GetBucketLogging:                   {root: "BucketLoggingStatus"},
	wire.GetBucketNotificationConfiguration: {root: "NotificationConfiguration"},
	wire.GetBucketAccelerateConfiguration:   {root: "AccelerateConfiguration"},
	wire.GetBucketRequestPayment: {
		root: "RequestPaymentConfiguration", element: "Payer", text: "BucketOwner",
	},
	wire.GetBucketPolicy:       {code: "NoSuchBucketPolicy", message: "The bucket policy does not exist"},
	wire.GetBucketPolicyStatus: {root: "PolicyStatus", element: "IsPublic", text: "false"},
	wire.GetBucketLifecycleConfiguration: {
		code: "NoSuchLifecycleConfiguration", message: "The lifecycle configuration does not exist",
	},
	wire.GetBucketCors: {code: "NoSuchCORSConfiguration", message: "The CORS configuration does not exist"},
	wire.GetBucketEncryption: {
		code:    "ServerSideEncryptionConfigurationNotFoundError",
		message: "The server side encryption configuration was not found",
	},
	wire.GetBucketWebsite: {
		code: "NoSuchWebsiteConfiguration", message: "The specified bucket does not have a website configuration",
	},
	wire.GetBucketReplication: {
		code: "ReplicationConfigurationNotFoundError", message: "The replication configuration was not found",
	},
	wire.GetBucketOwnershipControls: {
		code: "OwnershipControlsNotFoundError", message: "The bucket ownership controls were not found",
	},
	wire.GetPublicAccessBlock: {
		code: "NoSuchPublicAccessBlockConfiguration", message: "The public access block configuration was not found",
	},
	wire.GetObjectLockConfiguration: {
		code: "ObjectLockConfigurationNotFoundError", message: "Object Lock configuration does not exist for this bucket",
	},
	wire.PutObjectLockConfiguration: {
		code: "InvalidBucketState", status: http.StatusConflict,
		message: "Object Lock configuration cannot be enabled on existing buckets",
	},
	wire.GetObjectRetention: {code: wire.InvalidRequest, status: http.StatusBadRequest, message: noObjectLock},
	wire.PutObjectRetention: {code: wire.InvalidRequest, status: http.StatusBadRequest, message: noObjectLock},
	wire.GetObjectLegalHold: {code: wire.InvalidRequest, status: http.StatusBadRequest, message: noObjectLock},
	wire.PutObjectLegalHold: {code: wire.InvalidRequest, status: http.StatusBadRequest, message: noObjectLock},
}

// noObjectLock is S3's message for a bucket that was made without object lock, as all are.
const noObjectLock = "Bucket is missing Object Lock Configuration"

// answerUnset answers for a configuration that can't be set yet, and so is not set.
func (g *Gateway) answerUnset(ctx context.Context, _ Principal, r *request) (*response, error) {
	if _, err := g.store.Bucket(ctx, r.Bucket); err != nil {
		return nil, err
	}
	u := unsetConfigurations[r.Op]
	if u.code != "" {
		return nil, &wire.Error{Code: u.code, Message: u.message, Status: cmp.Or(u.status, http.StatusNotFound)}
	}
	x := wire.NewXML(u.root)
	if u.element != "" {
		x.Text(u.element, u.text)
	}
	x.Close(u.root)
	return document(x.Bytes()), nil
}
