package client

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/verbs"
)

// poolUnit is what sizes in a pool are rounded up to.
const poolUnit = 64 << 10

// pool is one piece of registered memory, from which calls take buffers for as long as they last.
type pool struct {
	mem  []byte
	size int

	mu     sync.Mutex
	free   []extent // sorted, never adjacent
	change chan struct{}
	closed bool
	used   int
}

// extent is the part [start, end) of a pool.
type extent struct{ start, end int }

func newPool(size int64) (*pool, error) {
	size = max((size+poolUnit-1)/poolUnit*poolUnit, 2*poolUnit)
	mem, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes: %w", size, err)
	}
	_ = unix.Madvise(mem, unix.MADV_HUGEPAGE) // only a hint
	return &pool{mem: mem, size: len(mem), free: []extent{{0, len(mem)}}, change: make(chan struct{})}, nil
}

func (p *pool) sizeBytes() int64 { return int64(p.size) }

// take returns a buffer of n bytes, and waits until there is room for it.
func (p *pool) take(ctx context.Context, n int) ([]byte, error) {
	for {
		p.mu.Lock()
		buf, change, closed := p.fit(n), p.change, p.closed
		p.mu.Unlock()
		switch {
		case buf != nil:
			return buf, nil
		case closed:
			return nil, verbs.ErrClosed
		case n > p.size:
			return nil, fmt.Errorf("%d bytes do not fit into the pool's %d", n, p.size)
		}
		select {
		case <-change:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// try returns a buffer of n bytes, or nil.
func (p *pool) try(n int) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.fit(n)
}

// fit takes the first free part that is large enough. The caller holds p.mu.
func (p *pool) fit(n int) []byte {
	size := max(n+poolUnit-1, poolUnit) / poolUnit * poolUnit
	for i := range p.free {
		e := &p.free[i]
		if p.closed || e.end-e.start < size {
			continue
		}
		start := e.start
		if e.start += size; e.start == e.end {
			p.free = slices.Delete(p.free, i, i+1)
		}
		p.used += size
		return p.mem[start : start+n : start+size]
	}
	return nil
}

// give takes a buffer back.
func (p *pool) give(buf []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := extent{start: int(addressOf(buf) - addressOf(p.mem))}
	e.end = e.start + cap(buf)
	i, _ := slices.BinarySearchFunc(p.free, e, func(a, b extent) int { return a.start - b.start })
	p.free = slices.Insert(p.free, i, e)
	if i+1 < len(p.free) && p.free[i].end == p.free[i+1].start {
		p.free[i].end = p.free[i+1].end
		p.free = slices.Delete(p.free, i+1, i+2)
	}
	if i > 0 && p.free[i-1].end == p.free[i].start {
		p.free[i-1].end = p.free[i].end
		p.free = slices.Delete(p.free, i, i+1)
	}
	p.used -= cap(buf)
	if p.closed && p.used == 0 {
		p.unmap()
	}
	close(p.change)
	p.change = make(chan struct{})
}

// close gives the memory back when no call uses it any more. The device must not use it by then.
func (p *pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.used == 0 {
		p.unmap()
	}
	close(p.change)
	p.change = make(chan struct{})
}

func (p *pool) unmap() {
	if p.mem != nil {
		_ = unix.Munmap(p.mem)
		p.mem = nil
	}
}
