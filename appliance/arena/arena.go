// Package arena is the one pool of I/O buffers: object bytes live in its memory from the drive to the
// socket and back. It is one anonymous mapping, cut in chunks of 1 MiB and, inside a chunk, in
// power-of-two blocks from 64 KiB up.
//
// It is not a general allocator and not a cache: it holds nothing between two requests, and it does not
// clear what it hands out. It reuses what was given back last, so that the memory touched stays near the
// peak of concurrent use.
//
// Invariant: a request gets all of its buffers at once or none, in the order of arrival, so requests that
// hold nothing while they ask can't block each other for good, and a large one is not starved by small ones.
package arena

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Sizes of the arena's pieces, in bytes.
const (
	// MinBytes is the smallest buffer; less is rounded up.
	MinBytes = 64 << 10
	// MaxBytes is the largest single buffer, and the size of a chunk.
	MaxBytes = 1 << 20
	// AlignBytes is the least alignment of every buffer's address.
	AlignBytes = 4096
)

// The errors that callers branch on.
var (
	// ErrOverloaded is returned when a request waited for its limit, or found the queue full.
	ErrOverloaded = errors.New("arena overloaded")
	// ErrTooLarge is returned for a request that could never be met.
	ErrTooLarge = errors.New("request larger than the arena")
)

const defaultMaxWaiters = 4096

// Config says how large an arena is and how its requests wait.
type Config struct {
	// SizeBytes is the capacity, rounded down to whole chunks of MaxBytes; at least one chunk.
	SizeBytes int64
	// WaitLimit is how long a request waits for memory; 0 means as long as its context allows.
	WaitLimit time.Duration
	// MaxWaiters is how many requests may wait at once; 0 means 4096.
	MaxWaiters int
	// Strict makes a second Release of the same Buffers panic instead of doing nothing. For tests.
	Strict bool
}

// Arena is the pool. Its methods may be called from many goroutines at once.
type Arena struct {
	cfg    Config
	mem    []byte
	mapped []byte // mem with the slack of its alignment

	mu      sync.Mutex
	buddy   buddy
	waiters []*waiter
	peak    int // blocks
	waits   uint64
	refused uint64
}

type waiter struct {
	bufs    *Buffers
	granted chan struct{}
}

// Stats are an arena's counters at one moment.
type Stats struct {
	CapacityBytes int64
	InUseBytes    int64  // what is handed out, rounding included
	PeakBytes     int64  // the highest InUseBytes so far
	Waiters       int    // requests waiting now
	Waits         uint64 // requests that had to wait, since New
	Refused       uint64 // requests that ended in ErrOverloaded, since New
}

// New maps an arena. Its memory is not touched before it is used.
func New(cfg Config) (*Arena, error) {
	chunks := cfg.SizeBytes / MaxBytes
	if chunks < 1 {
		return nil, fmt.Errorf("arena of %d bytes: less than one chunk of %d", cfg.SizeBytes, MaxBytes)
	}
	if chunks > maxChunks {
		return nil, fmt.Errorf("arena of %d bytes: more than %d chunks", cfg.SizeBytes, maxChunks)
	}
	if cfg.MaxWaiters <= 0 {
		cfg.MaxWaiters = defaultMaxWaiters
	}
	mapped, mem, err := mapMemory(int(chunks) * MaxBytes)
	if err != nil {
		return nil, fmt.Errorf("map arena of %d bytes: %w", cfg.SizeBytes, err)
	}
	return &Arena{cfg: cfg, mem: mem, mapped: mapped, buddy: newBuddy(int(chunks))}, nil
}

const hugePageBytes = 2 << 20

// mapMemory maps n bytes at an address that is a multiple of a huge page, and asks for huge pages: a MiB is then one piece
// for a drive and for the MMU, and not 256. The price is that memory becomes resident in steps of 2 MiB.
func mapMemory(n int) (mapped, mem []byte, err error) {
	mapped, err = unix.Mmap(-1, 0, n+hugePageBytes, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, nil, err
	}
	skip := int(-addressOf(mapped) & (hugePageBytes - 1))
	mem = mapped[skip : skip+n : skip+n]
	_ = unix.Madvise(mem, unix.MADV_HUGEPAGE) // a kernel without huge pages refuses; nothing depends on it
	return mapped, mem, nil
}

// Acquire returns one buffer for each size, all at once. It waits while there is too little free memory,
// until ctx ends (its error is returned) or the wait limit passes (ErrOverloaded). A caller must hold no
// buffers of this arena while it waits. Sizes are 1 … MaxBytes; the content of the buffers is arbitrary.
func (a *Arena) Acquire(ctx context.Context, sizes ...int) (*Buffers, error) {
	b, err := a.prepare(sizes)
	if err != nil {
		return nil, err
	}
	return a.acquire(ctx, b)
}

// AcquireN is Acquire of n buffers of sizeBytes each.
func (a *Arena) AcquireN(ctx context.Context, n, sizeBytes int) (*Buffers, error) {
	b := a.newBuffers(n)
	for range n {
		if err := b.want(sizeBytes); err != nil {
			return nil, err
		}
	}
	return a.acquire(ctx, b)
}

// TryAcquire is Acquire without waiting: it returns nil when the memory is not free now, or others wait
// for it. It may be called while holding buffers.
func (a *Arena) TryAcquire(sizes ...int) *Buffers {
	b, err := a.prepare(sizes)
	if err != nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.waiters) > 0 || !a.grant(b) {
		return nil
	}
	return b
}

func (a *Arena) prepare(sizes []int) (*Buffers, error) {
	b := a.newBuffers(len(sizes))
	for _, size := range sizes {
		if err := b.want(size); err != nil {
			return nil, err
		}
	}
	return b, nil
}

func (a *Arena) acquire(ctx context.Context, b *Buffers) (*Buffers, error) {
	if need := b.blocks(); need > a.buddy.total {
		return nil, fmt.Errorf("%w: %d of %d bytes", ErrTooLarge, need*MinBytes, len(a.mem))
	}
	a.mu.Lock()
	if len(a.waiters) == 0 && a.grant(b) {
		a.mu.Unlock()
		return b, nil
	}
	if len(a.waiters) >= a.cfg.MaxWaiters {
		a.refused++
		a.mu.Unlock()
		return nil, ErrOverloaded
	}
	w := &waiter{bufs: b, granted: make(chan struct{})}
	a.waiters = append(a.waiters, w)
	a.waits++
	a.mu.Unlock()
	return a.wait(ctx, w)
}

func (a *Arena) wait(ctx context.Context, w *waiter) (*Buffers, error) {
	var limit <-chan time.Time
	if a.cfg.WaitLimit > 0 {
		timer := time.NewTimer(a.cfg.WaitLimit)
		defer timer.Stop()
		limit = timer.C
	}
	var err error
	select {
	case <-w.granted:
		return w.bufs, nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-limit:
		err = ErrOverloaded
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	i := slices.Index(a.waiters, w)
	if i < 0 { // granted meanwhile
		return w.bufs, nil
	}
	a.waiters = slices.Delete(a.waiters, i, i+1)
	if err == ErrOverloaded {
		a.refused++
	}
	a.wake() // those behind may fit where this one did not
	return nil, err
}

// grant takes all blocks of b, or none. The lock is held.
func (a *Arena) grant(b *Buffers) bool {
	if b.blocks() > a.buddy.free {
		return false
	}
	for i := range b.refs {
		start, ok := a.buddy.take(int(b.refs[i].class))
		if !ok {
			for j := range i {
				a.buddy.give(b.refs[j].start, int(b.refs[j].class))
			}
			return false
		}
		b.refs[i].start = start
	}
	a.peak = max(a.peak, a.buddy.total-a.buddy.free)
	return true
}

// wake serves the waiters in order, as far as the memory goes. The lock is held.
func (a *Arena) wake() {
	for len(a.waiters) > 0 && a.grant(a.waiters[0].bufs) {
		close(a.waiters[0].granted)
		a.waiters = slices.Delete(a.waiters, 0, 1)
	}
}

// InUseBytes is what is handed out now, rounding included.
func (a *Arena) InUseBytes() int64 { return a.Stats().InUseBytes }

// CapacityBytes is the size of the arena.
func (a *Arena) CapacityBytes() int64 { return int64(len(a.mem)) }

// Memory is the whole of the arena's memory, for registration with devices. Nobody but the holders of
// Buffers may read or write it.
func (a *Arena) Memory() []byte { return a.mem }

// Stats returns the counters.
func (a *Arena) Stats() Stats {
	a.mu.Lock()
	defer a.mu.Unlock()
	return Stats{
		CapacityBytes: int64(len(a.mem)),
		InUseBytes:    int64(a.buddy.total-a.buddy.free) * MinBytes,
		PeakBytes:     int64(a.peak) * MinBytes,
		Waiters:       len(a.waiters),
		Waits:         a.waits,
		Refused:       a.refused,
	}
}

// Close unmaps the arena. It fails while buffers are handed out.
func (a *Arena) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if used := a.buddy.total - a.buddy.free; used > 0 {
		return fmt.Errorf("close arena: %d bytes in use", used*MinBytes)
	}
	if a.mapped == nil {
		return nil
	}
	err := unix.Munmap(a.mapped)
	a.mem, a.mapped, a.buddy = nil, nil, buddy{}
	return err
}
