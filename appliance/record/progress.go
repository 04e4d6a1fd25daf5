package record

import "time"

// Scrub is the state of a drive's scrub, kept on that drive.
type Scrub struct {
	Begun    time.Time // zero: none is under way
	Finished time.Time // when the last one ended; zero: never
	// Segment and Index name the shard that was read last.
	Segment [16]byte
	Index   uint8
	// Shards, Bytes and Damaged count what the scrub under way, or else the last, has read and found.
	Shards, Bytes, Damaged uint64
}

// AppendScrub appends the encoded record to dst.
func AppendScrub(dst []byte, s *Scrub) []byte {
	e := encoder{dst}
	e.byte(version)
	e.moment(s.Begun)
	e.moment(s.Finished)
	e.raw(s.Segment[:])
	e.byte(s.Index)
	e.uvarint(s.Shards)
	e.uvarint(s.Bytes)
	e.uvarint(s.Damaged)
	return e.b
}

// DecodeScrub decodes the state of a scrub.
func DecodeScrub(b []byte) (*Scrub, error) {
	d := decoder{b: b}
	d.version()
	s := &Scrub{Begun: d.moment(), Finished: d.moment()}
	copy(s.Segment[:], d.bytes(len(s.Segment)))
	s.Index = d.byte()
	s.Shards, s.Bytes, s.Damaged = d.uvarint(), d.uvarint(), d.uvarint()
	if err := d.end(); err != nil {
		return nil, err
	}
	return s, nil
}

// Repair is the state of a repair: a walk over all index records, drive by drive, for the segments that miss at
// least Missing shards; then again for those that miss fewer.
type Repair struct {
	// Epoch and Lost say what the repair is for: the map, and the slots whose shards are made anew elsewhere. The state
	// is worthless under others.
	Epoch uint64
	Lost  []uint8
	Begun time.Time
	// Missing, Slot and Key say where the walk is: Key is the last one that is done.
	Missing int
	Slot    uint8
	Key     []byte
	// What there was to do at the beginning, and what of it is done.
	Segments, SegmentsDone uint64
	Bytes, BytesDone       uint64
}

// AppendRepair appends the encoded record to dst.
func AppendRepair(dst []byte, r *Repair) []byte {
	e := encoder{dst}
	e.byte(version)
	e.uvarint(r.Epoch)
	e.string(string(r.Lost))
	e.moment(r.Begun)
	e.uvarint(uint64(r.Missing))
	e.byte(r.Slot)
	e.string(string(r.Key))
	e.uvarint(r.Segments)
	e.uvarint(r.SegmentsDone)
	e.uvarint(r.Bytes)
	e.uvarint(r.BytesDone)
	return e.b
}

// DecodeRepair decodes the state of a repair.
func DecodeRepair(b []byte) (*Repair, error) {
	d := decoder{b: b}
	d.version()
	r := &Repair{Epoch: d.uvarint(), Lost: []uint8(d.string()), Begun: d.moment()}
	missing := d.uvarint()
	if missing > 255 {
		d.fail("missing shards")
	}
	r.Missing, r.Slot, r.Key = int(missing), d.byte(), []byte(d.string())
	r.Segments, r.SegmentsDone, r.Bytes, r.BytesDone = d.uvarint(), d.uvarint(), d.uvarint(), d.uvarint()
	if err := d.end(); err != nil {
		return nil, err
	}
	return r, nil
}

// moment writes a time to the millisecond; the zero time as 0.
func (e *encoder) moment(t time.Time) {
	if t.IsZero() {
		e.varint(0)
		return
	}
	e.varint(t.UnixMilli())
}

func (d *decoder) moment() time.Time {
	ms := d.varint()
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}
