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

// Repair is the state of a repair of the pool: a walk over all index records, drive by drive, that counts the segments
// that miss shards, then one for each number of missing shards, the greatest first, that mends them.
type Repair struct {
	Epoch uint64 // of the map that the repair is for; the state is worthless under another
	Begun time.Time
	// Level is the number of missing shards that this walk is for; 0: it counts.
	Level uint8
	// Most is the greatest number of missing shards that was counted.
	Most uint8
	// Slot and Key say where the walk is: Key is the last one that is done.
	Slot uint8
	Key  []byte
	// What there was to do when it was counted, and what of it is done.
	Segments, SegmentsDone uint64
	Bytes, BytesDone       uint64
}

// AppendRepair appends the encoded record to dst.
func AppendRepair(dst []byte, r *Repair) []byte {
	e := encoder{dst}
	e.byte(version)
	e.uvarint(r.Epoch)
	e.moment(r.Begun)
	e.raw([]byte{r.Level, r.Most, r.Slot})
	e.string(string(r.Key))
	for _, n := range []uint64{r.Segments, r.SegmentsDone, r.Bytes, r.BytesDone} {
		e.uvarint(n)
	}
	return e.b
}

// DecodeRepair decodes the state of a repair.
func DecodeRepair(b []byte) (*Repair, error) {
	d := decoder{b: b}
	d.version()
	r := &Repair{Epoch: d.uvarint(), Begun: d.moment(), Level: d.byte(), Most: d.byte(), Slot: d.byte(), Key: []byte(d.string())}
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
