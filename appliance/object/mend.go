package object

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/appliance/placement"
	"github.com/millrace/millrace/appliance/record"
	"github.com/millrace/millrace/nvme/shardstore"
)

const (
	mendInterval = 5 * time.Second
	fillChunk    = 128
	copyBatch    = 8 // records of up to 1 MiB each
)

var errIncomplete = errors.New("some placement groups have lost every believed member")

// mender wakes the goroutine that asks returned drives in and fills new members.
type mender struct {
	wake chan struct{}
	work sync.Mutex // held while it mends
}

func (m *mender) nudge() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

func (e *Engine) mend(ctx context.Context) {
	tick := time.NewTicker(mendInterval)
	defer tick.Stop()
	for {
		if err := e.mendOnce(ctx); err != nil && ctx.Err() == nil {
			e.log.Warn("mending goes on later", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-e.mender.wake:
		}
	}
}

func (e *Engine) mendOnce(ctx context.Context) error {
	e.mender.work.Lock()
	defer e.mender.work.Unlock()
	if e.readOnly {
		return nil
	}
	if !e.view.Load().Complete() {
		return errIncomplete // a drive that is out may have the only copies: leave it as it is
	}
	for slot, s := range e.view.Load().Slots {
		if s.State == placement.Out && e.live(uint8(slot)) != nil && !e.dropped[slot].Load() {
			if err := e.rejoin(ctx, slot); err != nil {
				return fmt.Errorf("slot %d: rejoin: %w", slot, err)
			}
		}
	}
	if e.view.Load().NeedsFill() {
		if err := e.fill(ctx); err != nil {
			return err
		}
	}
	if err := e.healQueued(ctx); err != nil {
		return err
	}
	return e.repairIfNeeded(ctx)
}

// repairIfNeeded repairs once for each state of the pool that may have left shards missing.
func (e *Engine) repairIfNeeded(ctx context.Context) error {
	state := repairState{epoch: e.view.Load().Epoch, degraded: e.counters.DegradedWrites.Load()}
	for slot := range e.stores {
		if e.lostForGood(uint8(slot)) {
			state.lost++
		}
	}
	if state == e.repaired {
		return nil
	}
	if err := e.repair(ctx); err != nil {
		return err
	}
	e.repaired = state
	return nil
}

// repairState is what a repair depends on.
type repairState struct {
	epoch, degraded uint64
	lost            int
}

// rejoin asks a drive in that was away: its records are worth nothing, its shards are (they are
// never overwritten) unless nothing refers to them any more.
func (e *Engine) rejoin(ctx context.Context, slot int) error {
	s := e.stores[slot]
	b := s.NewBatch()
	for _, r := range record.UnseatedRanges() {
		b.DeleteRange(r.Lower, r.Upper)
	}
	if err := s.Commit(ctx, b, true); err != nil {
		return err
	}
	if err := e.resolvePending(uint8(slot)); err != nil {
		return err
	}
	if err := e.sweepShards(ctx, uint8(slot)); err != nil {
		return err
	}
	e.buckets.change.Lock()
	defer e.buckets.change.Unlock()
	if err := e.copyConfig(ctx, s); err != nil {
		return err
	}
	if err := e.changeMap(func(m *placement.Map) *placement.Map { return m.With(slot) }); err != nil {
		return err
	}
	e.log.Info("drive is back", "slot", slot)
	return nil
}

// sweepShards frees the shards of a drive that no record refers to.
func (e *Engine) sweepShards(ctx context.Context, slot uint8) error {
	s := e.stores[slot]
	c := chunks{s: s}
	defer c.close()
	err := s.Shards(shardstore.ShardID{}, func(id shardstore.ShardID, _ shardstore.ShardInfo) error {
		referred, err := e.isReferred(slot, id.Segment, int(id.Index))
		if err != nil || referred {
			return err
		}
		e.counters.OrphanShards.Add(1)
		return errors.Join(ctx.Err(), c.add(func(b *shardstore.Batch) {
			b.DeleteShard(id)
			b.Delete(record.OwnerKey(id.Segment, int(id.Index)))
		}))
	})
	if err != nil {
		return err
	}
	return c.end()
}

func (e *Engine) copyConfig(ctx context.Context, to *shardstore.Store) error {
	slots := e.configSlots()
	if len(slots) == 0 {
		return errors.New("no drive has the configuration")
	}
	prefix := record.ConfigKey("")
	it, err := e.stores[slots[0]].Scan(prefix, record.PrefixEnd(prefix))
	if err != nil {
		return err
	}
	defer it.Close()
	c := chunks{s: to}
	defer c.close()
	for it.First(); it.Valid() && ctx.Err() == nil; it.Next() {
		value, err := it.Value()
		if err == nil {
			err = c.add(func(b *shardstore.Batch) { b.Set(it.Key(), value) })
		}
		if err != nil {
			return err
		}
	}
	if err := errors.Join(it.Err(), ctx.Err()); err != nil {
		return err
	}
	return c.end()
}

// fill gives every member of every group the records that it lacks, and takes from each drive
// those that it has no business with. Then the map says so, if it is still the one that the fill began with.
func (e *Engine) fill(ctx context.Context) error {
	v := e.view.Load()
	f := &filler{e: e, view: v}
	for _, slot := range v.AllIn() {
		if err := f.walk(ctx, slot, f.copyChunk); err != nil {
			return fmt.Errorf("fill from slot %d: %w", slot, err)
		}
	}
	if err := f.sweep(ctx); err != nil {
		return err
	}
	// The commit of the map is synced, and with it all that was written to each drive before.
	err := e.changeMap(func(m *placement.Map) *placement.Map {
		if m.Epoch != v.Epoch {
			return nil
		}
		return m.FilledNow()
	})
	if err != nil {
		return err
	}
	// Who was believed until now need not be a member: the second sweep is for those.
	f.view = e.view.Load()
	return f.sweep(ctx)
}

func (f *filler) sweep(ctx context.Context) error {
	for _, slot := range f.view.AllIn() {
		if err := f.walk(ctx, slot, f.sweepChunk); err != nil {
			return fmt.Errorf("sweep slot %d: %w", slot, err)
		}
	}
	return nil
}

// filler is one run of a fill, under one map.
type filler struct {
	e    *Engine
	view *placement.View
}

// walk calls do with the keys of all grouped records on a drive, group by group in chunks, each with
// the group's mutations shut out. do looks up the present state of the keys itself.
func (f *filler) walk(ctx context.Context, slot uint8, do func(slot uint8, group int, keys [][]byte) error) error {
	for _, r := range record.GroupedRanges() {
		it, err := f.e.stores[slot].Scan(r.Lower, r.Upper)
		if err != nil {
			return err
		}
		chunk, n := map[int][][]byte{}, 0
		for it.First(); it.Valid() && err == nil; it.Next() {
			var group int
			if group, err = f.groupOf(it.Key()); err != nil {
				break
			}
			chunk[group] = append(chunk[group], bytes.Clone(it.Key()))
			if n++; n == fillChunk {
				err = f.flush(ctx, slot, chunk, do)
				chunk, n = map[int][][]byte{}, 0
			}
		}
		if err == nil {
			err = it.Err()
		}
		it.Close()
		if err == nil {
			err = f.flush(ctx, slot, chunk, do)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (f *filler) flush(ctx context.Context, slot uint8, chunk map[int][][]byte, do func(uint8, int, [][]byte) error) error {
	for group, keys := range chunk {
		if err := ctx.Err(); err != nil {
			return err
		}
		gate := &f.e.gates[group]
		gate.Lock()
		err := do(slot, group, keys)
		gate.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

func (f *filler) groupOf(key []byte) (int, error) {
	bucket, name, named, err := record.NameOfKey(key)
	if err != nil {
		return 0, err
	}
	if named {
		return f.view.GroupOf(bucket, name), nil
	}
	if g := record.GroupOfKey(key); g < f.view.Groups {
		return g, nil
	}
	return 0, fmt.Errorf("%w: group of a key", record.ErrInvalid)
}

// copyChunk copies what the group's leader has to the members that aren't believed yet.
func (f *filler) copyChunk(slot uint8, group int, keys [][]byte) error {
	if f.view.Lead(group) != int(slot) {
		return nil
	}
	for _, to := range f.view.Members(group) {
		if slices.Contains(f.view.Reads(group), to) {
			continue
		}
		for some := range slices.Chunk(keys, copyBatch) {
			if err := f.copyKeys(slot, to, some); err != nil {
				return err
			}
		}
	}
	return nil
}

func (f *filler) copyKeys(from, to uint8, keys [][]byte) error {
	b := f.e.stores[to].NewBatch()
	for _, k := range keys {
		if err := f.e.copyKey(b, from, k); err != nil {
			b.Close()
			return err
		}
	}
	err := f.e.stores[to].Commit(context.Background(), b, false)
	if err != nil {
		return errors.Join(err, f.e.drop(int(to), err))
	}
	return nil
}

// sweepChunk deletes what a drive that isn't believed has and the leader has not, and what a drive
// has of groups that are not its own.
func (f *filler) sweepChunk(slot uint8, group int, keys [][]byte) error {
	if slices.Contains(f.view.Reads(group), slot) {
		return nil
	}
	member := slices.Contains(f.view.Members(group), slot)
	lead := f.view.Lead(group)
	if lead < 0 {
		return nil // all copies that could be believed are lost; keep what there is
	}
	s := f.e.stores[slot]
	b := s.NewBatch()
	for _, k := range keys {
		if member {
			_, err := f.e.stores[lead].Get(k, nil)
			if err == nil {
				continue
			}
			if !errors.Is(err, shardstore.ErrNotFound) {
				b.Close()
				return err
			}
		}
		b.Delete(k)
	}
	return s.Commit(context.Background(), b, false)
}
