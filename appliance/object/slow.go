package object

import (
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/nvme/shardstore"
)

const (
	// slowFactor times the usual duration of a shard read is slow, when it is usual for a drive.
	slowFactor = 4
	// slowLeast is the least usual duration that is slow.
	slowLeast = time.Millisecond
	// slowFor is how long that must have been so without a break. While cores or links are short, reads of any drive take
	// several times the usual for moments, and reading other shards instead would be more work.
	slowFor = time.Second
	// slowProbe: of so many reads that a slow drive is spared, one asks it all the same, to see how it does.
	slowProbe = 32
	// stallLeast is how long a call to a drive runs until the drive counts as slow at once; it may hang.
	stallLeast = 3 * time.Second
	// paceStep: one read moves a drive's median by 1/paceStep of itself.
	paceStep = 32
)

// pace is how fast a drive reads. A slow drive is spared: reads use others as long as there are enough. All fields
// are updated without a lock; a lost update of the median does no harm.
type pace struct {
	nanos   atomic.Int64 // running median of the duration of a shard read
	since   atomic.Int64 // when it came to be long, Unix time in ns; 0: it isn't
	slow    atomic.Bool
	stalled atomic.Bool // a call has been running for long
	spared  atomic.Uint32
	late    atomic.Uint64 // reads that were not waited for
}

// took takes the duration of a read that ended now into the median. usual is the median of all drives.
func (p *pace) took(d, usual time.Duration, now time.Time) (changed bool) {
	median, limit := time.Duration(p.nanos.Load()), max(slowLeast, slowFactor*usual)
	switch {
	case median == 0:
		median = min(d, usual)
	case d > median:
		median += median/paceStep + 1
	case d < median:
		median -= median / paceStep
	}
	median = min(median, limit+limit/4) // so that it comes down again soon
	p.nanos.Store(int64(median))
	switch slow := p.slow.Load(); {
	case slow:
		return median < limit/2 && p.slow.CompareAndSwap(true, false)
	case median <= limit:
		p.since.Store(0)
	case p.since.CompareAndSwap(0, now.UnixNano()):
	case now.UnixNano()-p.since.Load() >= int64(slowFor):
		p.since.Store(0) // for the next time
		return p.slow.CompareAndSwap(false, true)
	}
	return false
}

// spare says whether a read should do without the drive if it can.
func (p *pace) spare() bool {
	if p.stalled.Load() {
		return true
	}
	return p.slow.Load() && p.spared.Add(1)%slowProbe != 0
}

// isSlow says how the drive stands.
func (p *pace) isSlow() bool { return p.slow.Load() || p.stalled.Load() }

// Pace says whether a slot's drive is slow, and how many reads were not waited for.
func (e *Engine) Pace(slot int) (slow bool, late uint64) {
	return e.live(uint8(slot)) != nil && e.paces[slot].isSlow(), e.paces[slot].late.Load()
}

// shard reads one shard of a segment from its drive.
type shard struct {
	e     *Engine
	store *shardstore.Store
	id    shardstore.ShardID
	slot  uint8
}

// ReadShard implements segment.ShardReader.
func (s *shard) ReadShard(off int64, bufs [][]byte) error { return s.store.ReadShard(s.id, off, bufs) }

// Dead implements segment.Mortal.
func (s *shard) Dead() <-chan struct{} { return s.store.Dead() }

// Slow implements segment.Paced.
func (s *shard) Slow() bool { return s.e.paces[s.slot].spare() }

// Took implements segment.Paced.
func (s *shard) Took(d time.Duration) {
	if p := &s.e.paces[s.slot]; p.took(d, s.e.io.MedianRead(), time.Now()) {
		s.e.notePace(int(s.slot))
	}
}

// notePace tells the log that a drive became slow, or is so no more.
func (e *Engine) notePace(slot int) {
	p := &e.paces[slot]
	usual := e.io.MedianRead()
	if p.isSlow() {
		e.log.Warn("drive is slow: reads spare it", "slot", slot, "read", time.Duration(p.nanos.Load()), "usual", usual,
			"stalled", p.stalled.Load())
	} else {
		e.log.Info("drive is no longer slow", "slot", slot, "read", time.Duration(p.nanos.Load()), "usual", usual)
	}
}

// lookForStall spares a drive while one of its calls takes very long.
func (e *Engine) lookForStall(slot int) {
	stalled := e.stores[slot].Stats().OldestOp > stallLeast
	if e.paces[slot].stalled.Swap(stalled) != stalled {
		e.notePace(slot)
	}
}
