package gateway

import (
	"context"
	"errors"
	"net/http"

	"github.com/millrace/millrace/s3/store"
	"github.com/millrace/millrace/s3/wire"
)

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
	tags, err := readTags(r, bucketTags)
	if err != nil {
		return nil, err
	}
	return g.setBucketTags(ctx, r.Bucket, tags)
}

func (g *Gateway) deleteBucketTagging(ctx context.Context, _ Principal, r *request) (*response, error) {
	return g.setBucketTags(ctx, r.Bucket, nil)
}

// setTags puts tags in the place of those among the attributes.
func setTags(attributes *map[string][]byte, tags []wire.Tag) {
	if *attributes == nil {
		*attributes = map[string][]byte{}
	}
	delete(*attributes, tagsAttribute)
	if len(tags) > 0 {
		(*attributes)[tagsAttribute] = wire.FormatTags(tags)
	}
}

func (g *Gateway) setBucketTags(ctx context.Context, bucket string, tags []wire.Tag) (*response, error) {
	err := g.store.UpdateBucket(ctx, bucket, func(b *store.Bucket) error {
		setTags(&b.Attributes, tags)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &response{status: http.StatusNoContent}, nil
}

func readTags(r *request, limit int) ([]wire.Tag, error) {
	in, err := wire.ParseIntegrity(r.HTTP.Header)
	if err != nil {
		return nil, err
	}
	body, err := r.readDocument(wire.MaxXMLBytes, in)
	if err != nil {
		return nil, err
	}
	return wire.ParseTagging(body, limit)
}

func (g *Gateway) putObjectTagging(ctx context.Context, _ Principal, r *request) (*response, error) {
	if err := checkRead(r); err != nil {
		return nil, err
	}
	tags, err := readTags(r, wire.MaxTags)
	if err != nil {
		return nil, err
	}
	return &response{}, g.setObjectTags(ctx, r, tags)
}

func (g *Gateway) deleteObjectTagging(ctx context.Context, _ Principal, r *request) (*response, error) {
	if err := checkRead(r); err != nil {
		return nil, err
	}
	return &response{status: http.StatusNoContent}, g.setObjectTags(ctx, r, nil)
}

func (g *Gateway) setObjectTags(ctx context.Context, r *request, tags []wire.Tag) error {
	u, ok := g.store.(store.ObjectUpdater)
	if !ok {
		return notImplemented(r.Op.String())
	}
	return u.UpdateObject(ctx, r.Bucket, r.Key, func(o *store.Object) error {
		setTags(&o.Attributes, tags)
		return nil
	})
}
