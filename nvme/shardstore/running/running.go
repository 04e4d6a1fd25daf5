// Package running knows which operations on a drive are under way, and since when, so that one that
// never ends is found.
//
// It stops nothing and starts no timer: somebody asks it, once in a while. It counts nothing and
// doesn't know what the operations are.
//
// Invariant: as long as no more than a bounded number run at once, every one is seen. Of more, some
// are not; when a drive hangs, the first to hang are among those that are.
package running

import (
	"sync/atomic"
	"time"
)

// Ops are the operations under way. New makes one; its methods may be called from many goroutines.
type Ops struct {
	base  time.Time
	next  atomic.Uint32
	slots [slots]slot
}

const (
	slots = 128
	tries = 4
)

// slot is alone on its cache line. Zero is empty.
type slot struct {
	started atomic.Int64 // nanoseconds since base
	_       [56]byte
}

// New returns Ops with nothing under way.
func New() *Ops { return &Ops{base: time.Now()} }

// Now is the time since New.
func (o *Ops) Now() time.Duration { return time.Since(o.base) }

// Start notes an operation that starts now. The token is for End.
func (o *Ops) Start() (token int) {
	now := max(1, int64(o.Now()))
	i := o.next.Add(1)
	for range tries {
		if o.slots[i%slots].started.CompareAndSwap(0, now) {
			return int(i % slots)
		}
		i++
	}
	return -1
}

// End notes that the operation of the token has ended.
func (o *Ops) End(token int) {
	if token >= 0 {
		o.slots[token].started.Store(0)
	}
}

// Oldest gives how long the longest running operation has been running; 0 if none is.
func (o *Ops) Oldest() time.Duration {
	now, age := o.Now(), time.Duration(0)
	for i := range o.slots {
		if started := o.slots[i].started.Load(); started != 0 {
			age = max(age, now-time.Duration(started))
		}
	}
	return age
}
