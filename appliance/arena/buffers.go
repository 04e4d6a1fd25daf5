package arena

import (
	"fmt"
	"math/bits"
	"unsafe"
)

// inlineBuffers is how many buffers a request may have without a second allocation.
const inlineBuffers = 8

// Buffers are the buffers of one request. They belong to the caller until Release; one goroutine at a
// time may call the methods, any may use the bytes.
type Buffers struct {
	arena    *Arena
	refs     []ref
	inline   [inlineBuffers]ref
	released bool
}

type ref struct {
	start int32 // in blocks of MinBytes from the start of the arena
	bytes int32
	class uint8
}

func (a *Arena) newBuffers(n int) *Buffers {
	b := &Buffers{arena: a}
	if n <= inlineBuffers {
		b.refs = b.inline[:0]
	} else {
		b.refs = make([]ref, 0, n)
	}
	return b
}

func (b *Buffers) want(sizeBytes int) error {
	if sizeBytes < 1 || sizeBytes > MaxBytes {
		return fmt.Errorf("%w: one buffer of %d bytes", ErrTooLarge, sizeBytes)
	}
	b.refs = append(b.refs, ref{bytes: int32(sizeBytes), class: classOf(sizeBytes)})
	return nil
}

func (b *Buffers) blocks() int {
	n := 0
	for i := range b.refs {
		n += 1 << b.refs[i].class
	}
	return n
}

// classOf is the binary logarithm of the number of blocks that sizeBytes need.
func classOf(sizeBytes int) uint8 {
	return uint8(bits.Len(uint((sizeBytes - 1) / MinBytes)))
}

// Len is the number of buffers.
func (b *Buffers) Len() int { return len(b.refs) }

// At returns the i-th buffer: of the length asked for, and of the capacity that was handed out.
func (b *Buffers) At(i int) []byte {
	r := &b.refs[i]
	off := int(r.start) * MinBytes
	return b.arena.mem[off : off+int(r.bytes) : off+MinBytes<<r.class]
}

// Split moves the first n buffers into a Buffers of their own, to be released apart.
func (b *Buffers) Split(n int) *Buffers {
	head := b.arena.newBuffers(n)
	head.refs = append(head.refs, b.refs[:n]...)
	b.refs = b.refs[n:]
	return head
}

// Release gives the buffers back. A second call does nothing, or panics in a Strict arena. Nil is allowed.
func (b *Buffers) Release() {
	if b == nil {
		return
	}
	a := b.arena
	a.mu.Lock()
	defer a.mu.Unlock()
	if b.released {
		if a.cfg.Strict {
			panic("arena: buffers released twice")
		}
		return
	}
	b.released = true
	// The last taken goes back first: the next request then finds the first one on top.
	for i := len(b.refs) - 1; i >= 0; i-- {
		a.buddy.give(b.refs[i].start, int(b.refs[i].class))
	}
	b.refs = nil
	if len(a.waiters) > 0 {
		a.wake()
	}
}

func addressOf(p []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(p))) }
