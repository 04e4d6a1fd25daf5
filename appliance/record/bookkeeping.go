package record

// maxKeys bounds the keys of an op-log entry, and the layouts of a free record.
const maxKeys = 1 << 15

// AllSlots is the group of an op-log entry whose keys are on every drive (configuration).
const AllSlots = 1<<16 - 1

// Op is an op-log entry: the keys that one mutation set or deleted, and their group.
type Op struct {
	Group int
	Keys  [][]byte
}

// AppendOp appends the encoded entry to dst.
func AppendOp(dst []byte, o *Op) []byte {
	e := encoder{dst}
	e.byte(version)
	e.uvarint(uint64(o.Group))
	e.uvarint(uint64(len(o.Keys)))
	for _, k := range o.Keys {
		e.uvarint(uint64(len(k)))
		e.raw(k)
	}
	return e.b
}

// DecodeOp decodes an op-log entry.
func DecodeOp(b []byte) (*Op, error) {
	d := decoder{b: b}
	d.version()
	o := &Op{Group: d.group()}
	o.Keys = make([][]byte, d.count(maxKeys))
	for i := range o.Keys {
		o.Keys[i] = append([]byte(nil), d.slice()...)
	}
	if err := d.end(); err != nil {
		return nil, err
	}
	return o, nil
}

// Free says what a mutation left behind, to be freed once no reader is left: runs of bytes, and
// the parts of a whole upload.
type Free struct {
	Group   int
	Layouts []Layout
	Upload  UploadID // if not zero: its part records with their layouts, and its manifest
}

// AppendFree appends the encoded record to dst.
func AppendFree(dst []byte, f *Free) []byte {
	e := encoder{dst}
	e.byte(version)
	e.uvarint(uint64(f.Group))
	e.raw(f.Upload[:])
	e.uvarint(uint64(len(f.Layouts)))
	for i := range f.Layouts {
		e.layout(&f.Layouts[i])
	}
	return e.b
}

// DecodeFree decodes a free record.
func DecodeFree(b []byte) (*Free, error) {
	d := decoder{b: b}
	d.version()
	f := &Free{Group: d.group()}
	copy(f.Upload[:], d.bytes(len(f.Upload)))
	f.Layouts = make([]Layout, d.count(maxKeys))
	for i := range f.Layouts {
		d.layout(&f.Layouts[i])
	}
	if err := d.end(); err != nil {
		return nil, err
	}
	return f, nil
}

// Owner names the record that refers to a segment.
type Owner struct {
	Bucket uint64
	Key    string
	Upload UploadID // zero: the object record itself
	Number int      // the part of Upload
}

// AppendOwner appends the encoded record to dst.
func AppendOwner(dst []byte, o *Owner) []byte {
	e := encoder{dst}
	e.byte(version)
	e.uvarint(o.Bucket)
	e.string(o.Key)
	e.raw(o.Upload[:])
	e.uvarint(uint64(o.Number))
	return e.b
}

// DecodeOwner decodes an owner record.
func DecodeOwner(b []byte) (*Owner, error) {
	d := decoder{b: b}
	d.version()
	o := &Owner{Bucket: d.uvarint(), Key: d.string()}
	copy(o.Upload[:], d.bytes(len(o.Upload)))
	n := d.uvarint()
	if n > maxParts {
		d.fail("part number")
	}
	o.Number = int(n)
	if err := d.end(); err != nil {
		return nil, err
	}
	return o, nil
}

// Watermark says how far a drive's op-log is settled, and from where on it is whole.
type Watermark struct {
	Seq     uint64 // all mutations up to it are complete
	Trimmed uint64 // entries before it may be gone
}

// AppendWatermark appends the encoded record to dst.
func AppendWatermark(dst []byte, w Watermark) []byte {
	e := encoder{append(dst, version)}
	e.uvarint(w.Seq)
	e.uvarint(w.Trimmed)
	return e.b
}

// DecodeWatermark decodes a watermark.
func DecodeWatermark(b []byte) (Watermark, error) {
	d := decoder{b: b}
	d.version()
	w := Watermark{Seq: d.uvarint(), Trimmed: d.uvarint()}
	return w, d.end()
}

func (d *decoder) group() int {
	g := d.uvarint()
	if g > AllSlots {
		d.fail("group")
		return 0
	}
	return int(g)
}
