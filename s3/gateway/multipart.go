package gateway

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/millrace/millrace/s3/checksum"
	"github.com/millrace/millrace/s3/store"
	"github.com/millrace/millrace/s3/wire"
)

// checksumAttribute is the name of the attribute that holds the algorithm and the type of the
// checksums of an upload, as S3 names them, with a space between.
const checksumAttribute = "upload-checksum"

// uploadChecksum returns what the creator of an upload asked for; zero values if for nothing.
func uploadChecksum(attributes map[string][]byte) (checksum.Algorithm, checksum.Type) {
	name, kind, ok := strings.Cut(string(attributes[checksumAttribute]), " ")
	if !ok {
		return checksum.None, 0
	}
	a, err := checksum.Parse(name)
	t, err2 := checksum.ParseType(kind)
	if err != nil || err2 != nil {
		return checksum.None, 0
	}
	return a, t
}

// wantedChecksum reads x-amz-checksum-algorithm and x-amz-checksum-type.
func wantedChecksum(r *request) (checksum.Algorithm, checksum.Type, error) {
	name, kind := r.Header("X-Amz-Checksum-Algorithm"), r.Header("X-Amz-Checksum-Type")
	if name == "" {
		if kind != "" {
			return 0, 0, wire.Refuse("The x-amz-checksum-type header can only be used with the x-amz-checksum-algorithm header.")
		}
		return checksum.None, 0, nil
	}
	a, err := parseAlgorithm(name)
	if err != nil {
		return 0, 0, err
	}
	t := a.DefaultType()
	if kind != "" {
		if t, err = checksum.ParseType(kind); err != nil {
			return 0, 0, wire.Refuse("Value for x-amz-checksum-type header is invalid.")
		}
	}
	if !a.Allows(t) {
		return 0, 0, wire.Refuse("The " + t.String() + " checksum type cannot be used with the " + a.String() +
			" checksum algorithm.")
	}
	return a, t, nil
}

func (g *Gateway) createMultipartUpload(ctx context.Context, p Principal, r *request) (*response, error) {
	if err := refuseFeatures(r, false); err != nil {
		return nil, err
	}
	meta, err := wire.ParseMetadata(r.HTTP.Header)
	if err != nil {
		return nil, err
	}
	algorithm, kind, err := wantedChecksum(r)
	if err != nil {
		return nil, err
	}
	attributes := tagAttributes(meta.Tags)
	if algorithm != checksum.None {
		if attributes == nil {
			attributes = map[string][]byte{}
		}
		attributes[checksumAttribute] = []byte(algorithm.String() + " " + kind.String())
	}
	u, err := g.store.CreateUpload(ctx, store.Upload{
		Bucket: r.Bucket, Key: r.Key, Owner: p.Account.ID,
		System: meta.System, User: meta.User, Attributes: attributes,
	})
	if err != nil {
		return nil, err
	}
	x := wire.NewXML("InitiateMultipartUploadResult")
	x.Text("Bucket", r.Bucket)
	x.Text("Key", r.Key)
	x.Text("UploadId", u.ID)
	x.Close("InitiateMultipartUploadResult")
	resp := document(x.Bytes())
	resp.setUnlessEmpty("X-Amz-Checksum-Algorithm", algorithm.String())
	resp.setUnlessEmpty("X-Amz-Checksum-Type", kind.String())
	return resp, nil
}

// partTarget reads which part of which upload a request is about.
func (g *Gateway) partTarget(ctx context.Context, r *request) (store.PartRequest, store.Upload, error) {
	part := store.PartRequest{Bucket: r.Bucket, Key: r.Key, UploadID: r.Query.Get("uploadId")}
	text, given := r.Query.Lookup("partNumber")
	if !given || part.UploadID == "" {
		return part, store.Upload{}, wire.Refuse("partNumber and uploadId must both be given")
	}
	var err error
	if part.Number, err = strconv.Atoi(text); err != nil || part.Number < 1 || part.Number > store.MaxPartNumber {
		return part, store.Upload{}, wire.InvalidArg("partNumber", text,
			"Part number must be an integer between 1 and 10000, inclusive")
	}
	u, err := g.store.Upload(ctx, r.Bucket, r.Key, part.UploadID)
	return part, u, g.orNoBucket(ctx, r, err)
}

// orNoBucket prefers to say that the bucket is not there.
func (g *Gateway) orNoBucket(ctx context.Context, r *request, err error) error {
	if errors.Is(err, store.ErrNoSuchUpload) {
		if _, bucketErr := g.store.Bucket(ctx, r.Bucket); bucketErr != nil {
			return bucketErr
		}
	}
	return err
}

// partChecksums are what is kept of a part: the checksum that came with it, or that the upload asks
// for, and always CRC64NVME, of which that of the whole object can be made.
func partChecksums(sum store.Checksum, d store.Digests) []store.Checksum {
	if sum.Algorithm == checksum.CRC64NVME {
		return []store.Checksum{sum}
	}
	return []store.Checksum{sum, crc64(d)}
}

func (g *Gateway) uploadPart(ctx context.Context, _ Principal, r *request) (*response, error) {
	if err := refuseFeatures(r, false); err != nil {
		return nil, err
	}
	in, err := wire.ParseIntegrity(r.HTTP.Header)
	if err != nil {
		return nil, err
	}
	part, up, err := g.partTarget(ctx, r)
	if err != nil {
		return nil, err
	}
	algorithm, _ := uploadChecksum(up.Attributes)
	if algorithm != checksum.None && in.Algorithm != checksum.None && algorithm != in.Algorithm {
		return nil, wire.Refuse("Checksum Type mismatch occurred, expected checksum Type: " +
			strings.ToLower(algorithm.String()) + ", actual checksum Type: " + strings.ToLower(in.Algorithm.String()))
	}
	u, err := r.openUpload(in, algorithm)
	if err != nil {
		return nil, err
	}
	part.SizeBytes, part.Body = u.sizeBytes, u
	part.Finish = func(d store.Digests) (store.Seal, error) { return u.seal(d, partChecksums) }
	part.NoMD5 = r.rdma != nil
	var p store.Part
	err = g.receive(ctx, r, u, func() (err error) {
		p, err = g.store.PutPart(ctx, part)
		return err
	})
	if err != nil {
		return nil, err
	}
	resp := &response{}
	if r.rdma != nil {
		r.rdma.answer(resp, p.SizeBytes)
	}
	resp.set("ETag", quote(p.ETag))
	if len(p.Checksums) > 0 {
		resp.set(p.Checksums[0].Algorithm.HeaderKey(), checksum.Encode(p.Checksums[0].Value))
	}
	return resp, nil
}

func (g *Gateway) uploadPartCopy(ctx context.Context, _ Principal, r *request) (*response, error) {
	part, up, err := g.partTarget(ctx, r)
	if err != nil {
		return nil, err
	}
	s, _, err := g.openSource(ctx, r)
	if err != nil {
		return nil, err
	}
	if header := r.Header("X-Amz-Copy-Source-Range"); header != "" {
		s.span, err = wire.ParseCopyRange(header, s.info.SizeBytes)
	}
	if err == nil && s.span.Length > store.MaxPutBytes {
		err = &wire.Error{Code: wire.EntityTooLarge}
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	algorithm, _ := uploadChecksum(up.Attributes)
	if algorithm == checksum.None {
		algorithm = checksum.CRC64NVME
	}
	var p store.Part
	err = s.stream(ctx, func(body io.Reader) error {
		h := newHashed(body, algorithm)
		part.SizeBytes, part.Body = s.span.Length, h
		part.Finish = func(d store.Digests) (store.Seal, error) {
			return store.Seal{Checksums: partChecksums(h.sum(d), d)}, nil
		}
		var err error
		p, err = g.store.PutPart(ctx, part)
		return err
	})
	if err != nil {
		return nil, err
	}
	x := wire.NewXML("CopyPartResult")
	x.Time("LastModified", p.Modified)
	x.ETag(p.ETag)
	x.PartChecksum(&p, algorithm)
	x.Close("CopyPartResult")
	return document(x.Bytes()), nil
}

func (g *Gateway) abortMultipartUpload(ctx context.Context, _ Principal, r *request) (*response, error) {
	err := g.store.AbortUpload(ctx, r.Bucket, r.Key, r.Query.Get("uploadId"))
	if err != nil {
		return nil, g.orNoBucket(ctx, r, err)
	}
	return &response{status: http.StatusNoContent}, nil
}

func (g *Gateway) listParts(ctx context.Context, _ Principal, r *request) (*response, error) {
	id := r.Query.Get("uploadId")
	limit, err := r.Query.Count("max-parts", store.MaxListEntries, store.MaxListEntries)
	if err != nil {
		return nil, err
	}
	after, err := r.Query.Count("part-number-marker", 0, store.MaxPartNumber)
	if err != nil {
		return nil, err
	}
	u, err := g.store.Upload(ctx, r.Bucket, r.Key, id)
	if err != nil {
		return nil, g.orNoBucket(ctx, r, err)
	}
	parts, more, err := g.store.ListParts(ctx, r.Bucket, r.Key, id, after, limit)
	if err != nil {
		return nil, err
	}
	owner := g.config.Accounts.Account(u.Owner)
	algorithm, kind := uploadChecksum(u.Attributes)
	x := wire.NewXML("ListPartsResult")
	x.Text("Bucket", r.Bucket)
	x.Key("Key", r.Key, strings.EqualFold(r.Query.Get("encoding-type"), "url"))
	x.Text("UploadId", id)
	x.Owner("Initiator", owner.ID, owner.DisplayName)
	x.Owner("Owner", owner.ID, owner.DisplayName)
	x.Text("StorageClass", wire.StorageClass)
	x.ChecksumKind(algorithm, kind)
	x.Int("PartNumberMarker", int64(after))
	if more {
		x.Int("NextPartNumberMarker", int64(parts[len(parts)-1].Number))
	}
	x.Int("MaxParts", int64(limit))
	x.Bool("IsTruncated", more)
	for i := range parts {
		p := &parts[i]
		x.Open("Part")
		x.Int("PartNumber", int64(p.Number))
		x.Time("LastModified", p.Modified)
		x.ETag(p.ETag)
		x.Int("Size", p.SizeBytes)
		x.PartChecksum(p, algorithm)
		x.Close("Part")
	}
	x.Close("ListPartsResult")
	return document(x.Bytes()), nil
}
