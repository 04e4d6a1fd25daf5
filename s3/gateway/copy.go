package gateway

import (
	"context"
	"errors"
	"io"
	"strconv"

	"github.com/millrace/millrace/s3/checksum"
	"github.com/millrace/millrace/s3/store"
	"github.com/millrace/millrace/s3/wire"
)

// errCopyEnded ends the reading side of a copy whose writing side needs no more.
var errCopyEnded = errors.New("copy ended")

// source is an open object that is being copied. Its bytes go from the store to the store through
// a pipe, in the pieces in which they are read.
type source struct {
	store.Reader
	info store.Object
	span wire.Span
}

// openSource opens the object that x-amz-copy-source names, and judges the conditions on it.
func (g *Gateway) openSource(ctx context.Context, r *request) (*source, wire.CopySource, error) {
	name, err := wire.ParseCopySource(r.Header("X-Amz-Copy-Source"))
	if err != nil {
		return nil, name, err
	}
	if r.Header("X-Amz-Copy-Source-Server-Side-Encryption-Customer-Algorithm") != "" {
		return nil, name, wire.Refuse("The encryption parameters are not applicable to this object.")
	}
	if name.VersionID != "" {
		if err := checkVersion(name.VersionID); err != nil {
			return nil, name, err
		}
	}
	if want := r.Header("X-Amz-Source-Expected-Bucket-Owner"); want != "" {
		if err := g.wantOwner(ctx, name.Bucket, want); err != nil {
			return nil, name, sourceError(name, err)
		}
	}
	reader, err := g.store.Open(ctx, name.Bucket, name.Key)
	if err != nil {
		return nil, name, sourceError(name, err)
	}
	s := &source{Reader: reader, info: reader.Info()}
	s.span.Length = s.info.SizeBytes
	conditions := wire.ParseSourceConditions(r.HTTP.Header)
	if err := conditions.Source(&s.info); err != nil {
		return nil, name, errors.Join(err, reader.Close())
	}
	return s, name, nil
}

// sourceError names the source, where else the destination would be named.
func sourceError(name wire.CopySource, err error) error {
	switch {
	case errors.Is(err, store.ErrNoSuchBucket):
		return &wire.Error{Code: wire.NoSuchBucket, Fields: []wire.Field{{Name: "BucketName", Value: name.Bucket}}}
	case errors.Is(err, store.ErrNoSuchKey):
		return &wire.Error{Code: wire.NoSuchKey, Fields: []wire.Field{{Name: "Key", Value: name.Key}}}
	}
	return err
}

// stream hands the bytes of the source to write, which must read them to their end or fail, and
// closes the source. It needs a goroutine, since the store writes what it reads and reads what
// it writes.
func (s *source) stream(ctx context.Context, write func(io.Reader) error) error {
	read, written := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		written.CloseWithError(s.WriteRange(ctx, written, s.span.Offset, s.span.Length))
	}()
	err := write(read)
	read.CloseWithError(errCopyEnded)
	<-done
	return errors.Join(err, s.Close())
}

// hashed is the copied data with the checksum that the copy is to have.
type hashed struct{ upload }

func newHashed(body io.Reader, a checksum.Algorithm) *hashed {
	h := &hashed{upload{source: body, algorithm: a}}
	if a != checksum.CRC64NVME {
		h.hash = checksum.New(a)
	}
	return h
}

func (g *Gateway) copyObject(ctx context.Context, _ Principal, r *request) (*response, error) {
	if err := refuseFeatures(r, false); err != nil {
		return nil, err
	}
	put, replaces, err := copyMetadata(r)
	if err != nil {
		return nil, err
	}
	if _, err := g.store.Bucket(ctx, r.Bucket); err != nil {
		return nil, err
	}
	s, name, err := g.openSource(ctx, r)
	if err != nil {
		return nil, err
	}
	algorithm, err := copyAlgorithm(r, &s.info)
	if err == nil {
		err = checkCopy(r, s, name, replaces || r.Header("X-Amz-Checksum-Algorithm") != "")
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	inherit(&put, r, &s.info)
	put.SizeBytes = s.info.SizeBytes
	put.Precondition = writePrecondition(r)
	var o store.Object
	err = s.stream(ctx, func(body io.Reader) error {
		h := newHashed(body, algorithm)
		put.Body = h
		put.Finish = func(d store.Digests) (store.Seal, error) {
			return store.Seal{Checksums: []store.Checksum{h.sum(d)}}, nil
		}
		var err error
		o, err = g.store.Put(ctx, put)
		return err
	})
	if err != nil {
		return nil, err
	}
	x := wire.NewXML("CopyObjectResult")
	x.Time("LastModified", o.Modified)
	x.ETag(o.ETag)
	for _, c := range o.Checksums {
		x.Text("Checksum"+c.Algorithm.String(), checksum.Encode(c.Value))
		x.Text("ChecksumType", wire.ChecksumType(c).String())
	}
	x.Close("CopyObjectResult")
	return document(x.Bytes()), nil
}

// copyMetadata reads the headers of the copy: what replaces the metadata of the source, and whether
// anything does.
func copyMetadata(r *request) (put store.PutRequest, replaces bool, err error) {
	put.Bucket, put.Key = r.Bucket, r.Key
	meta, err := wire.ParseMetadata(r.HTTP.Header)
	if err != nil {
		return put, false, err
	}
	put.System, put.User, put.Attributes = meta.System, meta.User, tagAttributes(meta.Tags)
	metadata, err := directive(r, "X-Amz-Metadata-Directive", "x-amz-metadata-directive")
	if err != nil {
		return put, false, err
	}
	tags, err := directive(r, "X-Amz-Tagging-Directive", "x-amz-tagging-directive")
	return put, metadata || tags || r.Header(redirect) != "", err
}

const redirect = "X-Amz-Website-Redirect-Location"

// directive reads a header that is COPY or REPLACE, and returns whether it is the latter.
func directive(r *request, header, name string) (bool, error) {
	switch value := r.Header(header); value {
	case "", "COPY":
		return false, nil
	case "REPLACE":
		return true, nil
	default:
		return false, wire.InvalidArg(name, value, "Unknown metadata directive.")
	}
}

// inherit gives the copy what its source has and no directive replaces.
func inherit(put *store.PutRequest, r *request, from *store.Object) {
	if replace, _ := directive(r, "X-Amz-Metadata-Directive", ""); !replace {
		own := put.System[redirect] // is never copied
		put.System = map[string]string{}
		for name, value := range from.System {
			if name != redirect {
				put.System[name] = value
			}
		}
		if own != "" {
			put.System[redirect] = own
		}
		put.User = from.User
	}
	if replace, _ := directive(r, "X-Amz-Tagging-Directive", ""); !replace {
		put.Attributes = nil
		if tags, ok := from.Attributes[tagsAttribute]; ok {
			put.Attributes = map[string][]byte{tagsAttribute: tags}
		}
	}
}

// copyAlgorithm is the algorithm of the checksum that the copy gets: the one asked for, or that of
// the source, or CRC64NVME.
func copyAlgorithm(r *request, from *store.Object) (checksum.Algorithm, error) {
	if name := r.Header("X-Amz-Checksum-Algorithm"); name != "" {
		return parseAlgorithm(name)
	}
	if len(from.Checksums) > 0 {
		return from.Checksums[0].Algorithm, nil
	}
	return checksum.CRC64NVME, nil
}

func parseAlgorithm(name string) (checksum.Algorithm, error) {
	a, err := checksum.Parse(name)
	if err != nil {
		return a, wire.Refuse("Checksum algorithm provided is unsupported. Please try again with any of the valid types: " +
			"[CRC32, CRC32C, CRC64NVME, SHA1, SHA256]")
	}
	return a, nil
}

// checkCopy refuses a copy of an object onto itself that changes nothing, and one that is too large.
func checkCopy(r *request, s *source, name wire.CopySource, changes bool) error {
	if name.Bucket == r.Bucket && name.Key == r.Key && !changes {
		return wire.Refuse("This copy request is illegal because it is trying to copy an object to itself without " +
			"changing the object's metadata, storage class, website redirect location or encryption attributes.")
	}
	if s.info.SizeBytes > store.MaxPutBytes {
		return wire.Refuse("The specified copy source is larger than the maximum allowable size for a copy source: " +
			strconv.FormatInt(store.MaxPutBytes, 10))
	}
	return nil
}
