package segment

import (
	"context"
	"time"

	"github.com/millrace/millrace/appliance/erasure"
)

// call is one ReadShard. Only done and the fields before it are touched by the goroutine that runs it.
type call struct {
	reader ShardReader
	off    int64
	bufs   [][]byte
	hold   *hold
	done   chan<- *call // has room for it
	err    error
	took   time.Duration

	shard     int
	column    int
	extra     bool
	answered  bool
	abandoned bool // nobody waits for it
}

func (c *call) run() {
	begin := time.Now()
	c.err = c.reader.ReadShard(c.off, c.bufs)
	c.took = time.Since(begin)
	c.hold.leave()
	c.done <- c
}

// start lays out window i and issues the reads for it.
func (r *reader) start(win *readWindow, i int) error {
	if win.hold == nil {
		r.sizes = append(append(r.sizes[:0], r.slabs...), r.scratch...)
		bufs := r.io.cfg.Arena.TryAcquire(r.sizes...)
		if bufs == nil {
			return errStarved
		}
		win.own(bufs, len(r.slabs))
	}
	if r.windowBytes > 0 {
		lo, hi := r.bounds(i)
		win.pieces = r.geo.AppendPieces(win.pieces[:0], lo, hi-lo)
	}
	win.lay()
	return r.issue(win)
}

// finish waits for the window's reads, replaces those that fail or take too long, and reconstructs.
func (r *reader) finish(ctx context.Context, win *readWindow) error {
	for {
		if err := r.collect(ctx, win); err != nil {
			r.abandon(win)
			return err
		}
		if !win.again {
			break
		}
		win.again = false
		if err := r.issue(win); err != nil {
			return err
		}
	}
	if win.missing {
		return r.reconstruct(win)
	}
	return nil
}

// issue starts a read for all that the window lacks.
func (r *reader) issue(win *readWindow) error {
	calls, err := r.ownCalls(win, win.calls[:0])
	if err == nil && win.missing {
		calls, err = r.extraCalls(win, calls)
	}
	if err != nil {
		if err == errStarved {
			r.scratch = scratchSlabs(win.asked)
		}
		return err
	}
	if len(calls) == 0 {
		return nil
	}
	if r.results == nil || cap(r.results) < len(calls) {
		r.results = make(chan *call, max(len(calls), len(r.shards)))
	}
	win.calls, win.pending = calls, len(calls)
	for _, c := range calls {
		c.done, c.hold = r.results, win.hold
		win.hold.refs.Add(1)
	}
	for _, c := range calls {
		go c.run()
	}
	return nil
}

// ownCalls appends the reads of the range's own bytes, one a shard.
func (r *reader) ownCalls(win *readWindow, calls []*call) ([]*call, error) {
	k := r.geo.Scheme.Data
	win.missing = false
	for j := range k {
		col := &win.cols[j]
		if col.lo == col.hi || col.issued {
			continue
		}
		shard := j
		if k == 1 { // any copy will do
			if err := r.enough(); err != nil {
				return nil, err
			}
			for shard = 0; !r.usable(shard); shard++ {
			}
		}
		if !r.usable(shard) {
			win.missing = true
			continue
		}
		c := win.newCall()
		c.reader, c.off, c.shard, c.column = r.shards[shard], col.lo, shard, j
		for i := range win.pieces {
			if win.pieces[i].Shard == j {
				c.bufs = append(c.bufs, win.bufs[i].bytes)
			}
		}
		col.issued = true
		calls = append(calls, c)
	}
	return calls, nil
}

// extraCalls chooses the shards to reconstruct from, and adds the reads of what they lack of the hull.
func (r *reader) extraCalls(win *readWindow, calls []*call) ([]*call, error) {
	revived := r.noHedge
	if err := r.enough(); err != nil {
		r.unissue(win, calls)
		return nil, err
	}
	if r.noHedge != revived { // there are more shards now than ownCalls saw
		var err error
		if calls, err = r.ownCalls(win, calls); err != nil || !win.missing {
			return calls, err
		}
	}
	win.sources = win.sources[:0]
	for j := range r.shards {
		if r.usable(j) && len(win.sources) < r.geo.Scheme.Data {
			win.sources = append(win.sources, j)
		}
	}
	var sizes []int
	for _, j := range win.sources {
		if col := &win.cols[j]; !col.extraIssued {
			sizes = appendGaps(sizes, win, col)
		}
	}
	spans, err := win.takeScratch(r.io.cfg.Arena, sizes)
	if err != nil {
		r.unissue(win, calls)
		return nil, err
	}
	for _, j := range win.sources {
		col := &win.cols[j]
		if col.extraIssued {
			continue
		}
		col.extraIssued = true
		spans = win.layExtra(col, spans)
		calls = r.appendExtraCalls(win, calls, j)
	}
	return calls, nil
}

// unissue takes back reads that were prepared and not started.
func (r *reader) unissue(win *readWindow, calls []*call) {
	for _, c := range calls {
		win.cols[c.column].issued = false
	}
}

// gaps are the parts of the hull that are not own bytes of the column.
func (w *readWindow) gaps(col *column) [2][2]int64 {
	if col.lo == col.hi {
		return [2][2]int64{{w.lo, w.hi}}
	}
	return [2][2]int64{{w.lo, col.lo}, {col.hi, w.hi}}
}

// unitEnd is the end of the unit that holds byte a of a shard, or hi if that comes first.
func unitEnd(a, hi int64) int64 { return min(hi, (a/erasure.UnitBytes+1)*erasure.UnitBytes) }

func appendGaps(sizes []int, win *readWindow, col *column) []int {
	for _, gap := range win.gaps(col) {
		for a := gap[0]; a < gap[1]; a = unitEnd(a, gap[1]) {
			sizes = append(sizes, int(unitEnd(a, gap[1])-a))
		}
	}
	return sizes
}

// layExtra gives the column the first of spans, and returns the others.
func (w *readWindow) layExtra(col *column, spans []span) []span {
	for _, gap := range w.gaps(col) {
		for a := gap[0]; a < gap[1]; a = unitEnd(a, gap[1]) {
			spans[0].off = a
			col.extra = append(col.extra, spans[0])
			spans = spans[1:]
		}
	}
	return spans
}

// appendExtraCalls reads the extra spans of a shard, adjacent ones by one call.
func (r *reader) appendExtraCalls(win *readWindow, calls []*call, shard int) []*call {
	var c *call
	var end int64
	for _, s := range win.cols[shard].extra {
		if c == nil || s.off != end {
			c = win.newCall()
			c.reader, c.off, c.shard, c.column, c.extra = r.shards[shard], s.off, shard, shard, true
			calls = append(calls, c)
		}
		c.bufs = append(c.bufs, s.bytes)
		end = s.off + int64(len(s.bytes))
	}
	return calls
}

// reconstruct computes the missing own bytes, run by run: from one edge of a unit or of a column's own
// bytes to the next.
func (r *reader) reconstruct(win *readWindow) error {
	shards := make([][]byte, len(r.shards))
	required := make([]bool, len(r.shards))
	for a := win.lo; a < win.hi; {
		b := unitEnd(a, win.hi)
		for j := range r.geo.Scheme.Data {
			for _, edge := range [2]int64{win.cols[j].lo, win.cols[j].hi} {
				if edge > a {
					b = min(b, edge)
				}
			}
		}
		clear(shards)
		clear(required)
		any := false
		for j := range r.geo.Scheme.Data {
			if col := &win.cols[j]; !col.issued && col.lo <= a && b <= col.hi {
				shards[j] = win.ownBytes(j, a, b)[:0]
				required[j], any = true, true
				r.report.ReconstructedBytes += b - a
			}
		}
		if any {
			for _, j := range win.sources {
				if shards[j] = win.ownBytes(j, a, b); shards[j] == nil {
					shards[j] = win.extraBytes(j, a, b)
				}
			}
			if err := r.coder.Reconstruct(shards, required); err != nil {
				return err
			}
		}
		a = b
	}
	return nil
}
