package shardstore

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// relief gives space back when the metadata is full. What was deleted keeps its space until its table is compacted,
// and Pebble compacts when something is written; but in a store that is full nothing is.
type relief struct {
	deleted atomic.Bool  // something was, since the last relief
	running atomic.Bool  // there is one at a time
	next    atomic.Int64 // not before, in the store's own time
	ctx     context.Context
	stop    context.CancelFunc
}

// reliefPause is how long the next relief waits at least. It waits as long as the last took, too.
const reliefPause = 100 * time.Millisecond

// reliefWait bounds the time for one table.
const reliefWait = 10 * time.Second

func (r *relief) init() { r.ctx, r.stop = context.WithCancel(context.Background()) }

// noteDeleted says that something was deleted.
func (r *relief) noteDeleted() {
	if !r.deleted.Load() {
		r.deleted.Store(true)
	}
}

// makeRoom begins a relief, unless there is nothing to gain or it is too early. The caller has entered the store.
func (s *Store) makeRoom() {
	r := &s.relief
	if !r.deleted.Load() || int64(s.ops.Now()) < r.next.Load() || !r.running.CompareAndSwap(false, true) {
		return
	}
	go func() {
		defer r.running.Store(false)
		if s.enter() != nil {
			return
		}
		defer s.leave()
		r.deleted.Store(false)
		began := s.ops.Now()
		err := s.compactWhileShort()
		if err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, pebble.ErrCancelledCompaction) {
			s.log.Warn("compaction of full metadata", "error", err)
		}
		took := s.ops.Now() - began
		r.next.Store(int64(s.ops.Now() + max(took, reliefPause)))
	}()
}

// compactWhileShort compacts table after table of the lowest level, with what lies above it, until there is room again.
// It takes one at a time since what a compaction reads and what it writes are both there for a while.
func (s *Store) compactWhileShort() error {
	if err := s.db.Flush(); err != nil {
		return err
	}
	levels, err := s.db.SSTables()
	if err != nil {
		return err
	}
	levels = slices.DeleteFunc(levels, func(l []pebble.SSTableInfo) bool { return len(l) == 0 })
	if len(levels) == 0 {
		return nil
	}
	for _, t := range levels[len(levels)-1] {
		after := append(bytes.Clone(t.Largest.UserKey), 0)
		s.scans.letGo()
		if err := s.compactWithin(reliefWait, t.Smallest.UserKey, after); err != nil && !errors.Is(err, errNoSpaceFor) {
			return err
		}
		if s.room.ask(); !s.room.short() {
			s.relief.noteDeleted() // there may be more to gain
			return nil
		}
	}
	return s.awaitRewrites()
}

// compactWithin compacts a range of keys, unless it does not come to that: Pebble puts the compactions first that it finds
// necessary, and there may be no space for those.
func (s *Store) compactWithin(wait time.Duration, start, end []byte) error {
	ctx, cancel := context.WithTimeout(s.relief.ctx, wait)
	defer cancel()
	err := s.db.Compact(ctx, start, end, false)
	if errors.Is(err, context.DeadlineExceeded) {
		s.relief.noteDeleted() // to try again
		return context.Canceled
	}
	return err
}

// awaitRewrites waits until there is room by the rewriting of files of bodies, as long as that may take to begin and a
// little longer. A file that was too young when Pebble looked for such files is looked at again only after a flush, even if
// that has nothing to write: once there was none to be rewritten, Pebble's scheduler is told that nothing waits.
func (s *Store) awaitRewrites() error {
	tick := time.NewTicker(rewriteAge / 10)
	defer tick.Stop()
	for range 20 {
		select {
		case <-s.relief.ctx.Done():
			return s.relief.ctx.Err()
		case <-s.guard.Dead():
			return nil
		case <-tick.C:
		}
		if s.relief.deleted.Load() {
			return nil // the next can do more
		}
		if err := s.db.Flush(); err != nil {
			return err
		}
		if s.room.ask(); !s.room.short() {
			s.relief.noteDeleted()
			return nil
		}
	}
	return nil
}
