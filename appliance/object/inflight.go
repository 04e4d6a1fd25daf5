package object

import (
	"sync"
	"sync/atomic"
)

// inflight knows which mutations have begun and not ended, and so up to which sequence number
// all have.
type inflight struct {
	mu   sync.Mutex
	open map[uint64]struct{}
}

// begin takes the next number of the sequence.
func (f *inflight) begin(seq *atomic.Uint64) uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.open == nil {
		f.open = map[uint64]struct{}{}
	}
	n := seq.Add(1)
	f.open[n] = struct{}{}
	return n
}

func (f *inflight) end(n uint64) {
	f.mu.Lock()
	delete(f.open, n)
	f.mu.Unlock()
}

// settled returns the number up to which every mutation has ended.
func (f *inflight) settled(seq *atomic.Uint64) uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := seq.Load()
	for o := range f.open {
		n = min(n, o-1)
	}
	return n
}

// pins counts the readers of stored runs of bytes. What is to be freed waits until the last
// reader is gone.
type pins struct {
	mu      sync.Mutex
	readers map[pin]int
	waiting map[pin][]func()
}

// pin names an instance or an upload.
type pin [16]byte

func (p *pins) add(id pin) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.readers == nil {
		p.readers = map[pin]int{}
		p.waiting = map[pin][]func(){}
	}
	p.readers[id]++
}

func (p *pins) remove(id pin) {
	p.mu.Lock()
	p.readers[id]--
	var run []func()
	if p.readers[id] == 0 {
		delete(p.readers, id)
		run = p.waiting[id]
		delete(p.waiting, id)
	}
	p.mu.Unlock()
	for _, f := range run {
		f()
	}
}

// whenUnread calls f now, or when the last reader of id is gone.
func (p *pins) whenUnread(id pin, f func()) {
	p.mu.Lock()
	if p.readers[id] > 0 {
		p.waiting[id] = append(p.waiting[id], f)
		p.mu.Unlock()
		return
	}
	p.mu.Unlock()
	f()
}
