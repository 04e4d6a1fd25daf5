package segment

import (
	"sync/atomic"

	"github.com/millrace/millrace/appliance/arena"
	"github.com/millrace/millrace/appliance/erasure"
)

// hold is memory that a window and the calls that fill it hold together. The last to leave releases it.
type hold struct {
	refs atomic.Int32
	bufs []*arena.Buffers
}

func (h *hold) leave() (last bool) {
	if h.refs.Add(-1) > 0 {
		return false
	}
	for _, b := range h.bufs {
		b.Release()
	}
	return true
}

// span is some bytes of a shard, and their place in the window's slabs; slab is -1 for scratch.
type span struct {
	bytes []byte
	off   int64 // in the shard
	slab  int
	at    int
}

// column is what a window holds of one shard. Its own bytes are those of the logical range; the extra
// ones, in scratch, are only read to reconstruct others from.
type column struct {
	lo, hi      int64 // the own bytes, as a range of the shard
	issued      bool  // the own bytes are read, or being read
	extraIssued bool
	extra       []span
}

// readWindow is a part of the range, and the memory for it.
type readWindow struct {
	hold    *hold
	spare   *hold // left alone by everybody, for reuse
	tainted bool  // a call that is not waited for may still write into hold

	carver  carver // own bytes
	scratch carver
	asked   []int // sizes of all scratch slices of this fetch

	pieces []erasure.Piece
	bufs   []span // of each piece
	cols   [erasure.MaxShards]column
	lo, hi int64 // the hull of the own bytes, as a range of every shard

	calls   []*call
	store   []call // what calls point to; never moved, and left behind with a call that is abandoned
	pending int
	again   bool  // a shard dropped out: something must be read elsewhere
	missing bool  // something must be reconstructed
	sources []int // from these shards
}

// own gives the window its memory: the first n buffers are for own bytes, the others are scratch.
func (w *readWindow) own(b *arena.Buffers, n int) {
	if w.hold, w.spare = w.spare, nil; w.hold == nil {
		w.hold = new(hold)
	}
	w.hold.bufs = append(w.hold.bufs[:0], b)
	w.hold.refs.Store(1)
	w.carver.slabs, w.scratch.slabs = w.carver.slabs[:0], w.scratch.slabs[:0]
	for i := range b.Len() {
		if i < n {
			w.carver.slabs = append(w.carver.slabs, b.At(i))
		} else {
			w.scratch.slabs = append(w.scratch.slabs, b.At(i))
		}
	}
}

func (w *readWindow) drop() {
	if w.hold != nil && w.hold.leave() {
		w.spare = w.hold
	}
	w.hold, w.tainted = nil, false
}

func (w *readWindow) dropIfTainted() {
	if w.tainted {
		w.drop()
	}
}

// newCall returns a call to be filled in.
func (w *readWindow) newCall() *call {
	if len(w.store) == cap(w.store) {
		w.store = make([]call, 0, erasure.MaxShards)
	}
	w.store = w.store[:len(w.store)+1]
	c := &w.store[len(w.store)-1]
	*c = call{bufs: c.bufs[:0]}
	return c
}

// lay gives each piece its place in the slabs, and each column its range.
func (w *readWindow) lay() {
	w.carver.reset()
	w.scratch.reset()
	w.asked, w.bufs, w.sources = w.asked[:0], w.bufs[:0], w.sources[:0]
	w.pending, w.again, w.missing, w.store = 0, false, false, w.store[:0]
	for j := range w.cols {
		w.cols[j] = column{extra: w.cols[j].extra[:0]}
	}
	for i, p := range w.pieces {
		end := p.Offset + int64(p.Bytes)
		bytes, slab, at := w.carver.take(p.Bytes)
		w.bufs = append(w.bufs, span{bytes: bytes, off: p.Offset, slab: slab, at: at})
		col := &w.cols[p.Shard]
		if col.lo == col.hi {
			col.lo = p.Offset
		}
		col.hi = end // the pieces of a shard follow each other without a gap
		if i == 0 {
			w.lo, w.hi = p.Offset, end
		}
		w.lo, w.hi = min(w.lo, p.Offset), max(w.hi, end)
	}
}

// takeScratch returns slices of the given sizes, from more memory if the arena has it now.
func (w *readWindow) takeScratch(a *arena.Arena, sizes []int) ([]span, error) {
	w.asked = append(w.asked, sizes...)
	out := make([]span, 0, len(sizes))
	for len(out) < len(sizes) {
		bytes, _, _ := w.scratch.take(sizes[len(out)])
		if bytes == nil {
			more := a.TryAcquire(scratchSlabs(sizes[len(out):])...)
			if more == nil {
				return nil, errStarved
			}
			w.hold.bufs = append(w.hold.bufs, more)
			w.scratch.add(more)
			continue
		}
		out = append(out, span{bytes: bytes, slab: -1})
	}
	return out, nil
}

// ownBytes returns what the window has of the bytes [a, b) of a data shard within one unit; nil if they
// are not in the range.
func (w *readWindow) ownBytes(shard int, a, b int64) []byte {
	for i := range w.pieces {
		s := &w.bufs[i]
		if w.pieces[i].Shard == shard && s.off <= a && b <= s.off+int64(len(s.bytes)) {
			return s.bytes[a-s.off : b-s.off : b-s.off]
		}
	}
	return nil
}

func (w *readWindow) extraBytes(shard int, a, b int64) []byte {
	for _, s := range w.cols[shard].extra {
		if s.off <= a && b <= s.off+int64(len(s.bytes)) {
			return s.bytes[a-s.off : b-s.off : b-s.off]
		}
	}
	return nil
}

// scratchSlabs are the sizes of slabs that hold slices of the given sizes, in their order.
func scratchSlabs(sizes []int) []int {
	var slabs []int
	for _, size := range sizes {
		slabs = appendSlice(slabs, size)
	}
	return slabs
}

// appendSlice makes room for one more slice, in the last slab or in a new one.
func appendSlice(slabs []int, size int) []int {
	if len(slabs) == 0 || slabs[len(slabs)-1]+size > arena.MaxBytes {
		return append(slabs, size)
	}
	slabs[len(slabs)-1] += size
	return slabs
}
