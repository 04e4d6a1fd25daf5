package gateway

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/millrace/millrace/s3/store"
	"github.com/millrace/millrace/s3/wire"
)

// usEast1 is the region in which S3 keeps some customs of its first days.
const usEast1 = "us-east-1"

func (g *Gateway) listBuckets(ctx context.Context, p Principal, r *request) (*response, error) {
	limit, err := r.Query.Count("max-buckets", 10_000, 10_000)
	if err != nil {
		return nil, err
	}
	after, err := decodeToken("continuation-token", r.Query.Get("continuation-token"))
	if err != nil {
		return nil, err
	}
	all, err := g.store.ListBuckets(ctx)
	if err != nil {
		return nil, err
	}
	prefix := r.Query.Get("prefix")
	x := wire.NewXML("ListAllMyBucketsResult")
	x.Owner("Owner", p.Account.ID, p.Account.DisplayName)
	x.Open("Buckets")
	count, last, more := 0, "", false
	for _, b := range all {
		mine := p.Root || b.Owner == p.Account.ID
		if !mine || b.Name <= after || !strings.HasPrefix(b.Name, prefix) {
			continue
		}
		if count == limit {
			more = limit > 0
			break
		}
		x.Open("Bucket")
		x.Text("Name", b.Name)
		x.Time("CreationDate", b.Created)
		x.Text("BucketRegion", b.Region)
		x.Close("Bucket")
		count, last = count+1, b.Name
	}
	x.Close("Buckets")
	if more {
		x.Text("ContinuationToken", encodeToken(last))
	}
	x.TextUnlessEmpty("Prefix", prefix)
	x.Close("ListAllMyBucketsResult")
	return document(x.Bytes()), nil
}

func (g *Gateway) createBucket(ctx context.Context, p Principal, r *request) (*response, error) {
	if err := refuseFeatures(r, true); err != nil {
		return nil, err
	}
	in, err := wire.ParseIntegrity(r.HTTP.Header)
	if err != nil {
		return nil, err
	}
	body, err := r.readDocument(wire.MaxXMLBytes, in)
	if err != nil {
		return nil, err
	}
	location, err := wire.ParseCreateBucket(body)
	if err != nil {
		return nil, err
	}
	if location != "" && location != g.config.Region {
		return nil, &wire.Error{Code: wire.InvalidLocationConstraint, Fields: []wire.Field{
			{Name: "LocationConstraint", Value: location},
		}}
	}
	b, err := g.store.CreateBucket(ctx, store.Bucket{
		Name: r.Bucket, Owner: p.Account.ID, Region: g.config.Region,
		Created: time.Now().UTC().Truncate(time.Millisecond),
	})
	switch {
	case errors.Is(err, store.ErrBucketExists) && b.Owner != p.Account.ID:
		return nil, &wire.Error{Code: wire.BucketAlreadyExists}
	case errors.Is(err, store.ErrBucketExists) && g.config.Region != usEast1:
		return nil, &wire.Error{Code: wire.BucketAlreadyOwnedByYou}
	case err != nil && !errors.Is(err, store.ErrBucketExists):
		return nil, err
	}
	resp := &response{}
	resp.set("Location", "/"+r.Bucket)
	return resp, nil
}

func (g *Gateway) headBucket(ctx context.Context, _ Principal, r *request) (*response, error) {
	b, err := g.store.Bucket(ctx, r.Bucket)
	if err != nil {
		return nil, err
	}
	resp := &response{}
	resp.set("X-Amz-Bucket-Region", b.Region)
	resp.set("X-Amz-Access-Point-Alias", "false")
	return resp, nil
}

// deleteBucket deletes a bucket without objects. As in S3, uploads in progress do not keep it.
func (g *Gateway) deleteBucket(ctx context.Context, _ Principal, r *request) (*response, error) {
	err := g.store.DeleteBucket(ctx, r.Bucket)
	if errors.Is(err, store.ErrBucketNotEmpty) {
		page, listErr := g.store.List(ctx, store.ListRequest{Bucket: r.Bucket, MaxEntries: 1})
		if listErr != nil || len(page.Objects) > 0 {
			return nil, errors.Join(listErr, err)
		}
		if err := g.abortUploads(ctx, r.Bucket); err != nil {
			return nil, err
		}
		err = g.store.DeleteBucket(ctx, r.Bucket)
	}
	if err != nil {
		return nil, err
	}
	return &response{status: http.StatusNoContent}, nil
}

func (g *Gateway) abortUploads(ctx context.Context, bucket string) error {
	next := store.UploadsRequest{Bucket: bucket, MaxEntries: store.MaxListEntries}
	for {
		page, err := g.store.ListUploads(ctx, next)
		if err != nil {
			return err
		}
		for _, u := range page.Uploads {
			err := g.store.AbortUpload(ctx, bucket, u.Key, u.ID)
			if err != nil && !errors.Is(err, store.ErrNoSuchUpload) {
				return err
			}
		}
		if !page.Truncated {
			return nil
		}
		next.KeyAfter, next.IDAfter = page.NextKey, page.NextID
	}
}

func (g *Gateway) getBucketLocation(ctx context.Context, _ Principal, r *request) (*response, error) {
	b, err := g.store.Bucket(ctx, r.Bucket)
	if err != nil {
		return nil, err
	}
	location := b.Region
	if location == usEast1 {
		location = ""
	}
	return document(wire.LocationConstraint(location)), nil
}
