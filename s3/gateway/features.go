package gateway

import (
	"slices"
	"strings"

	"github.com/millrace/millrace/s3/store"
	"github.com/millrace/millrace/s3/wire"
)

// Canned ACLs. The owner of a bucket owns its objects, and nobody else has access, so these few
// say what is the case anyway.
var (
	ownerACLs = []string{"private", "bucket-owner-read", "bucket-owner-full-control"}
	otherACLs = []string{"public-read", "public-read-write", "authenticated-read", "aws-exec-read", "log-delivery-write"}
)

func checkACL(acl string) error {
	switch {
	case acl == "" || slices.Contains(ownerACLs, acl):
		return nil
	case slices.Contains(otherACLs, acl):
		return notImplemented("x-amz-acl: " + acl)
	}
	return wire.InvalidArg("x-amz-acl", acl, "")
}

// refuseFeatures refuses a write whose headers ask for what is not there. Passing over such a
// header would store an object that is not as its owner believes.
func refuseFeatures(r *request, ofBucket bool) error {
	for name, values := range r.HTTP.Header {
		if !strings.HasPrefix(name, "X-Amz-") || len(values) == 0 {
			continue
		}
		if err := refuseFeature(name, values[0], ofBucket); err != nil {
			return err
		}
	}
	return nil
}

func refuseFeature(name, value string, ofBucket bool) error {
	switch {
	case name == "X-Amz-Acl":
		return checkACL(value)
	case strings.HasPrefix(name, "X-Amz-Grant-"), strings.HasPrefix(name, "X-Amz-Server-Side-Encryption"),
		name == "X-Amz-Write-Offset-Bytes":
		return notImplemented(strings.ToLower(name))
	case strings.HasPrefix(name, "X-Amz-Object-Lock-"):
		return wire.Refuse(noObjectLock)
	case name == "X-Amz-Bucket-Object-Lock-Enabled" && ofBucket && strings.EqualFold(value, "true"),
		name == "X-Amz-Object-Ownership" && ofBucket && value != "BucketOwnerEnforced":
		return notImplemented(strings.ToLower(name) + ": " + value)
	case name == "X-Amz-Storage-Class" && value != wire.StorageClass:
		return &wire.Error{Code: wire.InvalidStorageClass, Fields: []wire.Field{
			{Name: "StorageClassRequested", Value: value},
		}}
	}
	return nil
}

// checkRead refuses a read that asks for a version or a key of encryption that no object has.
func checkRead(r *request) error {
	if r.Header("X-Amz-Server-Side-Encryption-Customer-Algorithm") != "" {
		return wire.Refuse("The encryption parameters are not applicable to this object.")
	}
	version, given := r.Query.Lookup("versionId")
	if !given {
		return nil
	}
	return checkVersion(version)
}

// checkVersion accepts the one version that every object has.
func checkVersion(version string) error {
	switch version {
	case store.NullVersion:
		return nil
	case "":
		return wire.InvalidArg("versionId", "", "Version id cannot be the empty string")
	}
	return &wire.Error{Code: wire.NoSuchVersion, Fields: []wire.Field{{Name: "VersionId", Value: version}}}
}
