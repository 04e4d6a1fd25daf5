package arena

import "math/bits"

const (
	blocksPerChunk = MaxBytes / MinBytes // 16: the free blocks of a chunk are one uint16
	topClass       = 4                   // log2(blocksPerChunk)
	maxChunks      = 1 << 24
	noChunk        = int32(-1)
)

// buddy keeps the free blocks. Each chunk is in the list of the largest aligned run that it has free;
// the lists are last in, first out.
type buddy struct {
	chunks      []chunk
	heads       [topClass + 1]int32
	free, total int // in blocks
}

type chunk struct {
	next, prev int32
	freeMask   uint16
	class      int8 // the list it is in: -1 for none
}

func newBuddy(n int) buddy {
	b := buddy{chunks: make([]chunk, n), free: n * blocksPerChunk, total: n * blocksPerChunk}
	for c := range b.heads {
		b.heads[c] = noChunk
	}
	for i := n - 1; i >= 0; i-- { // the lowest on top
		b.chunks[i] = chunk{freeMask: 1<<blocksPerChunk - 1, class: -1}
		b.link(int32(i), topClass)
	}
	return b
}

// runs returns, for a mask of free blocks, the starts of the free aligned runs of each class.
func runs(mask uint16) [topClass + 1]uint16 {
	var r [topClass + 1]uint16
	r[0] = mask
	r[1] = r[0] & (r[0] >> 1) & 0x5555
	r[2] = r[1] & (r[1] >> 2) & 0x1111
	r[3] = r[2] & (r[2] >> 4) & 0x0101
	r[4] = r[3] & (r[3] >> 8) & 0x0001
	return r
}

// take finds a run of 1<<class blocks in the fullest chunk that has one, and in it in the smallest hole.
func (b *buddy) take(class int) (int32, bool) {
	for list := class; list <= topClass; list++ {
		i := b.heads[list]
		if i == noChunk {
			continue
		}
		c := &b.chunks[i]
		at := smallestHole(runs(c.freeMask), class)
		c.freeMask &^= blockMask(class, at)
		b.free -= 1 << class
		b.relink(i)
		return i*blocksPerChunk + int32(at), true
	}
	return 0, false
}

// smallestHole returns the start of a free run of the class that splits the smallest larger run.
func smallestHole(r [topClass + 1]uint16, class int) int {
	for c := class; c < topClass; c++ {
		whole := r[c+1] | r[c+1]<<(1<<c) // runs whose buddy is free too
		if holes := r[c] &^ whole; holes != 0 {
			return bits.TrailingZeros16(holes)
		}
	}
	return 0
}

func blockMask(class, at int) uint16 { return uint16((1<<(1<<class) - 1) << at) }

func (b *buddy) give(start int32, class int) {
	i := start / blocksPerChunk
	c := &b.chunks[i]
	m := blockMask(class, int(start%blocksPerChunk))
	if c.freeMask&m != 0 {
		panic("arena: free block given back")
	}
	c.freeMask |= m
	b.free += 1 << class
	b.relink(i)
}

func (b *buddy) relink(i int32) {
	class := int8(-1)
	for c, r := range runs(b.chunks[i].freeMask) {
		if r != 0 {
			class = int8(c)
		}
	}
	if class == b.chunks[i].class {
		return
	}
	b.unlink(i)
	if class >= 0 {
		b.link(i, class)
	}
}

func (b *buddy) link(i int32, class int8) {
	c := &b.chunks[i]
	c.class, c.prev, c.next = class, noChunk, b.heads[class]
	if c.next != noChunk {
		b.chunks[c.next].prev = i
	}
	b.heads[class] = i
}

func (b *buddy) unlink(i int32) {
	c := &b.chunks[i]
	if c.class < 0 {
		return
	}
	if c.prev == noChunk {
		b.heads[c.class] = c.next
	} else {
		b.chunks[c.prev].next = c.next
	}
	if c.next != noChunk {
		b.chunks[c.next].prev = c.prev
	}
	c.class = -1
}
