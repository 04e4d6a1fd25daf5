package gateway

import (
	"context"

	"github.com/millrace/millrace/s3/checksum"
	"github.com/millrace/millrace/s3/store"
	"github.com/millrace/millrace/s3/wire"
)

// tagsAttribute is the name of the attribute that holds the tags of an object or a bucket, in the
// form of wire.FormatTags.
const tagsAttribute = "tags"

func tagAttributes(tags []wire.Tag) map[string][]byte {
	if len(tags) == 0 {
		return nil
	}
	return map[string][]byte{tagsAttribute: wire.FormatTags(tags)}
}

func (g *Gateway) putObject(ctx context.Context, _ Principal, r *request) (*response, error) {
	if err := refuseFeatures(r, false); err != nil {
		return nil, err
	}
	meta, err := wire.ParseMetadata(r.HTTP.Header)
	if err != nil {
		return nil, err
	}
	in, err := wire.ParseIntegrity(r.HTTP.Header)
	if err != nil {
		return nil, err
	}
	u, err := r.openUpload(in, checksum.None)
	if err != nil {
		return nil, err
	}
	// The client may wait for a 100 Continue: tell it now what would be in vain.
	if _, err := g.store.Bucket(ctx, r.Bucket); err != nil {
		return nil, err
	}
	var o store.Object
	err = g.receive(ctx, r, u, func() (err error) {
		o, err = g.store.Put(ctx, store.PutRequest{
			Bucket: r.Bucket, Key: r.Key, SizeBytes: u.sizeBytes,
			System: meta.System, User: meta.User, Attributes: tagAttributes(meta.Tags), Body: u,
			Finish: func(d store.Digests) (store.Seal, error) {
				return u.seal(d, func(sum store.Checksum, _ store.Digests) []store.Checksum { return []store.Checksum{sum} })
			},
			Precondition: writePrecondition(r), NoMD5: r.rdma != nil,
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	resp := &response{}
	if r.rdma != nil {
		r.rdma.answer(resp, o.SizeBytes)
	}
	resp.set("ETag", quote(o.ETag))
	setChecksums(resp, o.Checksums, &o)
	return resp, nil
}

// writePrecondition is what If-Match and If-None-Match ask for; nil if nothing.
func writePrecondition(r *request) store.Precondition {
	c := wire.ParseConditions(r.HTTP.Header)
	if !c.HasWrite() {
		return nil
	}
	return c.Write
}
