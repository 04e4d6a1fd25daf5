package segment

import (
	"context"
	"io"

	"github.com/minio/crc64nvme"

	"github.com/millrace/millrace/appliance/arena"
	"github.com/millrace/millrace/appliance/erasure"
)

// WriteResult is what a Write did.
type WriteResult struct {
	// CRC64NVME is of the logical bytes.
	CRC64NVME uint64
	// Failed has the error of each shard that is not wholly written, and nil for the others.
	Failed []error
}

// FailedShards is the number of shards that are not wholly written.
func (r WriteResult) FailedShards() int {
	n := 0
	for _, err := range r.Failed {
		if err != nil {
			n++
		}
	}
	return n
}

// Write reads the segment's bytes from body and writes them, coded, to the shards. Each byte is given once
// to digest, in order, soon after it was read; digest may be nil. A nil shard counts as failed. A shard
// that fails is left out from then on while as many as the scheme has data shards are left: what Failed says
// is for the caller to judge. When there are fewer, the error is ErrTooFewShards. A body that ends early
// gives ErrBodyShort; another error of the body, of ctx or of the arena is returned as it is. Nothing
// beyond the segment's size is read from body. No call to a shard is left running when Write returns, but
// those to a Mortal that is dead; that shard counts as failed.
func (o *IO) Write(ctx context.Context, g erasure.Geometry, shards []ShardWriter, body io.Reader,
	digest func(p []byte),
) (WriteResult, error) {
	if err := checkShards(g, len(shards)); err != nil {
		return WriteResult{}, err
	}
	coder, err := o.coders.Coder(g.Scheme)
	if err != nil {
		return WriteResult{}, err
	}
	w := &writer{io: o, geo: g, coder: coder, shards: shards, body: body, digest: digest}
	w.failed = make([]error, len(shards))
	w.crcs = make([][]uint64, len(shards))
	room := make([]uint64, len(shards)*g.Blocks())
	for j := range shards {
		w.crcs[j], room = room[:0:g.Blocks()], room[g.Blocks():]
		if shards[j] == nil {
			w.failed[j] = ErrNoShard
		}
	}
	if err := w.run(ctx); err != nil {
		return WriteResult{Failed: w.failed}, err
	}
	return WriteResult{CRC64NVME: w.foldCRCs(), Failed: w.failed}, nil
}

// writer is one Write. Its stage 1 (fill) uses only left, body and digest of it, stage 2 (store) the rest.
type writer struct {
	io     *IO
	geo    erasure.Geometry
	coder  *erasure.Coder
	shards []ShardWriter
	body   io.Reader
	digest func([]byte)
	left   int64 // bytes of the body still to be read

	failed  []error
	crcs    [][]uint64 // CRC64NVME of each shard's blocks, as far as they are coded
	tailCRC uint64     // of the bytes before the padding in the last block that has any
}

// writeWindow is the memory of some whole stripes.
type writeWindow struct {
	hold    *hold
	tainted bool // a call that was left behind still reads it
	carver  carver
	first   int        // its first stripe
	units   [][][]byte // of each shard, its units
	runs    [][]byte   // the data units in logical order, adjacent ones as one
	crcs    [][]uint64 // of each shard's blocks
	errs    []error    // of each shard's call
}

func (w *writer) run(ctx context.Context) error {
	perWindow := w.io.windowStripes(w.geo)
	count := (w.geo.Stripes() + perWindow - 1) / perWindow
	windows, err := w.acquire(ctx, perWindow, min(count, 2))
	if err != nil {
		return err
	}
	defer func() {
		for _, win := range windows {
			win.hold.leave()
		}
	}()
	w.left = w.geo.SizeBytes
	if count == 1 {
		w.shape(windows[0], 0, perWindow)
		if err := w.fill(windows[0]); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		return w.store(windows[0])
	}
	return w.pipeline(ctx, windows, count, perWindow)
}

// pipeline fills one window while the other is coded and written.
func (w *writer) pipeline(ctx context.Context, windows []*writeWindow, count, perWindow int) (err error) {
	filled := make(chan *writeWindow, 1)
	stored := make(chan error, len(windows)) // never blocks: one a window
	go func() {
		defer close(stored)
		var err error
		for win := range filled {
			if err == nil {
				err = w.store(win)
			}
			stored <- err
		}
	}()
	defer func() {
		close(filled)
		for storeErr := range stored {
			if err == nil {
				err = storeErr
			}
		}
	}()
	for i := range count {
		if i >= len(windows) {
			if err := <-stored; err != nil {
				return err
			}
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if windows[i%len(windows)].tainted {
			if err := w.replace(&windows[i%len(windows)], perWindow); err != nil {
				return err
			}
		}
		win := windows[i%len(windows)]
		w.shape(win, i*perWindow, perWindow)
		if err := w.fill(win); err != nil {
			return err
		}
		filled <- win
	}
	return nil
}

// acquire takes the memory of all windows at once.
func (w *writer) acquire(ctx context.Context, perWindow, n int) ([]*writeWindow, error) {
	one := w.slabs(perWindow)
	sizes := one
	for i := 1; i < n; i++ {
		sizes = append(sizes[:len(sizes):len(sizes)], one...)
	}
	bufs, err := w.io.cfg.Arena.Acquire(ctx, sizes...)
	if err != nil {
		return nil, err
	}
	windows := make([]*writeWindow, n)
	for i := range n - 1 {
		windows[i] = w.newWindow(bufs.Split(len(one)))
	}
	windows[n-1] = w.newWindow(bufs)
	return windows, nil
}

// slabs gives the sizes of the slabs of one window.
func (w *writer) slabs(perWindow int) []int {
	units := perWindow * w.geo.Scheme.Shards()
	if w.mirrored() {
		units = perWindow
	}
	return slabSizes(nil, units, w.geo.UnitBytes(0))
}

func (w *writer) newWindow(bufs *arena.Buffers) *writeWindow {
	win := &writeWindow{hold: &hold{bufs: []*arena.Buffers{bufs}}, units: make([][][]byte, len(w.shards)),
		crcs: make([][]uint64, len(w.shards)), errs: make([]error, len(w.shards))}
	win.hold.refs.Store(1)
	win.carver.add(bufs)
	return win
}

// replace gives up a window to a call that was left behind. The new memory must be there at once,
// because the other window is in hand.
func (w *writer) replace(win **writeWindow, perWindow int) error {
	bufs := w.io.cfg.Arena.TryAcquire(w.slabs(perWindow)...)
	if bufs == nil {
		return arena.ErrOverloaded
	}
	(*win).hold.leave()
	*win = w.newWindow(bufs)
	return nil
}

// mirrored: parity shards are copies, and are written from the memory of the data shard.
func (w *writer) mirrored() bool { return w.geo.Scheme.Data == 1 }

// shape cuts the window's memory into the units of up to n stripes from first on.
func (w *writer) shape(win *writeWindow, first, n int) {
	win.first, win.runs = first, win.runs[:0]
	win.carver.reset()
	for j := range win.units {
		win.units[j] = win.units[j][:0]
	}
	last := min(first+n, w.geo.Stripes())
	runSlab, runStart := -1, 0
	for s := first; s < last; s++ {
		for j := range w.geo.Scheme.Data {
			unit, slab, at := win.carver.take(w.geo.UnitBytes(s))
			win.units[j] = append(win.units[j], unit)
			if slab == runSlab { // adjacent to the one before
				win.runs[len(win.runs)-1] = win.carver.slabs[slab][runStart : at+len(unit)]
				continue
			}
			runSlab, runStart = slab, at
			win.runs = append(win.runs, unit)
		}
	}
	for s := first; s < last; s++ {
		for j := w.geo.Scheme.Data; j < len(w.shards); j++ {
			if w.mirrored() {
				win.units[j] = append(win.units[j], win.units[0][s-first])
				continue
			}
			unit, _, _ := win.carver.take(w.geo.UnitBytes(s))
			win.units[j] = append(win.units[j], unit)
		}
	}
}

// fill reads the window's part of the body, and zeroes what is padding.
func (w *writer) fill(win *writeWindow) error {
	for _, run := range win.runs {
		n := int(min(w.left, int64(len(run))))
		if err := readBody(w.body, run[:n], w.digest); err != nil {
			return err
		}
		clear(run[n:])
		w.left -= int64(n)
	}
	return nil
}

// digestBytes is how much is read, from a body that gives little at a time, before it is digested.
const digestBytes = 64 << 10

// maxEmptyReads is how often in a row a body may give nothing.
const maxEmptyReads = 100

func readBody(body io.Reader, p []byte, digest func([]byte)) error {
	read, digested, empty := 0, 0, 0
	for read < len(p) {
		n, err := body.Read(p[read:])
		read += n
		if digest != nil && (read-digested >= digestBytes || read == len(p)) {
			digest(p[digested:read])
			digested = read
		}
		switch {
		case read == len(p):
		case err == io.EOF:
			return ErrBodyShort
		case err != nil:
			return err
		case n > 0:
			empty = 0
		default:
			if empty++; empty == maxEmptyReads {
				return io.ErrNoProgress
			}
		}
	}
	return nil
}

// store codes the window and writes it to every shard that has not failed.
func (w *writer) store(win *writeWindow) error {
	if err := w.code(win); err != nil {
		return err
	}
	w.writeShards(win)
	for j, err := range win.errs {
		if err != nil {
			w.failed[j] = err
		}
	}
	live := len(w.shards) - WriteResult{Failed: w.failed}.FailedShards()
	if live < w.geo.Scheme.Data {
		return tooFew(w.failed)
	}
	return nil
}

// code computes the window's parity and the CRC of each block: one block of all shards after the other, so that the bytes
// are fetched from memory once.
func (w *writer) code(win *writeWindow) error {
	blocks := make([][]byte, len(w.shards))
	for s := range win.units[0] {
		unit := len(win.units[0][s])
		for at := 0; at < unit; at += erasure.BlockBytes {
			end := min(at+erasure.BlockBytes, unit)
			for j := range blocks {
				blocks[j] = win.units[j][s][at:end]
			}
			if !w.mirrored() {
				if err := w.coder.Encode(blocks); err != nil {
					return err
				}
			}
			w.checksum(blocks)
		}
	}
	var room [1]erasure.Piece
	tail := w.geo.AppendPieces(room[:0], w.geo.SizeBytes-1, 1)[0]
	stripe := int(tail.Offset/erasure.UnitBytes) - win.first
	if stripe < len(win.units[0]) {
		start := int(tail.Offset % erasure.UnitBytes)
		w.tailCRC = crc64nvme.Checksum(win.units[tail.Shard][stripe][start : start+tail.Head+1])
	}
	return nil
}

// checksum takes note of the next block of each shard.
func (w *writer) checksum(blocks [][]byte) {
	for j := range blocks {
		if j > 0 && w.mirrored() { // the same bytes
			w.crcs[j] = append(w.crcs[j], w.crcs[0][len(w.crcs[j])])
			continue
		}
		w.crcs[j] = append(w.crcs[j], crc64nvme.Checksum(blocks[j]))
	}
}

// writeShards makes one call a shard, all at once.
func (w *writer) writeShards(win *writeWindow) {
	clear(win.errs)
	live := make([]int, 0, len(w.shards))
	for j := range w.shards {
		if w.failed[j] == nil {
			live = append(live, j)
		}
	}
	off := int64(win.first) * erasure.UnitBytes
	for j := range win.crcs {
		win.crcs[j] = w.crcs[j][off/erasure.BlockBytes:]
	}
	win.tainted = w.io.waiters.together(live, win.hold, func(j int) any { return w.shards[j] },
		func(j int) error { return w.shards[j].WriteAt(win.units[j], off, win.crcs[j]) }, win.errs)
}
