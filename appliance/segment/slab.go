package segment

import "github.com/millrace/millrace/appliance/arena"

// slabSizes appends the sizes of the slabs that hold n slices of size bytes each, none of which straddles
// two slabs. They fit any n slices of at most that size.
func slabSizes(dst []int, n, size int) []int {
	for n > 0 {
		count := min(n, arena.MaxBytes/size)
		if rest := count * size; rest < arena.MaxBytes {
			// A power of two that is mostly used, rather than the next one half empty.
			class := arena.MinBytes
			for class*2 <= rest {
				class *= 2
			}
			for class < size || rest-class > class/2 {
				class *= 2
			}
			count = min(count, class/size)
		}
		dst = append(dst, count*size)
		n -= count
	}
	return dst
}

// carver cuts slices off slabs, one after the other.
type carver struct {
	slabs [][]byte
	slab  int // the one being cut
	used  int // of it
}

func (c *carver) reset() { c.slab, c.used = 0, 0 }

func (c *carver) add(b *arena.Buffers) {
	for i := range b.Len() {
		c.slabs = append(c.slabs, b.At(i))
	}
}

// take returns n bytes and where they are, or nil when no slab has them left.
func (c *carver) take(n int) (p []byte, slab, at int) {
	for c.slab < len(c.slabs) && c.used+n > len(c.slabs[c.slab]) {
		c.slab, c.used = c.slab+1, 0
	}
	if c.slab == len(c.slabs) {
		return nil, -1, 0
	}
	slab, at = c.slab, c.used
	c.used += n
	return c.slabs[slab][at:c.used:c.used], slab, at
}
