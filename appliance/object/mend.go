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
		err := e.mendOnce(ctx)
		if errors.Is(err, errRepairGoesOn) && ctx.Err() == nil {
			continue
		}
		if err != nil && ctx.Err() == nil {
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
		if s.State == placement.In {
			continue
		}
		if err := e.mendSlot(ctx, slot, s.State); err != nil {
			return fmt.Errorf("slot %d: %w", slot, err)
		}
	}
	if err := e.janitor.retry(e.view.Load().Epoch); err != nil {
		return err
	}
	if e.view.Load().NeedsFill() {
		if err := e.fill(ctx); err != nil {
			return err
		}
	}
	if err := e.sweepIfNeeded(ctx); err != nil {
		return err
	}
	if err := e.healQueued(ctx); err != nil {
		return err
	}
	return e.repairIfNeeded(ctx)
}

// mendSlot asks a slot in whose drive is here and well, or gives up one that has been out for long.
func (e *Engine) mendSlot(ctx context.Context, slot int, state placement.State) error {
	if e.live(uint8(slot)) != nil && !e.dropped[slot].Load() {
		return e.rejoin(ctx, slot)
	}
	since := time.Unix(0, e.outSince[slot].Load())
	if state == placement.Lost || time.Since(since) < e.cfg.RelocateAfter {
		return nil
	}
	e.log.Warn("drive is given up: what it had is made anew on the others", "slot", slot)
	return e.changeMap(func(m *placement.Map) *placement.Map { return m.Lose(slot) })
}

// repairIfNeeded repairs once for each state of the pool that may have left shards missing.
func (e *Engine) repairIfNeeded(ctx context.Context) error {
	state := repairState{epoch: e.view.Load().Epoch, asked: e.repairsAsked.Load()}
	if state == e.repaired {
		return nil
	}
	if err := e.repair(ctx); err != nil {
		return err
	}
	e.repaired = state
	return nil
}

// repairState is what a repair depends on: the map, and how often one was asked for beside.
type repairState struct{ epoch, asked uint64 }

// askRepair asks for a repair: a record refers to shards that are not there.
func (e *Engine) askRepair() {
	e.repairsAsked.Add(1)
	e.mender.nudge()
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
	return e.changeMap(func(m *placement.Map) *placement.Map {
		if m.Epoch != v.Epoch {
			return nil
		}
		return m.FilledNow()
	})
}

// sweepIfNeeded takes from each drive the records that it has no business with, once after each change of who is
// believed, and lets the map say that it is done.
func (e *Engine) sweepIfNeeded(ctx context.Context) error {
	v := e.view.Load()
	if !v.Unswept || v.NeedsFill() {
		return nil
	}
	if err := (&filler{e: e, view: v}).sweep(ctx); err != nil {
		return err
	}
	return e.changeMap(func(m *placement.Map) *placement.Map {
		if m.Epoch != v.Epoch {
			return nil
		}
		return m.Swept()
	})
}

func (f *filler) sweep(ctx context.Context) error {
	f.e.passGates()
	for _, slot := range f.view.AllIn() {
		if err := f.walk(ctx, slot, f.sweepChunk); err != nil {
			return fmt.Errorf("sweep slot %d: %w", slot, err)
		}
	}
	return nil
}

// passGates waits until all mutations have ended that may go by an earlier map than the one in force.
func (e *Engine) passGates() {
	for i := range e.gates {
		e.gates[i].Lock()
		//lint:ignore SA2001 it is the wait that counts
		e.gates[i].Unlock()
	}
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
	if errors.Is(err, shardstore.ErrFull) {
		return err // later, perhaps
	}
	if err != nil {
		return errors.Join(err, f.e.drop(int(to), err))
	}
	f.e.counters.FilledRecords.Add(uint64(len(keys)))
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
