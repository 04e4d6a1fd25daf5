package object

import (
	"context"
	"slices"

	"github.com/millrace/millrace/appliance/placement"
	"github.com/millrace/millrace/appliance/record"
	"github.com/millrace/millrace/nvme/shardstore"
)

// A segment's shards belong on the slots that come first in its order. While some of those were lost, or full,
// others have taken their place; when there is a drive with room again, they give it back.

// displaced gives the shards of a segment that are to move: on slots that are not among the first, while slots that
// are have none, and more room. All drives concerned must be in and well.
func (e *Engine) displaced(v *placement.View, l *record.Layout, i int) (indexes []int) {
	id := l.Instance.Segment(i)
	slots, order := l.Segments[i].Slots, v.SegmentOrder(id[:])
	if len(order) < len(slots) {
		return nil
	}
	first := order[:len(slots)]
	var free []uint8
	for _, slot := range first {
		if !slices.Contains(slots, slot) {
			free = append(free, slot)
		}
	}
	for index, slot := range slots {
		switch {
		case e.live(slot) == nil || v.Slots[slot].State != placement.In:
			return nil
		case len(free) == 0 || slices.Contains(first, slot):
			continue
		case e.live(free[0]) == nil || e.freeShare(free[0]) <= e.freeShare(slot):
			return indexes
		}
		indexes, free = append(indexes, index), free[1:]
	}
	return indexes
}

// freeShare is how much of a drive's data area is free, from 0 to 1.
func (e *Engine) freeShare(slot uint8) float64 {
	s := e.stores[slot].Stats()
	return float64(s.FreeBytes) / float64(max(s.DataBytes, 1))
}

// departure is the shards that a move leaves behind.
type departure struct {
	e       *Engine
	segment shardstore.SegmentID
	indexes []int
	slots   []uint8 // by index
}

// depart marks the shards that are about to move: if the power fails now, whether a record refers to them is asked at
// the next start, as for those that are new.
func (e *Engine) depart(w *wound) (*departure, error) {
	d := &departure{e: e, segment: shardstore.SegmentID(w.layout.Instance.Segment(w.segment)), indexes: w.bad,
		slots: w.layout.Segments[w.segment].Slots}
	return d, d.commit(func(b *shardstore.Batch, id shardstore.ShardID) {
		b.Set(record.PendingKey(id.Segment, int(id.Index)), nil)
	})
}

// end deletes them, once the record refers to others.
func (d *departure) end() error {
	return d.commit(func(b *shardstore.Batch, id shardstore.ShardID) {
		b.DeleteShard(id)
		b.Delete(record.OwnerKey(id.Segment, int(id.Index)))
		b.Delete(record.PendingKey(id.Segment, int(id.Index)))
	})
}

func (d *departure) commit(fill func(*shardstore.Batch, shardstore.ShardID)) error {
	for _, index := range d.indexes {
		slot := d.slots[index]
		b := d.e.stores[slot].NewBatch()
		b.UseReserve()
		fill(b, shardstore.ShardID{Segment: d.segment, Index: uint8(index)})
		if err := d.e.stores[slot].Commit(context.Background(), b, true); err != nil {
			return d.e.drop(int(slot), err)
		}
	}
	return nil
}
