package object

import (
	"context"
	"errors"
	"fmt"

	"github.com/millrace/millrace/appliance/record"
	"github.com/millrace/millrace/nvme/shardstore"
)

// freedUploads knows the uploads that are named by free records. Their parts and manifests go with the free
// record, by commits that a crash may undo on some of the drives, and the parts' shards before it: it may all wait for
// a drive that is away, the one half of it done.
type freedUploads struct {
	uploads map[record.UploadID]bool
	bodies  map[record.Instance]bool // of their inline parts
}

// findFreed looks at all free records of the drives that are in.
func (e *Engine) findFreed(ctx context.Context) (*freedUploads, error) {
	f := &freedUploads{uploads: map[record.UploadID]bool{}, bodies: map[record.Instance]bool{}}
	for _, slot := range e.view.Load().AllIn() {
		if err := f.learn(ctx, e.stores[slot]); err != nil {
			return nil, err
		}
	}
	return f, nil
}

func (f *freedUploads) learn(ctx context.Context, s *shardstore.Store) error {
	it, err := s.Scan(record.FreePrefix(), record.PrefixEnd(record.FreePrefix()))
	if err != nil {
		return err
	}
	defer it.Close()
	for it.First(); it.Valid(); it.Next() {
		value, err := it.Value()
		if err != nil {
			return err
		}
		free, err := record.DecodeFree(value)
		if err != nil || free.Upload == (record.UploadID{}) {
			continue // a record that can't be read is reported by the check itself
		}
		f.uploads[free.Upload] = true
		err = eachPartOn(s, free.Group, free.Upload, 0, func(p *record.Part) bool {
			if p.Layout.Inline {
				f.bodies[p.Layout.Instance] = true
			}
			return ctx.Err() == nil
		})
		if err != nil {
			return err
		}
	}
	return it.Err()
}

// has says whether a record is freed with an upload, or is what frees something.
func (f *freedUploads) has(key []byte) bool {
	switch record.KindOf(key) {
	case record.FreeRecord:
		return true
	case record.PartRecord:
		_, u, _, err := record.ParsePartKey(key)
		return err == nil && f.uploads[u]
	case record.ManifestRecord:
		_, u, err := record.ParseManifestKey(key)
		return err == nil && f.uploads[u]
	case record.BodyRecord:
		_, in, err := record.ParseBodyKey(key)
		return err == nil && f.bodies[in]
	}
	return false
}

// multipart checks that an object made of parts has its manifest and all of them, and that nothing is to free them.
func (c *checker) multipart(slot uint8, group int, key, value []byte) error {
	o, err := record.DecodeObject(value)
	if err != nil || !o.IsMultipart() {
		return nil // reported elsewhere
	}
	if c.freed.uploads[o.Upload] {
		c.report.fault(RecordFault, int(slot), "%s: its parts are to be freed", c.e.nameOf(key))
	}
	s := c.e.stores[slot]
	manifest, err := s.Get(record.ManifestKey(group, o.Upload), nil)
	if err != nil && !errors.Is(err, shardstore.ErrNotFound) {
		return err
	}
	parts, decodeErr := record.DecodeManifest(manifest)
	if err := errors.Join(err, decodeErr); err != nil {
		c.report.fault(RecordFault, int(slot), "%s: manifest: %v", c.e.nameOf(key), err)
		return nil
	}
	for _, p := range parts {
		_, err := s.Get(record.PartKey(group, o.Upload, p.Number), nil)
		if errors.Is(err, shardstore.ErrNotFound) {
			c.report.fault(RecordFault, int(slot), "%s: part %d is missing", c.e.nameOf(key), p.Number)
		} else if err != nil {
			return fmt.Errorf("part %d: %w", p.Number, err)
		}
	}
	return nil
}
