package inspect

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/millrace/millrace/appliance/record"
)

// bucketPrefix begins the names of the configuration records of buckets.
const bucketPrefix = "bucket/"

// choice is what belongs to the bucket, or to the key of it, that a filter names; and the names of all buckets.
type choice struct {
	buckets   map[uint64]string
	filter    *Filter
	instances map[record.Instance]bool
	uploads   map[record.UploadID]bool
}

// choose finds the bucket's name on the drives, and what its keys refer to.
func (d *Drives) choose(f *Filter) (*choice, error) {
	c := &choice{buckets: map[uint64]string{}, filter: f, instances: map[record.Instance]bool{},
		uploads: map[record.UploadID]bool{}}
	if err := d.each(record.ConfigRecord, c.learnBucket); err != nil || f.Bucket == "" {
		return c, err
	}
	// Parts come last: which uploads are chosen must be known.
	for _, kind := range []record.Kind{record.ObjectRecord, record.UploadRecord, record.PartRecord} {
		if err := d.each(kind, c.learn); err != nil {
			return c, err
		}
	}
	return c, nil
}

// each calls f with the records of a kind on all drives.
func (d *Drives) each(kind record.Kind, f func(key, value []byte)) error {
	r := record.RangeOf(kind)
	for _, dr := range d.List {
		if dr.store == nil {
			continue
		}
		it, err := dr.store.Scan(r.Lower, r.Upper)
		if err != nil {
			return err
		}
		for it.First(); it.Valid(); it.Next() {
			value, err := it.Value()
			if err != nil {
				break
			}
			f(it.Key(), value)
		}
		if err := it.Close(); err != nil {
			return err
		}
	}
	return nil
}

func (c *choice) learnBucket(key, value []byte) {
	var bucket struct {
		ID uint64 `json:"id"`
	}
	if name, ok := strings.CutPrefix(record.ConfigName(key), bucketPrefix); ok && json.Unmarshal(value, &bucket) == nil {
		c.buckets[bucket.ID] = name
	}
}

// named says whether an S3 key is chosen.
func (c *choice) named(bucket uint64, key string) bool {
	return c.buckets[bucket] == c.filter.Bucket && (c.filter.Key == "" || c.filter.Key == key)
}

// learn notes what a chosen record refers to.
func (c *choice) learn(key, value []byte) {
	switch record.KindOf(key) {
	case record.ObjectRecord:
		o, err := record.DecodeObject(value)
		if err != nil || !c.has(record.ObjectRecord, key, value) {
			return
		}
		if o.IsMultipart() {
			c.uploads[o.Upload] = true
		} else {
			c.instances[o.Layout.Instance] = true
		}
	case record.UploadRecord:
		if _, _, u, err := record.ParseUploadKey(key); err == nil && c.has(record.UploadRecord, key, value) {
			c.uploads[u] = true
		}
	case record.PartRecord:
		p, err := record.DecodePart(value)
		if _, u, _, keyErr := record.ParsePartKey(key); err == nil && keyErr == nil && c.uploads[u] {
			c.instances[p.Layout.Instance] = true
		}
	}
}

// has says whether a record belongs to what is chosen.
func (c *choice) has(kind record.Kind, key, value []byte) bool {
	switch kind {
	case record.ConfigRecord:
		return c.filter.Key == "" && record.ConfigName(key) == bucketPrefix+c.filter.Bucket
	case record.ObjectRecord, record.UploadRecord:
		bucket, name, _, err := record.NameOfKey(key)
		return err == nil && c.named(bucket, name)
	case record.ManifestRecord:
		_, u, err := record.ParseManifestKey(key)
		return err == nil && c.uploads[u]
	case record.PartRecord:
		_, u, _, err := record.ParsePartKey(key)
		return err == nil && c.uploads[u]
	case record.BodyRecord:
		_, in, err := record.ParseBodyKey(key)
		return err == nil && c.instances[in]
	case record.OwnerRecord:
		o, err := record.DecodeOwner(value)
		return err == nil && c.named(o.Bucket, o.Key)
	case record.PendingRecord:
		segment, _, err := record.ParsePendingKey(key)
		in, _ := record.InstanceOf(segment)
		return err == nil && c.instances[in]
	case record.OpLogRecord:
		op, err := record.DecodeOp(value)
		return err == nil && c.hasAny(op.Keys)
	case record.FreeRecord:
		f, err := record.DecodeFree(value)
		if err != nil {
			return false
		}
		for _, l := range f.Layouts {
			if c.instances[l.Instance] {
				return true
			}
		}
		return c.uploads[f.Upload]
	}
	return false
}

// hasAny says whether one of the keys that a mutation touched is chosen.
func (c *choice) hasAny(keys [][]byte) bool {
	for _, key := range keys {
		kind := record.KindOf(key)
		if kind != record.OwnerRecord && kind != record.FreeRecord && c.has(kind, bytes.Clone(key), nil) {
			return true
		}
	}
	return false
}
