package shardstore

import (
	"sync"
	"sync/atomic"

	"github.com/millrace/millrace/nvme/blockdev"
	"github.com/millrace/millrace/nvme/shardstore/running"
)

// flusher coalesces device flushes: callers that arrive while a flush runs share the next one.
type flusher struct {
	dev      blockdev.Device
	ops      *running.Ops
	mu       sync.Mutex
	cond     sync.Cond
	started  uint64        // flushes started
	finished uint64        // flushes finished; they run one after the other
	count    atomic.Uint64 // finished, for readers without the lock
	err      error         // the first failure; there is no flush after it
}

func newFlusher(dev blockdev.Device, ops *running.Ops) *flusher {
	f := &flusher{dev: dev, ops: ops}
	f.cond.L = &f.mu
	return f
}

// flush returns after a device flush that started after the call, or after stop. A flush that was
// running already may have missed the caller's last writes.
func (f *flusher) flush() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	need := f.started + 1
	for f.finished < need && f.err == nil {
		if f.started == f.finished {
			f.started++
			go f.run()
		}
		f.cond.Wait()
	}
	return f.err
}

// run is one device flush, on a goroutine that can be left behind.
func (f *flusher) run() {
	op := f.ops.Start()
	err := f.dev.Flush()
	f.ops.End(op)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.finished++
	f.count.Store(f.finished)
	if f.err == nil {
		f.err = err
	}
	f.cond.Broadcast()
}

// stop ends all waiting: the drive is dead because of err.
func (f *flusher) stop(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.err = err
	}
	f.cond.Broadcast()
}
