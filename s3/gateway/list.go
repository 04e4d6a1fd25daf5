package gateway

import (
	"context"
	"encoding/base64"
	"strings"
	"unicode/utf8"

	"github.com/millrace/millrace/s3/checksum"
	"github.com/millrace/millrace/s3/store"
	"github.com/millrace/millrace/s3/wire"
)

// encodeToken makes an opaque token of the place where a listing goes on.
func encodeToken(place string) string { return base64.StdEncoding.EncodeToString([]byte(place)) }

func decodeToken(name, token string) (string, error) {
	place, err := base64.StdEncoding.DecodeString(token)
	if err != nil || !utf8.Valid(place) || len(place) > store.MaxKeyBytes {
		return "", wire.InvalidArg(name, token, "The continuation token provided is incorrect")
	}
	return string(place), nil
}

// listing reads the parameters that all listings have. limit is the name of the one that bounds it.
func (r *request) listing(limit string) (wire.Listing, error) {
	l := wire.Listing{Bucket: r.Bucket, Prefix: r.Query.Get("prefix"), Delimiter: r.Query.Get("delimiter")}
	encoding, given := r.Query.Lookup("encoding-type")
	l.URLEncode = strings.EqualFold(encoding, "url")
	if given && encoding != "" && !l.URLEncode {
		return l, wire.InvalidArg("encoding-type", encoding, "Invalid Encoding Method specified in Request")
	}
	var err error
	l.MaxEntries, err = r.Query.Count(limit, store.MaxListEntries, store.MaxListEntries)
	return l, err
}

// list asks the store for a page, and fills it in. A page of no entries is never truncated.
func (g *Gateway) list(ctx context.Context, l *wire.ObjectList, after string) (store.ListPage, error) {
	page, err := g.store.List(ctx, store.ListRequest{
		Bucket: l.Bucket, Prefix: l.Prefix, Delimiter: l.Delimiter, After: after, MaxEntries: l.MaxEntries,
	})
	if err != nil {
		return page, err
	}
	l.Objects, l.Prefixes, l.Truncated = page.Objects, page.Prefixes, page.Truncated && l.MaxEntries > 0
	return page, nil
}

func (g *Gateway) bucketOwner(ctx context.Context, bucket string) (*wire.Account, error) {
	b, err := g.store.Bucket(ctx, bucket)
	if err != nil {
		return nil, err
	}
	a := g.config.Accounts.Account(b.Owner)
	return &a, nil
}

func (g *Gateway) listObjects(ctx context.Context, _ Principal, r *request) (*response, error) {
	listing, err := r.listing("max-keys")
	if err != nil {
		return nil, err
	}
	l := wire.ObjectList{Listing: listing, Marker: r.Query.Get("marker")}
	page, err := g.list(ctx, &l, l.Marker)
	if err != nil {
		return nil, err
	}
	if l.Truncated && l.Delimiter != "" {
		l.NextMarker = page.Next
	}
	if l.Owner, err = g.bucketOwner(ctx, r.Bucket); err != nil {
		return nil, err
	}
	return document(l.V1()), nil
}

func (g *Gateway) listObjectsV2(ctx context.Context, _ Principal, r *request) (*response, error) {
	listing, err := r.listing("max-keys")
	if err != nil {
		return nil, err
	}
	l := wire.ObjectList{Listing: listing, StartAfter: r.Query.Get("start-after")}
	after := l.StartAfter
	if token, ok := r.Query.Lookup("continuation-token"); ok {
		l.Token = &token
		if token != "" {
			if after, err = decodeToken("continuation-token", token); err != nil {
				return nil, err
			}
		}
	}
	page, err := g.list(ctx, &l, after)
	if err != nil {
		return nil, err
	}
	if l.Truncated {
		l.NextToken = encodeToken(page.Next)
	}
	if r.Query.Get("fetch-owner") == "true" {
		if l.Owner, err = g.bucketOwner(ctx, r.Bucket); err != nil {
			return nil, err
		}
	}
	return document(l.V2()), nil
}

// listObjectVersions lists a bucket that keeps no versions: each key has the one that is its object.
func (g *Gateway) listObjectVersions(ctx context.Context, _ Principal, r *request) (*response, error) {
	listing, err := r.listing("max-keys")
	if err != nil {
		return nil, err
	}
	l := wire.ObjectList{Listing: listing, Marker: r.Query.Get("key-marker")}
	page, err := g.list(ctx, &l, l.Marker)
	if err != nil {
		return nil, err
	}
	if l.Truncated {
		l.NextMarker = page.Next
	}
	if l.Owner, err = g.bucketOwner(ctx, r.Bucket); err != nil {
		return nil, err
	}
	return document(l.Versions(r.Query.Get("version-id-marker"))), nil
}

func (g *Gateway) listMultipartUploads(ctx context.Context, _ Principal, r *request) (*response, error) {
	listing, err := r.listing("max-uploads")
	if err != nil {
		return nil, err
	}
	l := wire.UploadList{
		Listing: listing, KeyMarker: r.Query.Get("key-marker"), IDMarker: r.Query.Get("upload-id-marker"),
		Owner: g.config.Accounts.Account, Checksum: func(u *store.Upload) (checksum.Algorithm, checksum.Type) {
			return uploadChecksum(u.Attributes)
		},
	}
	request := store.UploadsRequest{
		Bucket: r.Bucket, Prefix: l.Prefix, Delimiter: l.Delimiter, KeyAfter: l.KeyMarker, MaxEntries: l.MaxEntries,
	}
	if l.KeyMarker != "" {
		request.IDAfter = l.IDMarker // else S3 ignores it
	}
	page, err := g.store.ListUploads(ctx, request)
	if err != nil {
		return nil, err
	}
	l.Uploads, l.Prefixes, l.Truncated = page.Uploads, page.Prefixes, page.Truncated && l.MaxEntries > 0
	l.NextKeyMarker, l.NextID = page.NextKey, page.NextID
	return document(l.XML()), nil
}
