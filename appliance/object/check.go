package object

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/millrace/millrace/appliance/erasure"
	"github.com/millrace/millrace/appliance/record"
	"github.com/millrace/millrace/nvme/shardstore"
)

// maxFaults bounds the faults of a report.
const maxFaults = 1000

// FaultKind sorts faults by what is wrong.
type FaultKind string

// The kinds of faults.
const (
	// DriveFault: a drive's own structure is not sound: extents that overlap, space that leaked.
	DriveFault FaultKind = "drive"
	// DataFault: blocks of a shard do not match their checksums, or can't be read.
	DataFault FaultKind = "data"
	// RecordFault: a record does not decode, or says what can't be.
	RecordFault FaultKind = "record"
	// ReplicaFault: the members of a group do not hold the same records.
	ReplicaFault FaultKind = "replica"
	// PlaceFault: a drive holds records of a group that is not its own.
	PlaceFault FaultKind = "place"
	// MissingFault: a record refers to a shard that is not there, or is another.
	MissingFault FaultKind = "missing"
	// OrphanFault: nothing refers to a shard that is there.
	OrphanFault FaultKind = "orphan"
	// LostFault: fewer shards of a segment are whole than it takes to read it.
	LostFault FaultKind = "lost"
)

// Fault is one thing that is wrong.
type Fault struct {
	Kind FaultKind
	Slot int // the drive that it was found on; -1 if it is of no single drive
	Text string
}

// String says what is wrong and where.
func (f Fault) String() string {
	if f.Slot < 0 {
		return f.Text
	}
	return fmt.Sprintf("slot %d: %s", f.Slot, f.Text)
}

// CheckReport is what a check of a pool found.
type CheckReport struct {
	Records, Segments, Shards int
	// Degraded segments can be read, but a shard of theirs is damaged, missing or on a drive that isn't here.
	Degraded int
	Faults   []Fault // at most maxFaults of them
	// FaultCount is the number of all faults, by kind.
	FaultCount map[FaultKind]int
}

func (r *CheckReport) fault(kind FaultKind, slot int, format string, args ...any) {
	r.FaultCount[kind]++
	if len(r.Faults) < maxFaults {
		r.Faults = append(r.Faults, Fault{kind, slot, fmt.Sprintf(format, args...)})
	}
}

// Check compares everything that the pool's records say with each other and with what is on the drives: all
// members of a group hold the same records, every record decodes, every shard that a record
// refers to is there, every shard that is there is referred to, every drive's own structure is sound. With deep,
// every shard is read too, of all drives at once. Nothing may change meanwhile. It holds the identities of all
// shards in memory: about 100 bytes for each.
func (e *Engine) Check(ctx context.Context, deep bool) (*CheckReport, error) {
	c := &checker{e: e, report: &CheckReport{FaultCount: map[FaultKind]int{}},
		want: make([]map[shardstore.ShardID]wanted, len(e.stores)), bad: map[shardstore.SegmentID]badShards{},
		damaged: make([]map[shardstore.ShardID]bool, len(e.stores))}
	for slot := range c.want {
		c.want[slot], c.damaged[slot] = map[shardstore.ShardID]wanted{}, map[shardstore.ShardID]bool{}
	}
	if err := c.drives(ctx, deep); err != nil {
		return nil, err
	}
	var err error
	if c.freed, err = e.findFreed(ctx); err != nil {
		return nil, fmt.Errorf("check: free records: %w", err)
	}
	in := e.view.Load().AllIn()
	for _, slot := range in {
		if err := c.records(ctx, slot); err != nil {
			return nil, fmt.Errorf("check slot %d: %w", slot, err)
		}
	}
	for slot := range c.want {
		if err := c.shards(ctx, uint8(slot), slices.Contains(in, uint8(slot))); err != nil {
			return nil, fmt.Errorf("check slot %d: %w", slot, err)
		}
	}
	return c.report, c.redundancy(ctx)
}

type checker struct {
	e       *Engine
	report  *CheckReport
	want    []map[shardstore.ShardID]wanted // by slot: the shards that should be there
	damaged []map[shardstore.ShardID]bool   // by slot: shards with bad blocks
	bad     map[shardstore.SegmentID]badShards
	freed   *freedUploads
}

// wanted is what a record says of a shard.
type wanted struct {
	sizeBytes int64
	parity    uint8 // of its segment
	freed     bool  // only a free record refers to it: it may be gone already
}

// badShards counts the shards of a segment that can't be read now.
type badShards struct{ count, parity int }

// drives lets every drive check its own structure, and with deep its data.
func (c *checker) drives(ctx context.Context, deep bool) error {
	errs := make([]error, len(c.e.stores))
	var mu sync.Mutex
	var wg sync.WaitGroup
	for slot := range c.e.stores {
		s := c.e.live(uint8(slot))
		if s == nil {
			continue
		}
		wg.Go(func() {
			found, err := s.Verify(ctx, deep)
			if err != nil {
				errs[slot] = fmt.Errorf("check slot %d: %w", slot, err)
			}
			mu.Lock()
			defer mu.Unlock()
			for _, p := range found.Problems {
				var sum *shardstore.ChecksumError
				if errors.As(p, &sum) {
					c.damaged[slot][sum.Shard] = true
					c.report.fault(DataFault, slot, "%v", p)
				} else {
					c.report.fault(DriveFault, slot, "%v", p)
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// records checks the grouped records of one drive.
func (c *checker) records(ctx context.Context, slot uint8) error {
	f := &filler{e: c.e, view: c.e.view.Load()}
	return f.walk(ctx, slot, func(slot uint8, group int, keys [][]byte) error {
		targets, reads := f.view.Targets(group), f.view.Reads(group)
		if !slices.Contains(targets, slot) {
			if f.view.Unswept || f.view.NeedsFill() {
				return nil // they are still to be taken from it
			}
			c.report.fault(PlaceFault, int(slot), "%d records of group %d, which is not its own, like %s", len(keys), group,
				c.e.nameOf(keys[0]))
			return nil
		}
		if !slices.Contains(reads, slot) {
			return nil
		}
		for _, k := range keys {
			if err := c.record(slot, group, k, reads); err != nil {
				return err
			}
		}
		return nil
	})
}

// record checks one record, against the other members', and notes the shards it refers to when
// the drive leads the group.
func (c *checker) record(slot uint8, group int, key []byte, reads []uint8) error {
	value, err := c.e.stores[slot].Get(key, nil)
	if err != nil {
		return err
	}
	freed := c.freed.has(key)
	for _, other := range reads {
		v, err := c.e.stores[other].Get(key, nil)
		if errors.Is(err, shardstore.ErrNotFound) {
			if freed {
				continue
			}
			c.report.fault(ReplicaFault, int(slot), "it has the record of %s, and slot %d has it not", c.e.nameOf(key), other)
		} else if err != nil {
			return err
		} else if !bytes.Equal(v, value) {
			c.report.fault(ReplicaFault, int(slot), "it and slot %d differ in the record of %s", other, c.e.nameOf(key))
		}
	}
	if reads[0] != slot && !freed {
		return nil
	}
	if reads[0] == slot {
		c.report.Records++
	}
	layouts, err := layoutsIn(key, value)
	if err != nil {
		c.report.fault(RecordFault, int(slot), "%s: %v", c.e.nameOf(key), err)
	}
	for i := range layouts {
		c.layout(slot, group, &layouts[i], freed)
	}
	if record.KindOf(key) == record.ObjectRecord {
		return c.multipart(slot, group, key, value)
	}
	return nil
}

// layoutsIn gives the layouts of a record.
func layoutsIn(key, value []byte) ([]record.Layout, error) {
	switch record.KindOf(key) {
	case record.ObjectRecord:
		o, err := record.DecodeObject(value)
		if err != nil || o.IsMultipart() {
			return nil, err
		}
		return []record.Layout{o.Layout}, nil
	case record.PartRecord:
		p, err := record.DecodePart(value)
		if err != nil {
			return nil, err
		}
		return []record.Layout{p.Layout}, nil
	case record.FreeRecord:
		f, err := record.DecodeFree(value)
		if err != nil {
			return nil, err
		}
		return f.Layouts, nil
	}
	return nil, nil
}

func (c *checker) layout(slot uint8, group int, l *record.Layout, freed bool) {
	if l.Inline {
		if _, err := c.e.inlineBody(group, l); err != nil && !freed {
			c.report.fault(RecordFault, int(slot), "inline body %x: %v", l.Instance, err)
		}
		return
	}
	for i, seg := range l.Segments {
		size := min(erasure.SegmentBytes, l.SizeBytes-int64(i)*erasure.SegmentBytes)
		geo, err := erasure.NewGeometry(seg.Scheme, size)
		if err != nil {
			c.report.fault(RecordFault, int(slot), "segment %d of %x: %v", i, l.Instance, err)
			continue
		}
		if !freed {
			c.report.Segments++
		}
		w := wanted{sizeBytes: geo.ShardBytes(), parity: uint8(seg.Scheme.Parity), freed: freed}
		for index, at := range seg.Slots {
			id := shardstore.ShardID{Segment: shardstore.SegmentID(l.Instance.Segment(i)), Index: uint8(index)}
			if int(at) >= len(c.want) {
				c.report.fault(RecordFault, int(slot), "segment %d of %x names slot %d", i, l.Instance, at)
				c.spoil(id, w)
				continue
			}
			c.want[at][id] = w
		}
	}
}

func (c *checker) spoil(id shardstore.ShardID, w wanted) {
	b := c.bad[id.Segment]
	c.bad[id.Segment] = badShards{b.count + 1, int(w.parity)}
}

// shards compares the shards of a drive with those that records refer to. On a drive that is out the
// comparison is of no account: it is made when the drive is asked in.
func (c *checker) shards(ctx context.Context, slot uint8, in bool) error {
	want := c.want[slot]
	missing := maps.Clone(want)
	if s := c.e.live(slot); s != nil {
		err := s.Shards(shardstore.ShardID{}, func(id shardstore.ShardID, info shardstore.ShardInfo) error {
			w, ok := want[id]
			switch {
			case !ok && in:
				c.report.fault(OrphanFault, int(slot), "nothing refers to shard %v of %d bytes", id, info.SizeBytes)
			case ok && w.sizeBytes != info.SizeBytes:
				c.report.fault(MissingFault, int(slot), "shard %v has %d bytes, not %d", id, info.SizeBytes, w.sizeBytes)
				return nil
			}
			if ok && !c.damaged[slot][id] {
				delete(missing, id)
			}
			c.report.Shards++
			return ctx.Err()
		})
		if err != nil {
			return err
		}
	}
	for id, w := range missing {
		if w.freed {
			continue
		}
		c.spoil(id, w)
		if in && !c.damaged[slot][id] {
			c.report.fault(MissingFault, int(slot), "shard %v is missing", id)
		}
	}
	return nil
}

// redundancy counts the segments that are degraded, and names the objects whose segments are lost.
func (c *checker) redundancy(ctx context.Context) error {
	lost := 0
	for _, b := range c.bad {
		if b.count > b.parity {
			lost++
		}
	}
	c.report.Degraded = len(c.bad) - lost
	if lost == 0 {
		return nil
	}
	f := &filler{e: c.e, view: c.e.view.Load()}
	for _, slot := range f.view.AllIn() {
		err := f.walk(ctx, slot, func(slot uint8, group int, keys [][]byte) error {
			if f.view.Lead(group) != int(slot) {
				return nil
			}
			return c.nameLost(slot, keys)
		})
		if err != nil {
			return fmt.Errorf("check slot %d: %w", slot, err)
		}
	}
	return nil
}

func (c *checker) nameLost(slot uint8, keys [][]byte) error {
	for _, key := range keys {
		if c.freed.has(key) {
			continue // nobody will miss it
		}
		value, err := c.e.stores[slot].Get(key, nil)
		if err != nil {
			return err
		}
		layouts, err := layoutsIn(key, value)
		if err != nil {
			continue // reported before
		}
		for _, l := range layouts {
			for i, seg := range l.Segments {
				b := c.bad[shardstore.SegmentID(l.Instance.Segment(i))]
				if b.count > seg.Scheme.Parity {
					c.report.fault(LostFault, -1, "%s: segment %d has %d of %d shards left and needs %d", c.e.nameOf(key), i,
						len(seg.Slots)-b.count, len(seg.Slots), seg.Scheme.Data)
				}
			}
		}
	}
	return nil
}

// nameOf says to a person what an object's or part's record is about.
func (e *Engine) nameOf(key []byte) string {
	bucket, name, named, err := record.NameOfKey(key)
	if err != nil || !named {
		return fmt.Sprintf("record %q", key)
	}
	return fmt.Sprintf("s3://%s/%s", e.bucketName(bucket), name)
}

// bucketName gives the name of a bucket by its number.
func (e *Engine) bucketName(id uint64) string {
	e.buckets.mu.RLock()
	defer e.buckets.mu.RUnlock()
	for name, b := range e.buckets.byName {
		if b.id == id {
			return name
		}
	}
	return fmt.Sprintf("(bucket %d)", id)
}
