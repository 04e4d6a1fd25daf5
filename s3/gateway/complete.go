package gateway

import (
	"context"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"strconv"
	"strings"

	"github.com/millrace/millrace/s3/checksum"
	"github.com/millrace/millrace/s3/store"
	"github.com/millrace/millrace/s3/wire"
)

// completion is what the client says of an upload that it completes.
type completion struct {
	parts     []wire.CompletePart
	sizeBytes int64 // x-amz-mp-object-size; -1 if not given
	algorithm checksum.Algorithm
	checksum  string // of the whole, as text
	kind      string // x-amz-checksum-type
}

func parseCompletion(r *request) (*completion, error) {
	in, err := wire.ParseContentMD5(r.HTTP.Header)
	if err != nil {
		return nil, err
	}
	body, err := r.readDocument(wire.MaxCompleteBytes, in)
	if err != nil {
		return nil, err
	}
	c := &completion{sizeBytes: -1, kind: r.Header("X-Amz-Checksum-Type")}
	if text := r.Header("X-Amz-Mp-Object-Size"); text != "" {
		if c.sizeBytes, err = strconv.ParseInt(text, 10, 64); err != nil || c.sizeBytes < 0 {
			return nil, wire.InvalidArg("x-amz-mp-object-size", text, "Value for x-amz-mp-object-size header is invalid.")
		}
	}
	for _, a := range checksum.All() {
		if text := r.Header(a.HeaderKey()); text != "" {
			c.algorithm, c.checksum = a, text
		}
	}
	c.parts, err = wire.ParseComplete(body)
	return c, err
}

func (g *Gateway) completeMultipartUpload(ctx context.Context, _ Principal, r *request) (*response, error) {
	c, err := parseCompletion(r)
	if err != nil {
		return nil, err
	}
	numbers := make([]int, len(c.parts))
	for i, p := range c.parts {
		numbers[i] = p.Number
	}
	o, err := g.store.CompleteUpload(ctx, store.CompleteRequest{
		Bucket: r.Bucket, Key: r.Key, UploadID: r.Query.Get("uploadId"), Numbers: numbers,
		Finish: c.seal, Precondition: writePrecondition(r),
	})
	if err != nil {
		return nil, g.orNoBucket(ctx, r, err)
	}
	scheme := "http"
	if r.HTTP.TLS != nil {
		scheme = "https"
	}
	location := scheme + "://" + r.HTTP.Host + string(wire.AppendURLEncoded(nil, r.HTTP.URL.Path))
	x := wire.NewXML("CompleteMultipartUploadResult")
	x.Text("Location", location)
	x.Text("Bucket", r.Bucket)
	x.Text("Key", r.Key)
	x.ETag(o.ETag)
	for _, sum := range o.Checksums {
		x.Text("Checksum"+sum.Algorithm.String(), wire.ChecksumText(sum, len(o.Parts)))
		x.Text("ChecksumType", wire.ChecksumType(sum).String())
	}
	x.Close("CompleteMultipartUploadResult")
	return document(x.Bytes()), nil
}

// seal compares the parts with what the client says of them, and makes the ETag and the checksum of
// the whole.
func (c *completion) seal(u store.Upload, parts []store.Part) (store.Seal, error) {
	if len(parts) != len(c.parts) {
		return store.Seal{}, errors.New("store shows other parts than it was asked for")
	}
	total := int64(0)
	etags := md5.New()
	for i := range parts {
		p := &parts[i]
		if err := c.checkPart(p, c.parts[i], i == len(parts)-1); err != nil {
			return store.Seal{}, err
		}
		digest, _, _ := strings.Cut(p.ETag, "-") // that of a part by RDMA ends so
		sum, err := hex.DecodeString(digest)
		if err != nil {
			return store.Seal{}, errors.New("ETag of a part is no digest")
		}
		etags.Write(sum)
		total += p.SizeBytes
	}
	switch {
	case total > store.MaxObjectBytes:
		return store.Seal{}, &wire.Error{Code: wire.EntityTooLarge}
	case c.sizeBytes >= 0 && c.sizeBytes != total:
		return store.Seal{}, wire.Refuse("The provided 'x-amz-mp-object-size' header value " +
			strconv.FormatInt(c.sizeBytes, 10) + " does not match what was computed: " + strconv.FormatInt(total, 10))
	}
	sum, err := c.objectChecksum(u, parts)
	if err != nil {
		return store.Seal{}, err
	}
	etag := hex.EncodeToString(etags.Sum(nil)) + "-" + strconv.Itoa(len(parts))
	return store.Seal{ETag: etag, Checksums: []store.Checksum{sum}}, nil
}

func (c *completion) checkPart(p *store.Part, want wire.CompletePart, last bool) error {
	fields := []wire.Field{{Name: "PartNumber", Value: strconv.Itoa(p.Number)}, {Name: "ETag", Value: want.ETag}}
	bad := &wire.Error{Code: wire.InvalidPart, Fields: fields}
	if !strings.EqualFold(p.ETag, want.ETag) {
		return bad
	}
	if want.Algorithm != checksum.None {
		known := false
		for _, sum := range p.Checksums {
			if sum.Algorithm == want.Algorithm {
				known = true
				if checksum.Encode(sum.Value) != want.Checksum {
					return bad
				}
			}
		}
		if !known {
			return bad
		}
	}
	if !last && p.SizeBytes < store.MinPartBytes {
		return &wire.Error{Code: wire.EntityTooSmall, Fields: append(fields,
			wire.Field{Name: "ProposedSize", Value: strconv.FormatInt(p.SizeBytes, 10)},
			wire.Field{Name: "MinSizeAllowed", Value: strconv.Itoa(store.MinPartBytes)})}
	}
	return nil
}

// objectChecksum makes the checksum of the whole out of those of the parts, and compares it with the
// client's.
func (c *completion) objectChecksum(u store.Upload, parts []store.Part) (store.Checksum, error) {
	algorithm, kind := uploadChecksum(u.Attributes)
	if c.kind != "" && kind != 0 && c.kind != kind.String() {
		return store.Checksum{}, wire.Refuse("The upload was created using the " + kind.String() +
			" checksum mode. The complete request must use the same checksum mode.")
	}
	if algorithm == checksum.None {
		algorithm, kind = checksum.CRC64NVME, checksum.FullObject
	}
	values := make([]checksum.Part, len(parts))
	for i := range parts {
		for _, sum := range parts[i].Checksums {
			if sum.Algorithm == algorithm {
				values[i] = checksum.Part{Value: sum.Value, SizeBytes: parts[i].SizeBytes}
			}
		}
	}
	fold := checksum.FullObjectOf
	if kind == checksum.Composite {
		fold = checksum.CompositeOf
	}
	value, err := fold(algorithm, values)
	if err != nil {
		return store.Checksum{}, err
	}
	sum := store.Checksum{Algorithm: algorithm, Composite: kind == checksum.Composite, Value: value}
	if c.algorithm == checksum.None {
		return sum, nil
	}
	text := wire.ChecksumText(sum, len(parts))
	if c.algorithm != algorithm || c.checksum != text && (!sum.Composite || c.checksum != checksum.Encode(value)) {
		return sum, wire.BadChecksum(c.algorithm)
	}
	return sum, nil
}
