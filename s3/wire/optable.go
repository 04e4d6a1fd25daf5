package wire

// scope is what the path of a request names.
type scope uint8

const (
	ofService scope = iota
	ofBucket
	ofObject
)

// resource is what selects an operation: the method, the scope and the sub-resource in the query.
type resource struct {
	scope       scope
	method, sub string
}

var operations = map[resource]Op{
	{ofService, "GET", ""}:                        ListBuckets,
	{ofBucket, "GET", ""}:                         ListObjects,
	{ofBucket, "GET", "list-type"}:                ListObjectsV2,
	{ofBucket, "GET", "versions"}:                 ListObjectVersions,
	{ofBucket, "GET", "uploads"}:                  ListMultipartUploads,
	{ofBucket, "GET", "location"}:                 GetBucketLocation,
	{ofBucket, "GET", "acl"}:                      GetBucketAcl,
	{ofBucket, "GET", "policy"}:                   GetBucketPolicy,
	{ofBucket, "GET", "policyStatus"}:             GetBucketPolicyStatus,
	{ofBucket, "GET", "versioning"}:               GetBucketVersioning,
	{ofBucket, "GET", "tagging"}:                  GetBucketTagging,
	{ofBucket, "GET", "lifecycle"}:                GetBucketLifecycleConfiguration,
	{ofBucket, "GET", "cors"}:                     GetBucketCors,
	{ofBucket, "GET", "encryption"}:               GetBucketEncryption,
	{ofBucket, "GET", "website"}:                  GetBucketWebsite,
	{ofBucket, "GET", "logging"}:                  GetBucketLogging,
	{ofBucket, "GET", "notification"}:             GetBucketNotificationConfiguration,
	{ofBucket, "GET", "replication"}:              GetBucketReplication,
	{ofBucket, "GET", "requestPayment"}:           GetBucketRequestPayment,
	{ofBucket, "GET", "accelerate"}:               GetBucketAccelerateConfiguration,
	{ofBucket, "GET", "ownershipControls"}:        GetBucketOwnershipControls,
	{ofBucket, "GET", "publicAccessBlock"}:        GetPublicAccessBlock,
	{ofBucket, "GET", "object-lock"}:              GetObjectLockConfiguration,
	{ofBucket, "GET", "analytics"}:                GetBucketAnalyticsConfiguration,
	{ofBucket, "GET", "inventory"}:                GetBucketInventoryConfiguration,
	{ofBucket, "GET", "metrics"}:                  GetBucketMetricsConfiguration,
	{ofBucket, "GET", "intelligent-tiering"}:      GetBucketIntelligentTieringConfiguration,
	{ofBucket, "GET", "metadataConfiguration"}:    GetBucketMetadataConfiguration,
	{ofBucket, "GET", "metadataTable"}:            GetBucketMetadataTableConfiguration,
	{ofBucket, "GET", "session"}:                  CreateSession,
	{ofBucket, "GET", "abac"}:                     GetBucketAbac,
	{ofBucket, "PUT", ""}:                         CreateBucket,
	{ofBucket, "PUT", "acl"}:                      PutBucketAcl,
	{ofBucket, "PUT", "policy"}:                   PutBucketPolicy,
	{ofBucket, "PUT", "versioning"}:               PutBucketVersioning,
	{ofBucket, "PUT", "tagging"}:                  PutBucketTagging,
	{ofBucket, "PUT", "lifecycle"}:                PutBucketLifecycleConfiguration,
	{ofBucket, "PUT", "cors"}:                     PutBucketCors,
	{ofBucket, "PUT", "encryption"}:               PutBucketEncryption,
	{ofBucket, "PUT", "website"}:                  PutBucketWebsite,
	{ofBucket, "PUT", "logging"}:                  PutBucketLogging,
	{ofBucket, "PUT", "notification"}:             PutBucketNotificationConfiguration,
	{ofBucket, "PUT", "replication"}:              PutBucketReplication,
	{ofBucket, "PUT", "requestPayment"}:           PutBucketRequestPayment,
	{ofBucket, "PUT", "accelerate"}:               PutBucketAccelerateConfiguration,
	{ofBucket, "PUT", "ownershipControls"}:        PutBucketOwnershipControls,
	{ofBucket, "PUT", "publicAccessBlock"}:        PutPublicAccessBlock,
	{ofBucket, "PUT", "object-lock"}:              PutObjectLockConfiguration,
	{ofBucket, "PUT", "analytics"}:                PutBucketAnalyticsConfiguration,
	{ofBucket, "PUT", "inventory"}:                PutBucketInventoryConfiguration,
	{ofBucket, "PUT", "metrics"}:                  PutBucketMetricsConfiguration,
	{ofBucket, "PUT", "intelligent-tiering"}:      PutBucketIntelligentTieringConfiguration,
	{ofBucket, "PUT", "metadataInventoryTable"}:   UpdateBucketMetadataInventoryTableConfiguration,
	{ofBucket, "PUT", "metadataJournalTable"}:     UpdateBucketMetadataJournalTableConfiguration,
	{ofBucket, "PUT", "abac"}:                     PutBucketAbac,
	{ofBucket, "DELETE", ""}:                      DeleteBucket,
	{ofBucket, "DELETE", "policy"}:                DeleteBucketPolicy,
	{ofBucket, "DELETE", "tagging"}:               DeleteBucketTagging,
	{ofBucket, "DELETE", "lifecycle"}:             DeleteBucketLifecycle,
	{ofBucket, "DELETE", "cors"}:                  DeleteBucketCors,
	{ofBucket, "DELETE", "encryption"}:            DeleteBucketEncryption,
	{ofBucket, "DELETE", "website"}:               DeleteBucketWebsite,
	{ofBucket, "DELETE", "replication"}:           DeleteBucketReplication,
	{ofBucket, "DELETE", "ownershipControls"}:     DeleteBucketOwnershipControls,
	{ofBucket, "DELETE", "publicAccessBlock"}:     DeletePublicAccessBlock,
	{ofBucket, "DELETE", "analytics"}:             DeleteBucketAnalyticsConfiguration,
	{ofBucket, "DELETE", "inventory"}:             DeleteBucketInventoryConfiguration,
	{ofBucket, "DELETE", "metrics"}:               DeleteBucketMetricsConfiguration,
	{ofBucket, "DELETE", "intelligent-tiering"}:   DeleteBucketIntelligentTieringConfiguration,
	{ofBucket, "DELETE", "metadataConfiguration"}: DeleteBucketMetadataConfiguration,
	{ofBucket, "DELETE", "metadataTable"}:         DeleteBucketMetadataTableConfiguration,
	{ofBucket, "POST", ""}:                        PostObject,
	{ofBucket, "POST", "delete"}:                  DeleteObjects,
	{ofBucket, "POST", "metadataConfiguration"}:   CreateBucketMetadataConfiguration,
	{ofBucket, "POST", "metadataTable"}:           CreateBucketMetadataTableConfiguration,
	{ofBucket, "HEAD", ""}:                        HeadBucket,
	{ofBucket, "OPTIONS", ""}:                     PreflightBucket,
	{ofObject, "GET", ""}:                         GetObject,
	{ofObject, "GET", "uploadId"}:                 ListParts,
	{ofObject, "GET", "attributes"}:               GetObjectAttributes,
	{ofObject, "GET", "acl"}:                      GetObjectAcl,
	{ofObject, "GET", "tagging"}:                  GetObjectTagging,
	{ofObject, "GET", "retention"}:                GetObjectRetention,
	{ofObject, "GET", "legal-hold"}:               GetObjectLegalHold,
	{ofObject, "GET", "torrent"}:                  GetObjectTorrent,
	{ofObject, "PUT", ""}:                         PutObject,
	{ofObject, "PUT", "uploadId"}:                 UploadPart,
	{ofObject, "PUT", "partNumber"}:               UploadPart,
	{ofObject, "PUT", "acl"}:                      PutObjectAcl,
	{ofObject, "PUT", "tagging"}:                  PutObjectTagging,
	{ofObject, "PUT", "retention"}:                PutObjectRetention,
	{ofObject, "PUT", "legal-hold"}:               PutObjectLegalHold,
	{ofObject, "PUT", "renameObject"}:             RenameObject,
	{ofObject, "PUT", "encryption"}:               UpdateObjectEncryption,
	{ofObject, "POST", "uploads"}:                 CreateMultipartUpload,
	{ofObject, "POST", "uploadId"}:                CompleteMultipartUpload,
	{ofObject, "POST", "restore"}:                 RestoreObject,
	{ofObject, "POST", "select"}:                  SelectObjectContent,
	{ofObject, "DELETE", ""}:                      DeleteObject,
	{ofObject, "DELETE", "uploadId"}:              AbortMultipartUpload,
	{ofObject, "DELETE", "tagging"}:               DeleteObjectTagging,
	{ofObject, "HEAD", ""}:                        HeadObject,
	{ofObject, "OPTIONS", ""}:                     PreflightObject,
}

// refine tells operations apart that share a method and a sub-resource.
func refine(op Op, isCopy, hasID bool) Op {
	switch {
	case op == PutObject && isCopy:
		return CopyObject
	case op == UploadPart && isCopy:
		return UploadPartCopy
	case op == GetBucketAnalyticsConfiguration && !hasID:
		return ListBucketAnalyticsConfigurations
	case op == GetBucketInventoryConfiguration && !hasID:
		return ListBucketInventoryConfigurations
	case op == GetBucketMetricsConfiguration && !hasID:
		return ListBucketMetricsConfigurations
	case op == GetBucketIntelligentTieringConfiguration && !hasID:
		return ListBucketIntelligentTieringConfigurations
	}
	return op
}
