package object

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/millrace/millrace/appliance/erasure"
	"github.com/millrace/millrace/appliance/record"
	"github.com/millrace/millrace/nvme/shardstore"
)

// maxFaults bounds the faults of a report.
const maxFaults = 1000

// CheckReport is what a check of a pool found.
type CheckReport struct {
	Records, Segments, Shards int
	Faults                    []string // at most maxFaults, in words
}

func (r *CheckReport) fault(format string, args ...any) {
	if len(r.Faults) < maxFaults {
		r.Faults = append(r.Faults, fmt.Sprintf(format, args...))
	}
}

// Check compares everything that the pool's records say with each other and with what is on the drives: all
// members of a group hold the same records, every record decodes, every shard that a record
// refers to is there, every shard that is there is referred to, every drive's own structure is sound. With deep,
// every shard is read too. Nothing may change meanwhile. It holds the identities of all shards in memory.
func (e *Engine) Check(ctx context.Context, deep bool) (*CheckReport, error) {
	c := &checker{e: e, report: &CheckReport{}, want: make([]map[shardstore.ShardID]int64, len(e.stores))}
	for slot, s := range e.stores {
		c.want[slot] = map[shardstore.ShardID]int64{}
		if s == nil || s.Err() != nil {
			continue
		}
		found, err := s.Verify(ctx, deep)
		if err != nil {
			return nil, fmt.Errorf("check slot %d: %w", slot, err)
		}
		for _, p := range found.Problems {
			c.report.fault("slot %d: %v", slot, p)
		}
	}
	for _, slot := range e.view.Load().AllIn() {
		if err := c.records(ctx, slot); err != nil {
			return nil, fmt.Errorf("check slot %d: %w", slot, err)
		}
	}
	for _, slot := range e.view.Load().AllIn() {
		if err := c.shards(slot); err != nil {
			return nil, fmt.Errorf("check slot %d: %w", slot, err)
		}
	}
	return c.report, nil
}

type checker struct {
	e      *Engine
	report *CheckReport
	want   []map[shardstore.ShardID]int64 // by slot: the shards that should be there, with their sizes
}

// records checks the grouped records of one drive.
func (c *checker) records(ctx context.Context, slot uint8) error {
	f := &filler{e: c.e, view: c.e.view.Load()}
	return f.walk(ctx, slot, func(slot uint8, group int, keys [][]byte) error {
		targets, reads := f.view.Targets(group), f.view.Reads(group)
		if !slices.Contains(targets, slot) {
			c.report.fault("slot %d has %d records of group %d, which is not its own", slot, len(keys), group)
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
	for _, other := range reads {
		v, err := c.e.stores[other].Get(key, nil)
		if errors.Is(err, shardstore.ErrNotFound) {
			c.report.fault("slot %d has %q, slot %d has it not", slot, key, other)
		} else if err != nil {
			return err
		} else if !bytes.Equal(v, value) {
			c.report.fault("slots %d and %d differ in %q", slot, other, key)
		}
	}
	if reads[0] != slot {
		return nil
	}
	c.report.Records++
	layouts, err := layoutsIn(key, value)
	if err != nil {
		c.report.fault("slot %d: %q: %v", slot, key, err)
	}
	for i := range layouts {
		if err := c.layout(group, &layouts[i]); err != nil {
			return err
		}
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

func (c *checker) layout(group int, l *record.Layout) error {
	if l.Inline {
		body, err := c.e.inlineBody(group, l)
		if err != nil || int64(len(body)) != l.SizeBytes {
			c.report.fault("inline body %x: %v", l.Instance, err)
		}
		return nil
	}
	for i, seg := range l.Segments {
		size := min(erasure.SegmentBytes, l.SizeBytes-int64(i)*erasure.SegmentBytes)
		geo, err := erasure.NewGeometry(seg.Scheme, size)
		if err != nil {
			return err
		}
		c.report.Segments++
		for index, slot := range seg.Slots {
			if int(slot) >= len(c.want) {
				c.report.fault("segment %d of %x names slot %d", i, l.Instance, slot)
				continue
			}
			id := shardstore.ShardID{Segment: shardstore.SegmentID(l.Instance.Segment(i)), Index: uint8(index)}
			c.want[slot][id] = geo.ShardBytes()
		}
	}
	return nil
}

// shards compares the shards of a drive with those that records refer to.
func (c *checker) shards(slot uint8) error {
	missing := maps.Clone(c.want[slot])
	err := c.e.stores[slot].Shards(shardstore.ShardID{}, func(id shardstore.ShardID, info shardstore.ShardInfo) error {
		c.report.Shards++
		switch size, ok := c.want[slot][id]; {
		case !ok:
			c.report.fault("slot %d: nothing refers to shard %v", slot, id)
		case size != info.SizeBytes:
			c.report.fault("slot %d: shard %v has %d bytes, not %d", slot, id, info.SizeBytes, size)
		}
		delete(missing, id)
		return nil
	})
	for id := range missing {
		c.report.fault("slot %d: shard %v is missing", slot, id)
	}
	return err
}
