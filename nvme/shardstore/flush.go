package shardstore

import (
	"sync"
	"sync/atomic"

	"github.com/millrace/millrace/nvme/blockdev"
)

// flusher coalesces device flushes: callers that arrive while a flush runs share the next one.
type flusher struct {
	dev      blockdev.Device
	mu       sync.Mutex
	cond     sync.Cond
	started  uint64        // flushes started
	finished uint64        // flushes finished; they run one after the other
	count    atomic.Uint64 // finished, for readers without the lock
	err      error         // the first failure; there is no flush after it
}

func newFlusher(dev blockdev.Device) *flusher {
	f := &flusher{dev: dev}
	f.cond.L = &f.mu
	return f
}

// flush returns after a device flush that started after the call. One that was running already
// may have missed the caller's last writes.
func (f *flusher) flush() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	need := f.started + 1
	for f.finished < need && f.err == nil {
		if f.started > f.finished {
			f.cond.Wait()
			continue
		}
		f.started++
		f.mu.Unlock()
		err := f.dev.Flush()
		f.mu.Lock()
		f.finished++
		f.count.Store(f.finished)
		f.err = err
		f.cond.Broadcast()
	}
	return f.err
}
