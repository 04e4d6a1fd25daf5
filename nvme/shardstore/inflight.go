package shardstore

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// gate lets operations in until it is closed, and then waits for those inside.
type gate struct {
	n       atomic.Int64
	once    sync.Once
	drained chan struct{}
}

// gateClosed is added to the count at close: the count is negative from then on.
const gateClosed = math.MinInt64 / 2

func (g *gate) enter() bool {
	if g.n.Add(1) < 0 {
		g.leave()
		return false
	}
	return true
}

func (g *gate) leave() {
	if g.n.Add(-1) == gateClosed {
		g.once.Do(func() { close(g.drained) })
	}
}

func (g *gate) closed() bool { return g.n.Load() < 0 }

// close returns when nobody is inside. It must be called once.
func (g *gate) close() {
	if g.n.Add(gateClosed) == gateClosed {
		g.once.Do(func() { close(g.drained) })
	}
	<-g.drained
}

// opTimes knows when the running operations started, so that a watcher finds one that hangs. It
// holds a bounded number; operations beyond that are not timed.
type opTimes struct {
	base  time.Time
	next  atomic.Uint32
	slots [opSlots]opSlot
}

const (
	opSlots = 128
	opTries = 4
)

// opSlot is alone on its cache line. Zero is empty.
type opSlot struct {
	started atomic.Int64 // nanoseconds since base
	_       [56]byte
}

// start notes an operation that starts now. The token is for end.
func (t *opTimes) start() (token int) {
	now := max(1, int64(time.Since(t.base)))
	i := t.next.Add(1)
	for range opTries {
		if t.slots[i%opSlots].started.CompareAndSwap(0, now) {
			return int(i % opSlots)
		}
		i++
	}
	return -1
}

func (t *opTimes) end(token int) {
	if token >= 0 {
		t.slots[token].started.Store(0)
	}
}

// oldest gives how long the longest running operation has been running; 0 if none is.
func (t *opTimes) oldest() time.Duration {
	now, age := time.Since(t.base), time.Duration(0)
	for i := range t.slots {
		if started := t.slots[i].started.Load(); started != 0 {
			age = max(age, now-time.Duration(started))
		}
	}
	return age
}
