package gateway

import (
	"context"
	"errors"
	"net/http"

	"github.com/millrace/millrace/s3/store"
	"github.com/millrace/millrace/s3/wire"
)

// grants renders the one ACL that there is: the owner has full control, and nobody else anything.
func grants(owner *wire.Account) []byte {
	const grantee = `Grantee xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:type="CanonicalUser"`
	x := wire.NewXML("AccessControlPolicy")
	x.Owner("Owner", owner.ID, owner.DisplayName)
	x.Open("AccessControlList")
	x.Open("Grant")
	x.Open(grantee)
	x.Text("ID", owner.ID)
	x.Text("DisplayName", owner.DisplayName)
	x.Close("Grantee")
	x.Text("Permission", "FULL_CONTROL")
	x.Close("Grant")
	x.Close("AccessControlList")
	x.Close("AccessControlPolicy")
	return x.Bytes()
}

func (g *Gateway) getBucketACL(ctx context.Context, _ Principal, r *request) (*response, error) {
	owner, err := g.bucketOwner(ctx, r.Bucket)
	if err != nil {
		return nil, err
	}
	return document(grants(owner)), nil
}

func (g *Gateway) getObjectACL(ctx context.Context, p Principal, r *request) (*response, error) {
	if err := checkRead(r); err != nil {
		return nil, err
	}
	if _, err := g.store.Stat(ctx, r.Bucket, r.Key); err != nil {
		return nil, err
	}
	return g.getBucketACL(ctx, p, r)
}

// setACL accepts an ACL that is what there is anyway, in the form of a header.
func setACL(r *request) (*response, error) {
	if err := refuseFeatures(r, false); err != nil {
		return nil, err
	}
	if r.Header("X-Amz-Acl") == "" {
		return nil, notImplemented("An access control list in the body")
	}
	return &response{}, nil
}

func (g *Gateway) putBucketACL(ctx context.Context, _ Principal, r *request) (*response, error) {
	if _, err := g.store.Bucket(ctx, r.Bucket); err != nil {
		return nil, err
	}
	return setACL(r)
}

func (g *Gateway) putObjectACL(ctx context.Context, _ Principal, r *request) (*response, error) {
	if err := checkRead(r); err != nil {
		return nil, err
	}
	if _, err := g.store.Stat(ctx, r.Bucket, r.Key); err != nil {
		return nil, err
	}
	return setACL(r)
}

// bucketTags is how many tags a bucket may have.
const bucketTags = 50

func tagging(tags []wire.Tag) *response {
	x := wire.NewXML("Tagging")
	x.Open("TagSet")
	for _, t := range tags {
		x.Open("Tag")
		x.Text("Key", t.Key)
		x.Text("Value", t.Value)
		x.Close("Tag")
	}
	x.Close("TagSet")
	x.Close("Tagging")
	return document(x.Bytes())
}

func (g *Gateway) getObjectTagging(ctx context.Context, _ Principal, r *request) (*response, error) {
	if err := checkRead(r); err != nil {
		return nil, err
	}
	o, err := g.store.Stat(ctx, r.Bucket, r.Key)
	if err != nil {
		return nil, err
	}
	tags, err := wire.ParseTags(string(o.Attributes[tagsAttribute]))
	if err != nil {
		return nil, errors.New("stored tags are malformed")
	}
	return tagging(tags), nil
}

func (g *Gateway) getBucketTagging(ctx context.Context, _ Principal, r *request) (*response, error) {
	b, err := g.store.Bucket(ctx, r.Bucket)
	if err != nil {
		return nil, err
	}
	text, ok := b.Attributes[tagsAttribute]
	if !ok {
		return nil, &wire.Error{Code: wire.NoSuchTagSet, Fields: []wire.Field{{Name: "BucketName", Value: r.Bucket}}}
	}
	tags, err := wire.ParseBucketTags(string(text))
	if err != nil {
		return nil, errors.New("stored tags are malformed")
	}
	return tagging(tags), nil
}

func (g *Gateway) putBucketTagging(ctx context.Context, _ Principal, r *request) (*response, error) {
	in, err := wire.ParseIntegrity(r.HTTP.Header)
	if err != nil {
		return nil, err
	}
	body, err := r.readDocument(wire.MaxXMLBytes, in)
	if err != nil {
		return nil, err
	}
	tags, err := wire.ParseTagging(body, bucketTags)
	if err != nil {
		return nil, err
	}
	return g.setBucketTags(ctx, r.Bucket, tags)
}

func (g *Gateway) deleteBucketTagging(ctx context.Context, _ Principal, r *request) (*response, error) {
	return g.setBucketTags(ctx, r.Bucket, nil)
}

func (g *Gateway) setBucketTags(ctx context.Context, bucket string, tags []wire.Tag) (*response, error) {
	err := g.store.UpdateBucket(ctx, bucket, func(b *store.Bucket) error {
		if b.Attributes == nil {
			b.Attributes = map[string][]byte{}
		}
		delete(b.Attributes, tagsAttribute)
		if len(tags) > 0 {
			b.Attributes[tagsAttribute] = wire.FormatTags(tags)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &response{status: http.StatusNoContent}, nil
}
