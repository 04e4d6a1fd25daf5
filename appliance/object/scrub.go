package object

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/appliance/arena"
	"github.com/millrace/millrace/appliance/placement"
	"github.com/millrace/millrace/appliance/record"
	"github.com/millrace/millrace/nvme/shardstore"
)

const (
	// scrubTick is the time between looks whether a scrub is due.
	scrubTick = time.Minute
	// scrubStep is how much is read at once: whole checksum blocks.
	scrubStep = 1 << 20
	// scrubBatch is how many shards are listed at once. A listing held open for as long as
	// they are read would keep Pebble from forgetting old records.
	scrubBatch = 256
	// scrubSave is the time between two notes of where a scrub is.
	scrubSave = 10 * time.Second
	// scrubRetry is how long a scrub waits when clients need all buffers.
	scrubRetry = 100 * time.Millisecond
)

// scrubs are the scrubs of all drives. First the index records of all drives are compared with each other. Then each
// drive is read apart from the others: its records, and its shards, block by block against their checksums. What
// is damaged is made anew by the mender. That all shards of a segment vouch for their bytes is enough: parity was
// computed from the same bytes when they were written, and what is wrong since then shows in a checksum.
//
// Where a scrub is, is kept on its drive, so that a restart goes on from there.
type scrubs struct {
	wake  chan struct{}
	asked atomic.Bool // begin all of them now
	pace  pacer       // clients only; the rate is each drive's own
	slots []scrubbing
}

// scrubbing is the scrub of one drive.
type scrubbing struct {
	mu      sync.Mutex
	loaded  bool
	running bool
	state   record.Scrub
	total   int64 // bytes there were when it began in this run
	pace    pacer
	rate    meter
}

func (s *scrubs) init(e *Engine) {
	s.wake = make(chan struct{}, 1)
	s.slots = make([]scrubbing, len(e.stores))
	s.pace = pacer{clients: e.cfg.Clients}
	for i := range s.slots {
		s.slots[i].pace = pacer{bytesPerSecond: e.cfg.ScrubBytesPerSecond}
	}
}

// StartScrub begins a scrub of every drive that is in, apart from those under way.
func (e *Engine) StartScrub() {
	e.scrubs.asked.Store(true)
	select {
	case e.scrubs.wake <- struct{}{}:
	default:
	}
}

// scrub starts the scrubs that are due, until ctx ends, and waits for them.
func (e *Engine) scrub(ctx context.Context) {
	tick := time.NewTicker(scrubTick)
	defer tick.Stop()
	var running sync.WaitGroup
	defer running.Wait()
	for {
		for _, slot := range e.beginScrubs(ctx) {
			running.Go(func() { e.scrubDrive(ctx, slot) })
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-e.scrubs.wake:
		}
	}
}

// beginScrubs gives the drives whose scrub is to run, and is not running: it was broken off, is due, or is asked for. The
// index has been looked through for those that begin anew.
func (e *Engine) beginScrubs(ctx context.Context) []uint8 {
	asked := e.scrubs.asked.Swap(false)
	var begun, anew []uint8
	for _, slot := range e.view.Load().AllIn() {
		switch goesOn, due := e.scrubWanted(slot, asked); {
		case goesOn:
			begun = append(begun, slot)
		case due:
			anew = append(anew, slot)
		}
	}
	for _, slot := range anew {
		e.beginScrub(slot, true)
	}
	if len(anew) > 0 {
		if err := e.scrubIndex(ctx); err != nil {
			if ctx.Err() == nil {
				e.log.Warn("scrub of the index begins again later", "err", err)
			}
			for _, slot := range anew {
				e.scrubs.slots[slot].abandon()
			}
			e.scrubs.asked.CompareAndSwap(false, asked)
			anew = nil
		}
	}
	for _, slot := range begun {
		e.beginScrub(slot, false)
	}
	return append(begun, anew...)
}

// scrubWanted says whether a drive's scrub is to go on, or to begin.
func (e *Engine) scrubWanted(slot uint8, asked bool) (goesOn, due bool) {
	store := e.live(slot)
	if store == nil {
		return false, false
	}
	s := &e.scrubs.slots[slot]
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running {
		return false, false
	}
	if !s.loaded {
		state, err := loadScrub(store)
		if err != nil {
			e.log.Warn("state of the scrub not readable", "slot", slot, "err", err)
		}
		s.state, s.loaded = state, true
	}
	if !s.state.Begun.IsZero() {
		return true, false
	}
	next := e.scrubDue(store, &s.state)
	return false, asked || !next.IsZero() && time.Now().After(next)
}

// beginScrub marks a drive's scrub as running.
func (e *Engine) beginScrub(slot uint8, anew bool) {
	s := &e.scrubs.slots[slot]
	stats := e.stores[slot].Stats()
	s.mu.Lock()
	defer s.mu.Unlock()
	if anew {
		s.state = record.Scrub{Begun: now(), Finished: s.state.Finished}
	}
	s.total = stats.DataBytes - stats.FreeBytes
	s.running = true
	s.rate.reset(int64(s.state.Bytes))
}

// abandon undoes a beginning.
func (s *scrubbing) abandon() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running, s.state.Begun = false, time.Time{}
}

// scrubDue is when the next scrub of a drive is to begin; the zero time if never.
func (e *Engine) scrubDue(store *shardstore.Store, s *record.Scrub) time.Time {
	if e.cfg.ScrubInterval <= 0 {
		return time.Time{}
	}
	last := s.Finished
	if last.IsZero() {
		last = store.Label().Created
	}
	return last.Add(e.cfg.ScrubInterval)
}

func loadScrub(store *shardstore.Store) (record.Scrub, error) {
	value, err := store.Get(record.ScrubKey(), nil)
	if errors.Is(err, shardstore.ErrNotFound) {
		return record.Scrub{}, nil
	}
	if err != nil {
		return record.Scrub{}, err
	}
	s, err := record.DecodeScrub(value)
	if err != nil {
		return record.Scrub{}, err
	}
	return *s, nil
}

// scrubDrive carries a scrub on to its end, or to that of ctx or of the drive.
func (e *Engine) scrubDrive(ctx context.Context, slot uint8) {
	e.scrubs.pace.working.Add(1)
	r := &scrubRun{e: e, slot: slot, store: e.stores[slot], s: &e.scrubs.slots[slot], saved: time.Now()}
	err := r.run(ctx)
	last := e.scrubs.pace.working.Add(-1) == 0
	s := r.s
	s.mu.Lock()
	s.running = false
	if err == nil {
		s.state.Begun, s.state.Finished = time.Time{}, now()
	}
	state := s.state
	s.mu.Unlock()
	if saveErr := r.save(true); err == nil {
		err = saveErr
	}
	switch {
	case ctx.Err() != nil:
	case err != nil:
		e.log.Warn("scrub goes on later", "slot", slot, "err", err)
	default:
		e.log.Info("scrub is complete", "slot", slot, "shards", state.Shards, "bytes", state.Bytes, "damaged", state.Damaged)
	}
	if last && err == nil {
		e.askRepair() // shards that are not there at all, only the index knows of
	}
}

// scrubRun is a scrub at work.
type scrubRun struct {
	e     *Engine
	slot  uint8
	store *shardstore.Store
	s     *scrubbing
	saved time.Time
}

func (r *scrubRun) run(ctx context.Context) error {
	if err := r.save(true); err != nil {
		return err
	}
	if err := r.metadata(ctx); err != nil {
		return err
	}
	return r.shards(ctx)
}

// save keeps the state on the drive, once in a while.
func (r *scrubRun) save(now bool) error {
	if !now && time.Since(r.saved) < scrubSave {
		return nil
	}
	r.saved = time.Now()
	r.s.mu.Lock()
	value := record.AppendScrub(nil, &r.s.state)
	r.s.mu.Unlock()
	b := r.store.NewBatch()
	b.Set(record.ScrubKey(), value)
	return r.store.Commit(context.Background(), b, false)
}

// pause waits as the rate and the clients ask.
func (r *scrubRun) pause(ctx context.Context, bytes int64, took time.Duration) error {
	if err := r.s.pace.pace(ctx, bytes, 0); err != nil {
		return err
	}
	return r.e.scrubs.pace.pace(ctx, 0, took)
}

// errBatch ends a listing of shards.
var errBatch = errors.New("enough for now")

// listedShard is a shard to read.
type listedShard struct {
	id        shardstore.ShardID
	sizeBytes int64
}

// shards reads all shards, from the last one that was read.
func (r *scrubRun) shards(ctx context.Context) error {
	for {
		if r.e.view.Load().Slots[r.slot].State != placement.In {
			return errors.New("the drive is out")
		}
		r.s.mu.Lock()
		after := shardstore.ShardID{Segment: r.s.state.Segment, Index: r.s.state.Index}
		r.s.mu.Unlock()
		var batch []listedShard
		err := r.store.Shards(after, func(id shardstore.ShardID, info shardstore.ShardInfo) error {
			if batch = append(batch, listedShard{id, info.SizeBytes}); len(batch) == scrubBatch {
				return errBatch
			}
			return nil
		})
		if err != nil && !errors.Is(err, errBatch) {
			return err
		}
		for _, sh := range batch {
			if err := r.shard(ctx, sh); err != nil {
				return err
			}
		}
		if err == nil {
			return nil
		}
	}
}

// shard reads one shard, and has it mended if it is damaged.
func (r *scrubRun) shard(ctx context.Context, sh listedShard) error {
	damaged, err := r.read(ctx, sh)
	if err != nil {
		return err
	}
	if damaged {
		if err := r.wound(ctx, sh.id); err != nil {
			return err
		}
	} else if err := r.checkOwner(sh.id); err != nil {
		return err
	}
	r.s.mu.Lock()
	st := &r.s.state
	st.Segment, st.Index = sh.id.Segment, sh.id.Index
	st.Shards++
	if damaged {
		st.Damaged++
	}
	bytes := int64(st.Bytes)
	r.s.mu.Unlock()
	r.s.rate.note(bytes)
	r.e.counters.ScrubbedShards.Add(1)
	return r.save(false)
}

// read reads all blocks of a shard, and says whether it is damaged. One that was deleted meanwhile is not.
func (r *scrubRun) read(ctx context.Context, sh listedShard) (damaged bool, err error) {
	for off := int64(0); off < sh.sizeBytes; off += scrubStep {
		n := min(scrubStep, sh.sizeBytes-off)
		begun := time.Now()
		err := r.step(ctx, sh.id, off, n)
		switch {
		case err == nil:
		case errors.Is(err, shardstore.ErrNotFound), errors.Is(err, shardstore.ErrInvalid):
			return false, nil // deleted, or replaced by a shorter one
		case ctx.Err() != nil, errors.Is(err, shardstore.ErrDead), errors.Is(err, shardstore.ErrClosed):
			return false, errors.Join(ctx.Err(), err)
		default:
			r.e.log.Warn("scrub found a damaged shard", "slot", r.slot, "shard", sh.id, "err", err)
			r.e.counters.ScrubDamaged.Add(1)
			return true, nil
		}
		r.e.counters.ScrubbedBytes.Add(uint64(n))
		r.s.mu.Lock()
		r.s.state.Bytes += uint64(n)
		r.s.mu.Unlock()
		if err := r.pause(ctx, n, time.Since(begun)); err != nil {
			return false, err
		}
	}
	return false, nil
}

// step reads into a buffer of the arena, which it gives back: a rest must not keep it from clients.
func (r *scrubRun) step(ctx context.Context, id shardstore.ShardID, off, n int64) error {
	for {
		buffer, err := r.e.cfg.Arena.Acquire(ctx, int(n))
		if errors.Is(err, arena.ErrOverloaded) {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(scrubRetry):
				continue
			}
		}
		if err != nil {
			return err
		}
		err = r.store.ReadShard(id, off, [][]byte{buffer.At(0)})
		buffer.Release()
		return err
	}
}

// wound hands a damaged shard to the mender, and waits for room in its queue.
func (r *scrubRun) wound(ctx context.Context, id shardstore.ShardID) error {
	w, err := r.e.woundOf(r.slot, id)
	if err != nil || w == nil {
		return err
	}
	for {
		r.e.mender.nudge()
		select {
		case r.e.heals <- *w:
			r.e.mender.nudge()
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
		}
	}
}

// woundOf says of which record a shard on a drive is; nil if no record refers to it there.
func (e *Engine) woundOf(slot uint8, id shardstore.ShardID) (*wound, error) {
	value, err := e.stores[slot].Get(record.OwnerKey(id.Segment, int(id.Index)), nil)
	if errors.Is(err, shardstore.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	owner, err := record.DecodeOwner(value)
	if err != nil {
		return nil, fmt.Errorf("owner of shard %v: %w", id, err)
	}
	l, err := e.layoutOfOwner(owner)
	if err != nil || l == nil {
		return nil, err
	}
	instance, i := record.InstanceOf(id.Segment)
	if l.Instance != instance || i >= len(l.Segments) {
		return nil, nil
	}
	slots := l.Segments[i].Slots
	if int(id.Index) >= len(slots) || slots[id.Index] != slot {
		return nil, nil
	}
	return &wound{owner: *owner, layout: *l, segment: i, bad: []int{int(id.Index)}, wrong: []int{int(id.Index)},
		found: time.Now()}, nil
}

// checkOwner counts a shard that no record refers to, and that isn't pending: its space is lost. It is not freed:
// a fault of the index must not cost data.
func (r *scrubRun) checkOwner(id shardstore.ShardID) error {
	w, err := r.e.woundOf(r.slot, id)
	if err != nil || w != nil {
		return err
	}
	_, err = r.store.Get(record.PendingKey(id.Segment, int(id.Index)), nil)
	if !errors.Is(err, shardstore.ErrNotFound) {
		return err
	}
	if _, err := r.store.ShardInfo(id); errors.Is(err, shardstore.ErrNotFound) {
		return nil // deleted meanwhile
	}
	if w, err = r.e.woundOf(r.slot, id); err != nil || w != nil {
		return err // its record came meanwhile
	}
	r.e.counters.ScrubOrphans.Add(1)
	return nil
}
