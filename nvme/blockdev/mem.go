package blockdev

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
)

// tornOneIn: of the blocks that are not flushed, one in so many is torn by a power cut.
const tornOneIn = 8

// sectorBytes is what a drive writes whole or not at all.
const sectorBytes = 512

type memData [AlignBytes]byte

// memBlock is one block: what reads give, and what a power cut would leave for sure. nil is
// zeros. The array that synced points to is never changed, so clones share it.
type memBlock struct{ live, synced *memData }

// Mem is a Device in memory that can lose power. It uses memory only for blocks that were
// written. Each call takes effect at one moment between its start and its return, so a Flush
// promises what had returned before it was called, and no write that starts later.
type Mem struct {
	size   int64
	mu     sync.RWMutex
	blocks map[int64]memBlock // by block number; absent is zeros, flushed
	dirty  map[int64]struct{} // blocks whose live and synced may differ
	closed bool
}

var _ Device = (*Mem)(nil)

// NewMem returns an empty device of sizeBytes, rounded down to AlignBytes.
func NewMem(sizeBytes int64) *Mem {
	return &Mem{
		size:   sizeBytes &^ (AlignBytes - 1),
		blocks: make(map[int64]memBlock),
		dirty:  make(map[int64]struct{}),
	}
}

// SizeBytes implements Device.
func (m *Mem) SizeBytes() int64 { return m.size }

// ReadAt implements Device.
func (m *Mem) ReadAt(bufs [][]byte, off int64) error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if _, err := check(bufs, off, m.size); err != nil || m.closed {
		return m.fail("read", off, err)
	}
	block := off / AlignBytes
	for _, b := range bufs {
		for ; len(b) > 0; b, block = b[AlignBytes:], block+1 {
			if live := m.blocks[block].live; live != nil {
				copy(b, live[:])
			} else {
				clear(b[:AlignBytes])
			}
		}
	}
	return nil
}

// WriteAt implements Device.
func (m *Mem) WriteAt(bufs [][]byte, off int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := check(bufs, off, m.size); err != nil || m.closed {
		return m.fail("write", off, err)
	}
	block := off / AlignBytes
	for _, b := range bufs {
		for ; len(b) > 0; b, block = b[AlignBytes:], block+1 {
			s := m.blocks[block]
			if s.live == nil || s.live == s.synced {
				s.live = new(memData)
				m.blocks[block] = s
				m.dirty[block] = struct{}{}
			}
			copy(s.live[:], b)
		}
	}
	return nil
}

// Flush implements Device.
func (m *Mem) Flush() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return m.fail("flush", 0, nil)
	}
	for block := range m.dirty {
		s := m.blocks[block]
		if s.live == nil {
			delete(m.blocks, block)
			continue
		}
		m.blocks[block] = memBlock{live: s.live, synced: s.live}
	}
	clear(m.dirty)
	return nil
}

// Discard implements Device. Discarded blocks read as zeros at once; until the next Flush a
// power cut may bring their old bytes back.
func (m *Mem) Discard(off, n int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := checkRange(off, n, m.size); err != nil || m.closed {
		return m.fail("discard", off, err)
	}
	first, end := off/AlignBytes, (off+n)/AlignBytes
	forget := func(block int64) {
		if s, there := m.blocks[block]; there {
			m.blocks[block] = memBlock{synced: s.synced}
			m.dirty[block] = struct{}{}
		}
	}
	if end-first <= int64(len(m.blocks)) {
		for block := first; block < end; block++ {
			forget(block)
		}
		return nil
	}
	for block := range m.blocks {
		if first <= block && block < end {
			forget(block)
		}
	}
	return nil
}

// Close implements Device. A closed Mem can still be cloned.
func (m *Mem) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return m.fail("close", 0, nil)
	}
	m.closed = true
	return nil
}

// CrashClone returns what a power cut at this moment would leave, as a new, open device: all
// that was flushed, and each block written or discarded since then with a probability of
// keepPercent; some of those blocks are torn: their 512-byte sectors fare one by one. With 0
// nothing that was not flushed is left, with 100 all of it. The same rng gives the same clone.
func (m *Mem) CrashClone(rng *rand.Rand, keepPercent int) *Mem {
	m.mu.RLock()
	defer m.mu.RUnlock()
	c := NewMem(m.size)
	maps.Copy(c.blocks, m.blocks)
	for _, block := range slices.Sorted(maps.Keys(m.dirty)) {
		if data := m.blocks[block].afterCut(rng, keepPercent); data != nil {
			c.blocks[block] = memBlock{live: data, synced: data}
		} else {
			delete(c.blocks, block)
		}
	}
	return c
}

// afterCut draws what is left of a block that was not flushed; nil is zeros.
func (s memBlock) afterCut(rng *rand.Rand, keepPercent int) *memData {
	kept := func() bool { return rng.IntN(100) < keepPercent }
	torn := rng.IntN(tornOneIn) == 0
	if !torn && !kept() {
		return s.synced
	}
	data := new(memData)
	if s.live != nil {
		*data = *s.live
	}
	if !torn {
		return data
	}
	old := s.synced
	if old == nil {
		old = new(memData)
	}
	for at := 0; at < AlignBytes; at += sectorBytes {
		if !kept() {
			copy(data[at:at+sectorBytes], old[at:])
		}
	}
	return data
}

// fail names an error of a call; with none, the device is closed.
func (m *Mem) fail(op string, off int64, err error) error {
	if m.closed {
		err = ErrClosed
	}
	if err == nil {
		return nil
	}
	return &OpError{Op: op, Path: fmt.Sprintf("memory of %d bytes", m.size), Off: off, Err: err}
}
