package object

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/millrace/millrace/appliance/placement"
	"github.com/millrace/millrace/appliance/record"
	"github.com/millrace/millrace/nvme/shardstore"
)

// recover brings the drives to one state after whatever ended the last run, before anything is
// served: mutations that some members have are completed on the others, then what is pending is kept or freed.
func (e *Engine) recover(ctx context.Context) error {
	e.janitor = newJanitor(e)
	if err := e.dropStale(ctx); err != nil {
		return fmt.Errorf("look for old copies of drives: %w", err)
	}
	if err := e.rollForward(ctx); err != nil {
		return fmt.Errorf("roll forward: %w", err)
	}
	if err := e.loadBuckets(); err != nil || e.readOnly {
		return err
	}
	for _, slot := range e.view.Load().AllIn() {
		if err := e.resolvePending(slot); err != nil {
			return fmt.Errorf("slot %d: pending shards: %w", slot, err)
		}
	}
	return e.queueFrees()
}

// tails is what the op-logs say beyond the watermark.
type tails struct {
	ops  map[uint64]*record.Op
	have map[uint64][]uint8 // the slots that have the entry
}

// rollForward compares the tails of the op-logs.
func (e *Engine) rollForward(ctx context.Context) error {
	t := &tails{ops: map[uint64]*record.Op{}, have: map[uint64][]uint8{}}
	slots := e.view.Load().AllIn()
	mark := &e.janitor.mark
	for _, slot := range slots {
		w, err := readWatermark(e.stores[slot])
		if err != nil {
			return fmt.Errorf("slot %d: %w", slot, err)
		}
		mark.Seq, mark.Trimmed = max(mark.Seq, w.Seq), max(mark.Trimmed, w.Trimmed)
	}
	last := mark.Seq
	for _, slot := range slots {
		err := eachOp(e.stores[slot], mark.Seq, func(seq uint64, op *record.Op) error {
			if t.ops[seq] == nil {
				t.ops[seq] = op
			}
			t.have[seq] = append(t.have[seq], slot)
			last = max(last, seq)
			return nil
		})
		if err != nil {
			return fmt.Errorf("slot %d: op-log: %w", slot, err)
		}
	}
	e.seq.Store(last + seqGap)
	if e.readOnly {
		return nil // any drive's word will do: what is not everywhere was not acknowledged
	}
	return e.complete(ctx, t)
}

// seqGap is left in the sequence at every start, more than can have been in flight: a drive that is away
// may have entries of mutations that nobody else has, and theirs must not be taken for other ones.
const seqGap = 4096

func readWatermark(s *shardstore.Store) (w record.Watermark, err error) {
	value, err := s.Get(record.WatermarkKey(), nil)
	if errors.Is(err, shardstore.ErrNotFound) {
		return w, nil
	}
	if err != nil {
		return w, err
	}
	return record.DecodeWatermark(value)
}

// complete applies each entry that a target lacks. The state of a key is copied from a drive that
// has the key's last entry, so keys are never set back.
func (e *Engine) complete(ctx context.Context, t *tails) error {
	v := e.view.Load()
	lastOf := map[string]uint64{}
	for seq, op := range t.ops {
		if e.source(v, op, t.have[seq]) < 0 {
			delete(t.ops, seq) // no drive that can be believed has it
			continue
		}
		for _, k := range op.Keys {
			lastOf[string(k)] = max(lastOf[string(k)], seq)
		}
	}
	for _, seq := range slices.Sorted(maps.Keys(t.ops)) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := e.completeOp(v, seq, t, lastOf); err != nil {
			return err
		}
	}
	mark := record.AppendWatermark(nil, e.janitor.mark)
	for i, err := range e.commitTo(v.AllIn(), func(b *shardstore.Batch) {
		b.UseReserve()
		b.Set(record.WatermarkKey(), mark)
	}) {
		if err != nil {
			if err := e.drop(int(v.AllIn()[i]), err); err != nil {
				return err
			}
		}
	}
	return nil
}

// source gives the first of the slots that has all records of the op's group, or -1. Another may have an entry and not
// the records any more: it stood in for a member that was away, and was swept.
func (e *Engine) source(v *placement.View, op *record.Op, slots []uint8) int {
	believed := e.configSlots()
	if op.Group < v.Groups {
		believed = v.Reads(op.Group)
	}
	for _, s := range slots {
		if slices.Contains(believed, s) {
			return int(s)
		}
	}
	return -1
}

func (e *Engine) completeOp(v *placement.View, seq uint64, t *tails, lastOf map[string]uint64) error {
	op := t.ops[seq]
	targets := v.AllIn()
	if op.Group != record.AllSlots {
		if op.Group >= v.Groups {
			return fmt.Errorf("%w: group %d", record.ErrInvalid, op.Group)
		}
		targets = v.Targets(op.Group)
	}
	behind := false
	for _, slot := range targets {
		if slices.Contains(t.have[seq], slot) {
			continue
		}
		behind = true
		if err := e.completeOn(v, slot, seq, t, lastOf); err != nil {
			return err
		}
	}
	if behind {
		e.counters.RolledForward.Add(1)
	}
	return nil
}

// completeOn completes an entry on a drive that lacks it. It may lack the entry only, having been brought up to date
// since, and have a free record that the source has worked off: then what that would free goes, too, and first.
func (e *Engine) completeOn(v *placement.View, slot uint8, seq uint64, t *tails, lastOf map[string]uint64) error {
	op := t.ops[seq]
	b := e.stores[slot].NewBatch()
	b.UseReserve()
	b.Set(record.OpLogKey(seq), record.AppendOp(nil, op))
	for _, k := range op.Keys {
		from := uint8(e.source(v, op, t.have[lastOf[string(k)]]))
		err := e.copyKey(b, from, k)
		if err == nil && record.KindOf(k) == record.FreeRecord {
			err = e.clearFreed(op.Group, k, from, slot)
		}
		if err != nil {
			b.Close()
			return err
		}
	}
	if err := e.stores[slot].Commit(context.Background(), b, false); err != nil {
		return e.drop(int(slot), err)
	}
	return nil
}

// clearFreed deletes from a drive what the other has cleared up of an upload that a free record of the drive names.
func (e *Engine) clearFreed(group int, free []byte, from, to uint8) error {
	u, err := e.uploadOf(to, free)
	if err != nil || u == (record.UploadID{}) {
		return err
	}
	return e.clearUpload(group, u, from, to)
}

// copyKey puts a key's state on a drive into a batch for another.
func (e *Engine) copyKey(b *shardstore.Batch, from uint8, key []byte) error {
	value, err := e.stores[from].Get(key, nil)
	if errors.Is(err, shardstore.ErrNotFound) {
		b.Delete(key)
		return nil
	}
	if err != nil {
		return fmt.Errorf("slot %d: %w", from, err)
	}
	b.Set(key, value)
	return nil
}

// resolvePending looks at every shard of a drive that was not known to be referred to: it is
// settled if a record refers to it, else freed.
func (e *Engine) resolvePending(slot uint8) error {
	s := e.stores[slot]
	it, err := s.Scan(record.PendingPrefix(), record.PrefixEnd(record.PendingPrefix()))
	if err != nil {
		return err
	}
	defer it.Close()
	c := chunks{s: s}
	defer c.close()
	for it.First(); it.Valid(); it.Next() {
		id, index, err := record.ParsePendingKey(it.Key())
		if err != nil {
			return err
		}
		referred, err := e.isReferred(slot, id, index)
		if err != nil {
			return err
		}
		if !referred {
			e.counters.OrphanShards.Add(1)
		}
		key := bytes.Clone(it.Key())
		err = c.add(func(b *shardstore.Batch) {
			b.Delete(key)
			if !referred {
				b.DeleteShard(shardstore.ShardID{Segment: id, Index: uint8(index)})
				b.Delete(record.OwnerKey(id, index))
			}
		})
		if err != nil {
			return err
		}
	}
	if err := it.Err(); err != nil {
		return err
	}
	return c.end()
}

// chunks commits many small changes to one drive, some at a time, the last of them synced.
type chunks struct {
	s *shardstore.Store
	b *shardstore.Batch
	n int
}

func (c *chunks) add(f func(*shardstore.Batch)) error {
	if c.b == nil {
		c.b = c.s.NewBatch()
	}
	f(c.b)
	if c.n++; c.n%maxBatchShards != 0 {
		return nil
	}
	b := c.b
	c.b = nil
	return c.s.Commit(context.Background(), b, false)
}

func (c *chunks) end() error {
	b := c.b
	if c.b = nil; b == nil {
		b = c.s.NewBatch()
	}
	return c.s.Commit(context.Background(), b, true)
}

func (c *chunks) close() {
	if c.b != nil {
		c.b.Close()
	}
}

// isReferred says whether the record that a shard's owner record names refers to the shard, on
// that drive.
func (e *Engine) isReferred(slot uint8, segment [16]byte, index int) (bool, error) {
	value, err := e.stores[slot].Get(record.OwnerKey(segment, index), nil)
	if errors.Is(err, shardstore.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	owner, err := record.DecodeOwner(value)
	if err != nil {
		return false, err
	}
	layout, err := e.layoutOfOwner(owner)
	if err != nil || layout == nil {
		return false, err
	}
	instance, i := record.InstanceOf(segment)
	if layout.Instance != instance || i >= len(layout.Segments) {
		return false, nil
	}
	slots := layout.Segments[i].Slots
	return index < len(slots) && slots[index] == slot, nil
}

func (e *Engine) layoutOfOwner(o *record.Owner) (*record.Layout, error) {
	group := e.view.Load().GroupOf(o.Bucket, o.Key)
	if o.Upload != (record.UploadID{}) {
		p, err := e.partIfAny(record.PartKey(group, o.Upload, o.Number))
		if err != nil || p == nil {
			return nil, err
		}
		return &p.Layout, nil
	}
	rec, err := e.current(group, o.Bucket, o.Key)
	if err != nil || rec == nil || rec.IsMultipart() {
		return nil, err
	}
	return &rec.Layout, nil
}

// queueFrees queues every free record that is on a drive.
func (e *Engine) queueFrees() error {
	seen := map[string]bool{}
	for _, slot := range e.view.Load().AllIn() {
		if err := e.queueFreesOf(slot, seen); err != nil {
			return fmt.Errorf("slot %d: free records: %w", slot, err)
		}
	}
	return nil
}

func (e *Engine) queueFreesOf(slot uint8, seen map[string]bool) error {
	it, err := e.stores[slot].Scan(record.FreePrefix(), record.PrefixEnd(record.FreePrefix()))
	if err != nil {
		return err
	}
	defer it.Close()
	for it.First(); it.Valid() && len(seen) < maxQueued; it.Next() {
		key := bytes.Clone(it.Key())
		if group := record.GroupOfKey(key); seen[string(key)] ||
			!slices.Contains(e.view.Load().Reads(group), slot) { // one that is being filled may lack the parts yet
			continue
		}
		seen[string(key)] = true
		value, err := it.Value()
		if err != nil {
			return err
		}
		f, err := record.DecodeFree(value)
		if err != nil {
			return err
		}
		e.janitor.free([]*freeItem{{key: key, free: f, from: e.stores[slot]}})
	}
	return it.Err()
}

// configSlots gives the drives that have all configuration records.
func (e *Engine) configSlots() []uint8 {
	var slots []uint8
	v := e.view.Load()
	for _, slot := range v.AllIn() {
		if v.Slots[slot].Filled == placement.In {
			slots = append(slots, slot)
		}
	}
	return slots
}
