package memstore

import (
	"bytes"
	"maps"
	"slices"

	"github.com/millrace/millrace/s3/store"
)

func cloneBucket(b store.Bucket) store.Bucket {
	b.Attributes = cloneAttributes(b.Attributes)
	return b
}

func cloneObject(o store.Object) store.Object {
	o.System = maps.Clone(o.System)
	o.User = maps.Clone(o.User)
	o.Attributes = cloneAttributes(o.Attributes)
	o.Checksums = cloneChecksums(o.Checksums)
	o.Parts = slices.Clone(o.Parts)
	for i := range o.Parts {
		o.Parts[i] = clonePart(o.Parts[i])
	}
	return o
}

func cloneUpload(u store.Upload) store.Upload {
	u.System = maps.Clone(u.System)
	u.User = maps.Clone(u.User)
	u.Attributes = cloneAttributes(u.Attributes)
	return u
}

func clonePart(p store.Part) store.Part {
	p.Checksums = cloneChecksums(p.Checksums)
	return p
}

func cloneChecksums(list []store.Checksum) []store.Checksum {
	list = slices.Clone(list)
	for i := range list {
		list[i].Value = bytes.Clone(list[i].Value)
	}
	return list
}

func cloneAttributes(m map[string][]byte) map[string][]byte {
	m = maps.Clone(m)
	for k, v := range m {
		m[k] = bytes.Clone(v)
	}
	return m
}
