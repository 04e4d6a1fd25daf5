package object

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/appliance/erasure"
	"github.com/millrace/millrace/appliance/placement"
	"github.com/millrace/millrace/appliance/record"
	"github.com/millrace/millrace/nvme/shardstore"
)

const (
	// repairSlice is how long a repair goes on before the mender looks whether there is more urgent work.
	repairSlice = 10 * time.Second
	// repairWorkers is how many segments are mended at the same time. Each holds about 6 MiB of the arena.
	repairWorkers = 4
	// restRecords is how many records are looked at between rests.
	restRecords = 256
)

// errRepairGoesOn: a slice of a repair is over, and not the repair.
var errRepairGoesOn = errors.New("repair goes on")

// repairs is the repair of a pool: a survey, which walks all index records and counts the segments that miss
// shards, and then a walk for each number of missing shards, the greatest first, that makes them anew. It
// is carried out in slices. Where it is, is kept on the drives, so that a restart goes on from there.
type repairs struct {
	state  record.Repair // by one slice at a time
	saved  bool          // something is on the drives
	active atomic.Bool
	pace   pacer

	// For those who look.
	segments, segmentsDone, bytes, bytesDone, failed atomic.Int64
	level                                            atomic.Int64
	begun                                            atomic.Int64 // Unix ms
	rate                                             meter
}

// repair carries out one slice of the repair for the map in force. It returns errRepairGoesOn as long as there is more.
func (e *Engine) repair(ctx context.Context) error {
	r := &e.repairs
	v := e.view.Load()
	if !r.active.Load() || r.state.Epoch != v.Epoch {
		e.beginRepair(v)
	}
	until := time.Now().Add(repairSlice)
	for {
		err := (&repairWalk{e: e, v: v, r: r, until: until}).run(ctx)
		r.note()
		if errors.Is(err, errRepairGoesOn) || ctx.Err() != nil {
			e.saveRepair(v)
		}
		if err != nil {
			return err
		}
		// A walk is complete.
		if r.state.Level == 0 {
			r.state.Level = r.state.Most
		} else {
			r.state.Level--
		}
		r.state.Slot, r.state.Key = 0, nil
		r.show()
		if r.state.Level == 0 {
			e.endRepair(v)
			return nil
		}
	}
}

// beginRepair begins a repair, or takes up the one that a drive knows of.
func (e *Engine) beginRepair(v *placement.View) {
	r := &e.repairs
	r.state = record.Repair{Epoch: v.Epoch, Begun: now()}
	for _, slot := range v.AllIn() {
		value, err := e.stores[slot].Get(record.RepairKey(), nil)
		if err != nil {
			continue
		}
		r.saved = true
		if s, err := record.DecodeRepair(value); err == nil && s.Epoch == v.Epoch && furtherThan(s, &r.state) {
			r.state = *s
		}
	}
	r.failed.Store(0)
	r.rate.reset(int64(r.state.BytesDone))
	r.show()
	r.active.Store(true)
}

// furtherThan says whether a repair has come further than another.
func furtherThan(a, b *record.Repair) bool {
	if (a.Level == 0) != (b.Level == 0) {
		return b.Level == 0
	}
	if a.Level != b.Level {
		return a.Level < b.Level
	}
	return a.Slot > b.Slot || a.Slot == b.Slot && bytes.Compare(a.Key, b.Key) > 0
}

// show publishes the state.
func (r *repairs) show() {
	r.segments.Store(int64(r.state.Segments))
	r.segmentsDone.Store(int64(r.state.SegmentsDone))
	r.bytes.Store(int64(r.state.Bytes))
	r.bytesDone.Store(int64(r.state.BytesDone))
	r.level.Store(int64(r.state.Level))
	r.begun.Store(r.state.Begun.UnixMilli())
}

// note takes what the workers have done into the state.
func (r *repairs) note() {
	r.state.SegmentsDone, r.state.BytesDone = uint64(r.segmentsDone.Load()), uint64(r.bytesDone.Load())
	r.state.Segments, r.state.Bytes = max(r.state.Segments, r.state.SegmentsDone), max(r.state.Bytes, r.state.BytesDone)
	r.show()
}

// saveRepair keeps the state on all drives that are in. It need not be durable: what is lost of it is done again, and
// found done.
func (e *Engine) saveRepair(v *placement.View) {
	value := record.AppendRepair(nil, &e.repairs.state)
	e.onAll(v, func(b *shardstore.Batch) { b.Set(record.RepairKey(), value) })
	e.repairs.saved = true
}

func (e *Engine) endRepair(v *placement.View) {
	r := &e.repairs
	r.active.Store(false)
	if r.saved {
		e.onAll(v, func(b *shardstore.Batch) { b.Delete(record.RepairKey()) })
		r.saved = false
	}
	if n := r.segmentsDone.Load(); n > 0 {
		e.log.Info("repair is complete", "segments", n, "not_mended", r.failed.Load(),
			"took", time.Since(r.state.Begun).Round(time.Second))
	}
}

func (e *Engine) onAll(v *placement.View, fill func(*shardstore.Batch)) {
	batches := make([]*shardstore.Batch, len(e.stores))
	for _, slot := range v.AllIn() {
		batches[slot] = e.stores[slot].NewBatch()
		fill(batches[slot])
	}
	e.commitBatches(batches, false)
}

// repairWalk is one slice of one walk over the index records.
type repairWalk struct {
	e     *Engine
	v     *placement.View
	r     *repairs
	until time.Time

	queue chan repairTask
	mu    sync.Mutex
	back  *repairTask // the first one that failed
	err   error       // why
}

// repairTask is a segment to mend, and where the walk was before it.
type repairTask struct {
	wound wound
	slot  uint8
	after []byte
}

// run walks on from where the state is, and advances it: up to the first segment that failed, if one did.
func (w *repairWalk) run(ctx context.Context) error {
	stop := w.startWorkers(ctx)
	err := w.walk(ctx)
	stop()
	if w.back != nil {
		w.r.state.Slot, w.r.state.Key = w.back.slot, w.back.after
		return w.err
	}
	return err
}

// startWorkers starts what mends; stop waits until all that was queued is done.
func (w *repairWalk) startWorkers(ctx context.Context) (stop func()) {
	w.queue = make(chan repairTask)
	var wg sync.WaitGroup
	for range repairWorkers {
		wg.Go(func() {
			w.r.pace.working.Add(1)
			defer w.r.pace.working.Add(-1)
			for task := range w.queue {
				if err := w.mend(ctx, &task.wound); err != nil {
					w.failed(&task, err)
				}
			}
		})
	}
	return func() {
		close(w.queue)
		wg.Wait()
	}
}

func (w *repairWalk) failed(t *repairTask, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.back == nil || t.slot < w.back.slot || t.slot == w.back.slot && bytes.Compare(t.after, w.back.after) < 0 {
		w.back, w.err = t, err
	}
}

// mend mends one segment, and rests.
func (w *repairWalk) mend(ctx context.Context, wound *wound) error {
	begun := time.Now()
	mended, err := w.e.mendSegment(ctx, wound)
	if err != nil {
		return err
	}
	if !mended {
		w.r.failed.Add(1)
	}
	n := wound.bytes()
	w.r.segmentsDone.Add(1)
	w.r.rate.note(w.r.bytesDone.Add(n))
	_ = w.r.pace.pace(ctx, n, time.Since(begun)) // whoever comes next sees the end of ctx
	return nil
}

// bytes is the size of the shards that are to be made anew.
func (w *wound) bytes() int64 {
	size := min(erasure.SegmentBytes, w.layout.SizeBytes-int64(w.segment)*erasure.SegmentBytes)
	geo, err := erasure.NewGeometry(w.layout.Segments[w.segment].Scheme, size)
	if err != nil {
		return 0
	}
	return geo.ShardBytes() * int64(len(w.bad))
}

// walk goes through the drives that are in, each for the groups that it leads.
func (w *repairWalk) walk(ctx context.Context) error {
	for _, slot := range w.v.AllIn() {
		if slot < w.r.state.Slot {
			continue
		}
		if slot > w.r.state.Slot {
			w.r.state.Slot, w.r.state.Key = slot, nil
		}
		if err := w.walkDrive(ctx, slot); err != nil {
			return fmt.Errorf("repair from slot %d: %w", slot, err)
		}
	}
	return nil
}

func (w *repairWalk) walkDrive(ctx context.Context, slot uint8) error {
	f := &filler{e: w.e, view: w.v}
	for _, kind := range []record.Kind{record.ObjectRecord, record.PartRecord} {
		r := record.RangeOf(kind)
		if bytes.Compare(w.r.state.Key, r.Upper) >= 0 {
			continue
		}
		if bytes.Compare(w.r.state.Key, r.Lower) > 0 {
			r.Lower = append(bytes.Clone(w.r.state.Key), 0)
		}
		if err := w.walkRange(ctx, f, slot, r); err != nil {
			return err
		}
	}
	return nil
}

func (w *repairWalk) walkRange(ctx context.Context, f *filler, slot uint8, r record.KeyRange) error {
	it, err := w.e.stores[slot].Scan(r.Lower, r.Upper)
	if err != nil {
		return err
	}
	defer it.Close()
	n, begun := 0, time.Now()
	for it.First(); it.Valid(); it.Next() {
		if err := w.record(ctx, f, slot, it); err != nil {
			return err
		}
		w.r.state.Key = append(w.r.state.Key[:0:0], it.Key()...)
		if time.Now().After(w.until) || w.e.view.Load().Epoch != w.v.Epoch {
			return errRepairGoesOn
		}
		if n++; n%restRecords == 0 {
			if err := w.r.pace.pace(ctx, 0, time.Since(begun)); err != nil {
				return err
			}
			begun = time.Now()
		}
	}
	return errors.Join(it.Err(), ctx.Err())
}

// record looks at the segments of one record.
func (w *repairWalk) record(ctx context.Context, f *filler, slot uint8, it *shardstore.Iterator) error {
	group, err := f.groupOf(it.Key())
	if err != nil || w.v.Lead(group) != int(slot) {
		return err
	}
	value, err := it.Value()
	if err != nil {
		return err
	}
	layouts, err := layoutsIn(it.Key(), value)
	if err != nil {
		w.e.log.Error("index record not readable", "slot", slot, "record", w.e.nameOf(it.Key()), "err", err)
		return ctx.Err()
	}
	for i := range layouts {
		for n := range layouts[i].Segments {
			if err := w.segment(ctx, &layouts[i], n); err != nil {
				return err
			}
		}
	}
	return ctx.Err()
}

// segment counts a segment that misses shards, or has some in the place of a drive that has come back, or has it mended if
// its turn has come.
func (w *repairWalk) segment(ctx context.Context, l *record.Layout, i int) error {
	s := &w.r.state
	wound := wound{layout: *l, segment: i, bad: w.e.missing(l, i)}
	if len(wound.bad) == 0 {
		wound.bad = w.e.displaced(w.v, l, i)
		wound.moves = len(wound.bad) > 0
	}
	n := uint8(len(wound.bad))
	if wound.moves {
		n = 1 // with what can wait longest
	}
	switch {
	case n == 0:
		return nil
	case s.Level == 0:
		s.Most = max(s.Most, n)
		s.Segments++
		s.Bytes += uint64(wound.bytes())
		w.r.show()
		return nil
	case n != s.Level && !(n > s.Level && s.Level == s.Most):
		return nil
	}
	owner, err := w.e.ownerOf(l, i)
	if err != nil || owner == nil {
		return err // without an owner no shard is left, or all went since the record was read
	}
	wound.owner = *owner
	select {
	case w.queue <- repairTask{wound, s.Slot, s.Key}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
