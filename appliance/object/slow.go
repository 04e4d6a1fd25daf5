package object

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/nvme/shardstore"
)

const (
	// slowFactor times the usual duration of a shard read is long.
	slowFactor = 4
	// slowLeast is the least duration that is long.
	slowLeast = time.Millisecond
	// slowFor and slowReads are how long, and for how many reads at least, a drive is watched before it is judged. While
	// cores or links are short, reads of any drive are long for moments, and reading other shards instead would be more
	// work.
	slowFor   = time.Second
	slowReads = 16
	// slowProbe: of so many reads that a slow drive is spared, one asks it all the same, to see how it does.
	slowProbe = 32
	// stallLeast is how long a call to a drive runs until the drive counts as slow at once; it may hang.
	stallLeast = 3 * time.Second
)

// pace is how fast a drive reads. A slow drive is spared: reads use others as long as there are enough.
type pace struct {
	slow    atomic.Bool
	stalled atomic.Bool // a call has been running for long
	spared  atomic.Uint32
	late    atomic.Uint64 // reads that were not waited for

	mu    sync.Mutex
	since time.Time     // when it began to be watched for the next judgement
	reads int64         // since then
	long  int64         // of them
	spent time.Duration // by them
	mean  time.Duration // of a read, at the last judgement
}

// took takes note of a read that ended now. usual is the median of all drives. A drive comes to be slow when three of four
// reads were long, and ceases to be when most were not.
func (p *pace) took(d, usual time.Duration, now time.Time) (changed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reads == 0 {
		p.since = now
	}
	p.reads++
	p.spent += d
	if d > max(slowLeast, slowFactor*usual) {
		p.long++
	}
	if p.reads < slowReads || now.Sub(p.since) < slowFor {
		return false
	}
	was := p.slow.Load()
	slow := 4*p.long >= 3*p.reads || was && 2*p.long >= p.reads
	p.mean = p.spent / time.Duration(p.reads)
	p.reads, p.long, p.spent = 0, 0, 0
	p.slow.Store(slow)
	return slow != was
}

// meanRead is the mean duration of a read, lately.
func (p *pace) meanRead() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mean
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
		e.log.Warn("drive is slow: reads spare it", "slot", slot, "read", p.meanRead(), "usual", usual,
			"stalled", p.stalled.Load())
	} else {
		e.log.Info("drive is no longer slow", "slot", slot, "read", p.meanRead(), "usual", usual)
	}
}

// lookForStall spares a drive while one of its calls takes very long.
func (e *Engine) lookForStall(slot int) {
	stalled := e.stores[slot].Stats().OldestOp > stallLeast
	if e.paces[slot].stalled.Swap(stalled) != stalled {
		e.notePace(slot)
	}
}
