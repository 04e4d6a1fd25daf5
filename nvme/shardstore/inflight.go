package shardstore

import (
	"math"
	"sync"
	"sync/atomic"
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
