// Package record holds the engine's records and their keys: what an object, a part, an upload
// and the engine's bookkeeping look like in a drive's ordered records. docs/on-disk-format.md
// has the byte tables.
//
// It does no I/O and knows no drive. Invariant: decoding what was encoded gives the same value, decoding anything
// else gives ErrInvalid, ErrNewer or a value within the limits, and keys sort as the things that they name do.
package record

import (
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/appliance/erasure"
	"github.com/millrace/millrace/s3/store"
)

// ErrInvalid marks bytes that are not a record of the kind asked for.
var ErrInvalid = errors.New("invalid record")

// ErrNewer marks a record that a newer version has written.
var ErrNewer = errors.New("record of a newer version")

// version is the first byte of every record.
const version = 1

const (
	flagUpload = 1 << 0 // made by a multipart upload
	flagInline = 1 << 1 // the bytes are in a body record
)

// Instance identifies one stored run of bytes (an object's or a part's), for ever: 96 random bits.
type Instance [12]byte

// Segment says how one segment is coded and on which slots its shards are, in shard order.
type Segment struct {
	Scheme erasure.Scheme
	Slots  []uint8
}

// Layout says where a run of bytes is. Segment i has the identity Instance+i; all but the last
// are erasure.SegmentBytes long.
type Layout struct {
	Instance  Instance
	SizeBytes int64
	Inline    bool // the bytes are the body record of the instance; no segments
	Segments  []Segment
}

// Object is the index record of one version of an object.
type Object struct {
	Seq      uint64
	Size     int64
	Modified time.Time
	ETag     string
	// Upload is the upload that made the object, whose manifest and part records say where
	// the bytes are; if it is zero, Layout says so.
	Upload       UploadID
	Layout       Layout
	Checksums    []store.Checksum
	System, User map[string]string
	Attributes   map[string][]byte
}

// Part is the record of one uploaded part.
type Part struct {
	Part   store.Part // Number and the rest as listed
	Layout Layout
}

// IsMultipart says whether the object was made by a multipart upload.
func (o *Object) IsMultipart() bool { return o.Upload != UploadID{} }

// AppendObject appends the encoded record to dst.
func AppendObject(dst []byte, o *Object) []byte {
	e := encoder{dst}
	flags := byte(0)
	if o.IsMultipart() {
		flags |= flagUpload
	}
	e.byte(version)
	e.byte(flags)
	e.uvarint(o.Seq)
	e.uvarint(uint64(o.Size))
	e.varint(o.Modified.UnixMilli())
	e.string(o.ETag)
	e.checksums(o.Checksums)
	if o.IsMultipart() {
		e.raw(o.Upload[:])
	} else {
		e.layout(&o.Layout)
	}
	e.stringMap(o.System)
	e.stringMap(o.User)
	e.bytesMap(o.Attributes)
	return e.b
}

// DecodeObject decodes a whole object record.
func DecodeObject(b []byte) (*Object, error) {
	o := &Object{}
	d := decoder{b: b}
	flags := d.objectHead(o)
	if flags&flagUpload != 0 {
		copy(o.Upload[:], d.bytes(len(o.Upload)))
	} else {
		d.layout(&o.Layout)
	}
	o.System = d.stringMap()
	o.User = d.stringMap()
	o.Attributes = d.bytesMap()
	if err := d.end(); err != nil {
		return nil, err
	}
	return o, nil
}

// DecodeListed decodes only what a listing shows: sequence, size, time, ETag and checksums.
func DecodeListed(b []byte, o *Object) error {
	d := decoder{b: b}
	d.objectHead(o)
	return d.err
}

func (d *decoder) objectHead(o *Object) (flags byte) {
	d.version()
	flags = d.byte()
	o.Seq = d.uvarint()
	o.Size = d.size()
	o.Modified = time.UnixMilli(d.varint()).UTC()
	o.ETag = d.string()
	o.Checksums = d.checksums()
	return flags
}

// AppendPart appends the encoded part record to dst.
func AppendPart(dst []byte, p *Part) []byte {
	e := encoder{dst}
	e.byte(version)
	e.listedPart(&p.Part)
	e.layout(&p.Layout)
	return e.b
}

// DecodePart decodes a part record.
func DecodePart(b []byte) (*Part, error) {
	p := &Part{}
	d := decoder{b: b}
	d.version()
	d.listedPart(&p.Part)
	d.layout(&p.Layout)
	if err := d.end(); err != nil {
		return nil, err
	}
	return p, nil
}

// AppendManifest appends the encoded list of a multipart object's parts.
func AppendManifest(dst []byte, parts []store.Part) []byte {
	e := encoder{dst}
	e.byte(version)
	e.uvarint(uint64(len(parts)))
	for i := range parts {
		e.listedPart(&parts[i])
	}
	return e.b
}

// DecodeManifest decodes a manifest.
func DecodeManifest(b []byte) ([]store.Part, error) {
	d := decoder{b: b}
	d.version()
	parts := make([]store.Part, d.count(maxParts))
	for i := range parts {
		d.listedPart(&parts[i])
	}
	if err := d.end(); err != nil {
		return nil, err
	}
	return parts, nil
}

// AppendUpload appends the encoded record of an upload in progress. Bucket, key and ID are in
// its key.
func AppendUpload(dst []byte, u *store.Upload) []byte {
	e := encoder{dst}
	e.byte(version)
	e.varint(u.Initiated.UnixMilli())
	e.string(u.Owner)
	e.stringMap(u.System)
	e.stringMap(u.User)
	e.bytesMap(u.Attributes)
	return e.b
}

// DecodeUpload decodes an upload record into u.
func DecodeUpload(b []byte, u *store.Upload) error {
	d := decoder{b: b}
	d.version()
	u.Initiated = time.UnixMilli(d.varint()).UTC()
	u.Owner = d.string()
	u.System = d.stringMap()
	u.User = d.stringMap()
	u.Attributes = d.bytesMap()
	return d.end()
}

func (d *decoder) version() {
	switch v := d.byte(); {
	case v > version && d.err == nil:
		d.err = fmt.Errorf("%w: it has version %d, this program reads up to %d", ErrNewer, v, version)
		d.b = nil
	case v != version:
		d.fail("version")
	}
}

func (d *decoder) size() int64 {
	v := d.uvarint()
	if v > store.MaxObjectBytes {
		d.fail("size")
		return 0
	}
	return int64(v)
}

func (e *encoder) listedPart(p *store.Part) {
	e.uvarint(uint64(p.Number))
	e.uvarint(uint64(p.SizeBytes))
	e.varint(p.Modified.UnixMilli())
	e.string(p.ETag)
	e.checksums(p.Checksums)
}

func (d *decoder) listedPart(p *store.Part) {
	n := d.uvarint()
	if n < 1 || n > store.MaxPartNumber {
		d.fail("part number")
	}
	p.Number = int(n)
	p.SizeBytes = d.size()
	p.Modified = time.UnixMilli(d.varint()).UTC()
	p.ETag = d.string()
	p.Checksums = d.checksums()
}

func (e *encoder) layout(l *Layout) {
	flags := byte(0)
	if l.Inline {
		flags = flagInline
	}
	e.byte(flags)
	e.raw(l.Instance[:])
	e.uvarint(uint64(l.SizeBytes))
	if l.Inline {
		return
	}
	e.uvarint(uint64(len(l.Segments)))
	for _, s := range l.Segments {
		e.byte(byte(s.Scheme.Data))
		e.byte(byte(s.Scheme.Parity))
		e.raw(s.Slots)
	}
}

func (d *decoder) layout(l *Layout) {
	l.Inline = d.byte()&flagInline != 0
	copy(l.Instance[:], d.bytes(len(l.Instance)))
	l.SizeBytes = d.size()
	if l.Inline {
		return
	}
	want := int((l.SizeBytes + erasure.SegmentBytes - 1) / erasure.SegmentBytes)
	if n := d.count(want); n != want {
		d.fail("segment count")
		return
	}
	l.Segments = make([]Segment, want)
	for i := range l.Segments {
		s := &l.Segments[i]
		s.Scheme = erasure.Scheme{Data: int(d.byte()), Parity: int(d.byte())}
		if s.Scheme.Validate() != nil {
			d.fail("scheme")
			return
		}
		s.Slots = append([]uint8(nil), d.bytes(s.Scheme.Data+s.Scheme.Parity)...)
	}
}
