package segment

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/millrace/millrace/appliance/erasure"
)

// ReadReport says what a Read met on its way, whether it succeeded or not.
type ReadReport struct {
	// Failed are the shards whose reads gave an error; their bytes want repair. Shards that were nil are
	// not among them.
	Failed []ShardError
	// Slow are the shards that were asked and not waited for.
	Slow []int
	// ReconstructedBytes were not read, but computed from other shards.
	ReconstructedBytes int64
}

// Read writes the logical range [off, off+n) to w. A nil shard is missing. Shards that are missing, fail or
// are slow are made up for from the others, and are not asked again by this call; with too few left the
// error is ErrTooFewShards. Bytes that no checksum vouches for are never written. An error of w, of ctx or
// of the arena is returned as it is. A call to a slow or dead shard may still be running when Read returns;
// it keeps its memory until then.
func (o *IO) Read(ctx context.Context, g erasure.Geometry, shards []ShardReader, off, n int64, w io.Writer,
) (ReadReport, error) {
	if err := checkShards(g, len(shards)); err != nil {
		return ReadReport{}, err
	}
	if off < 0 || n < 0 || off > g.SizeBytes || n > g.SizeBytes-off {
		return ReadReport{}, fmt.Errorf("read %d+%d: outside a segment of %d bytes", off, n, g.SizeBytes)
	}
	if n == 0 {
		return ReadReport{}, nil
	}
	coder, err := o.coders.Coder(g.Scheme)
	if err != nil {
		return ReadReport{}, err
	}
	r, _ := o.readers.Get().(*reader)
	if r == nil {
		r = new(reader)
	}
	r.request = request{io: o, geo: g, coder: coder, shards: shards, out: w, off: off, end: off + n}
	for j, s := range shards {
		if s == nil {
			r.state[j] = shardBad
		} else if p, ok := s.(Paced); ok && p.Slow() {
			r.state[j] = shardSlow
		}
	}
	err = r.run(ctx)
	report := r.report
	r.request = request{}
	o.readers.Put(r)
	return report, err
}

type shardState uint8

const (
	shardGood shardState = iota
	shardSlow            // answers late; taken again only if nothing else is left
	shardBad
)

// reader serves one Read after another. All of it belongs to the goroutine of the Read; only the calls run
// on others.
type reader struct {
	request
	windows [2]readWindow
	slabs   []int // sizes of the slabs of one window, without scratch
	sizes   []int // for one use
	timer   *time.Timer
	results chan *call
}

// request is what concerns one Read only.
type request struct {
	io       *IO
	geo      erasure.Geometry
	coder    *erasure.Coder
	shards   []ShardReader
	out      io.Writer
	off, end int64

	windowBytes int64 // logical bytes of a window, a multiple of the stripe's; 0: one window holds all
	count       int   // of windows
	scratch     []int // sizes of the scratch slabs that a window is known to need

	state   [erasure.MaxShards]shardState
	errs    [erasure.MaxShards]error
	revived bool // slow shards were taken as good again
	noHedge bool // nothing is left to make up for slow shards
	report  ReadReport
}

// run fetches each window while the one before goes to the client.
func (r *reader) run(ctx context.Context) error {
	r.plan()
	defer r.dropMemory()
	defer func() {
		if r.timer != nil {
			r.timer.Stop()
		}
	}()
	fetched := false // the window at the head of the loop
	for i := range r.count {
		win := &r.windows[i%2]
		if !fetched {
			if err := r.fetch(ctx, win, i); err != nil {
				return err
			}
		}
		if i+1 == r.count {
			return r.deliver(ctx, win)
		}
		next := &r.windows[(i+1)%2]
		startErr := r.start(next, i+1)
		if err := r.deliver(ctx, win); err != nil {
			r.settle(next)
			return err
		}
		win.dropIfTainted()
		err := startErr
		if err == nil {
			err = r.finish(ctx, next)
		}
		if fetched = err == nil; err == errStarved {
			r.dropMemory() // also because a call that was given up may still write to it
		} else if err != nil {
			return err
		}
	}
	return nil
}

// fetch fills a window with nothing else going on. If the memory in hand does not do, it gives all of it
// back and waits for what is needed in one piece.
func (r *reader) fetch(ctx context.Context, win *readWindow, i int) error {
	for {
		if err := r.acquireMemory(ctx); err != nil {
			return err
		}
		err := r.start(win, i)
		if err == nil {
			err = r.finish(ctx, win)
		}
		if err != errStarved {
			return err
		}
		r.dropMemory()
	}
}

// plan cuts the range into windows. Windows end at multiples of windowBytes, unless all fits in one.
func (r *reader) plan() {
	r.slabs = r.slabs[:0]
	window := int64(r.io.windowStripes(r.geo)) * r.geo.StripeBytes()
	r.count = 1
	if r.end-r.off > window {
		r.windowBytes = window
		r.count = int((r.end-1)/window-r.off/window) + 1
		r.slabs = slabSizes(r.slabs, int(window/erasure.UnitBytes), erasure.UnitBytes)
	}
	if r.count == 1 {
		win := &r.windows[0]
		win.pieces = r.geo.AppendPieces(win.pieces[:0], r.off, r.end-r.off)
		for _, p := range win.pieces {
			r.slabs = appendSlice(r.slabs, p.Bytes)
		}
	}
}

// bounds is the logical range of window i.
func (r *reader) bounds(i int) (lo, hi int64) {
	if r.windowBytes == 0 {
		return r.off, r.end
	}
	first := r.off / r.windowBytes
	lo = max(r.off, (first+int64(i))*r.windowBytes)
	hi = min(r.end, (first+int64(i)+1)*r.windowBytes)
	return lo, hi
}

// deliver writes the window's part of the range, in slices as large as the slabs allow.
func (r *reader) deliver(ctx context.Context, win *readWindow) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	for i := 0; i < len(win.pieces); {
		p := &win.pieces[i]
		out := win.bufs[i].bytes[p.Head : p.Head+p.WantBytes]
		slab, start := win.bufs[i].slab, win.bufs[i].at+p.Head
		end := start + p.WantBytes
		for i++; i < len(win.pieces) && slab >= 0; i++ {
			p, b := &win.pieces[i], &win.bufs[i]
			if b.slab != slab || b.at+p.Head != end {
				break
			}
			end += p.WantBytes
			out = win.carver.slabs[slab][start:end]
		}
		n, err := r.out.Write(out)
		if err != nil {
			return err
		}
		if n != len(out) {
			return io.ErrShortWrite
		}
	}
	return nil
}

// errStarved: the arena has no memory for it now, and it must not be waited for while holding some.
var errStarved = errors.New("no memory without waiting")

// acquireMemory waits for the memory of all windows, unless each has its own.
func (r *reader) acquireMemory(ctx context.Context) error {
	complete := true
	r.sizes = r.sizes[:0]
	for i := range min(r.count, 2) {
		complete = complete && r.windows[i].hold != nil
		r.sizes = append(append(r.sizes, r.slabs...), r.scratch...)
	}
	if complete {
		return nil
	}
	r.dropMemory() // never wait while holding some
	bufs, err := r.io.cfg.Arena.Acquire(ctx, r.sizes...)
	if err != nil {
		return err
	}
	if r.count > 1 {
		r.windows[1].own(bufs.Split(bufs.Len()/2), len(r.slabs))
	}
	r.windows[0].own(bufs, len(r.slabs))
	return nil
}

// dropMemory gives back all memory; what calls still use, when they end.
func (r *reader) dropMemory() {
	for i := range r.windows {
		r.windows[i].drop()
	}
}

// hedging: slow shards can be made up for.
func (r *reader) hedging() bool {
	return r.io.cfg.HedgeAfter > 0 && r.geo.Scheme.Parity > 0 && !r.noHedge
}

func (r *reader) usable(j int) bool { return r.state[j] == shardGood }

func (r *reader) countUsable() int {
	n := 0
	for j := range r.shards {
		if r.usable(j) {
			n++
		}
	}
	return n
}

// enough makes sure that there are k shards to ask. Slow ones are asked again, without hurry, when the
// others are too few.
func (r *reader) enough() error {
	if r.countUsable() >= r.geo.Scheme.Data {
		return nil
	}
	r.revive()
	r.noHedge = true
	if r.countUsable() >= r.geo.Scheme.Data {
		return nil
	}
	return tooFew(r.errs[:len(r.shards)])
}
