package segment

import (
	"context"
	"time"
)

// medianStep: one duration moves the running median by 1/medianStep of itself.
const medianStep = 32

// slowAfter is how long a shard read may take now before it counts as slow.
func (o *IO) slowAfter() time.Duration {
	return max(o.cfg.HedgeAfter, hedgeFactor*time.Duration(o.readNanos.Load()))
}

// MedianRead is about the median duration of the shard reads lately; 0 if there was none.
func (o *IO) MedianRead() time.Duration { return time.Duration(o.readNanos.Load()) }

// took tells a shard how long it took.
func took(s ShardReader, d time.Duration) {
	if p, ok := s.(Paced); ok {
		p.Took(d)
	}
}

// observe takes a duration into the running median, which unlike a mean a few hanging drives can't move far.
// Updates at the same time may overwrite each other; it is an estimate.
func (o *IO) observe(took time.Duration) {
	median := o.readNanos.Load()
	switch {
	case median == 0:
		median = int64(took)
	case int64(took) > median:
		median += median/medianStep + 1
	case int64(took) < median:
		median -= median / medianStep
	}
	o.readNanos.Store(median)
}

// collect waits until every read of the window has ended or been given up. A shard that failed is marked.
func (r *reader) collect(ctx context.Context, win *readWindow) error {
	slow := r.io.slowAfter()
	for waited := time.Duration(0); win.pending > 0; {
		step := lookEvery
		if r.hedging() {
			step = min(step, slow-waited)
		}
		if err := r.await(ctx, win, step); err != nil || win.pending == 0 {
			return err
		}
		if waited += step; waited < slow || !r.hedging() {
			if err := r.leaveDead(win); err != nil {
				return err
			}
			continue
		}
		r.io.observe(slow)
		if err := r.hedge(win, slow); err != nil {
			return err
		}
		slow, waited = 2*slow, 0
	}
	return nil
}

// await takes answers for as long as step.
func (r *reader) await(ctx context.Context, win *readWindow, step time.Duration) error {
	if r.timer == nil {
		r.timer = time.NewTimer(step)
	} else {
		r.timer.Reset(step)
	}
	for win.pending > 0 {
		select {
		case c := <-r.results:
			r.answer(win, c)
		case <-r.timer.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// leaveDead gives up the reads that have not ended if the drive of one of them is dead.
func (r *reader) leaveDead(win *readWindow) error {
	dead := false
	for _, c := range win.calls {
		if !c.answered && isDead(c.reader) {
			r.failed(c.shard, ErrLeft)
			dead = true
		}
	}
	if !dead {
		return nil
	}
	return r.giveUp(win)
}

// failed marks a shard as not to be asked again.
func (r *reader) failed(shard int, err error) {
	if r.state[shard] != shardBad {
		r.state[shard], r.errs[shard] = shardBad, err
		r.report.Failed = append(r.report.Failed, ShardError{Shard: shard, Err: err})
	}
}

func (r *reader) answer(win *readWindow, c *call) {
	if c.abandoned {
		return
	}
	c.answered = true
	win.pending--
	if c.err == nil {
		r.io.observe(c.took)
		took(c.reader, c.took)
		return
	}
	win.again = true
	if !c.extra {
		win.cols[c.column].issued = false
	}
	r.failed(c.shard, c.err)
}

// hedge gives up the reads that have not ended, if the other shards can make up for all of them. If not,
// it is not a shard that is slow, but everything, and more reads would not help.
func (r *reader) hedge(win *readWindow, waited time.Duration) error {
	late := map[int]bool{}
	for _, c := range win.calls {
		if !c.answered {
			late[c.shard] = true
		}
	}
	if !r.spareFor(late) {
		return nil
	}
	for j := range r.shards {
		if late[j] && r.usable(j) {
			r.state[j] = shardSlow
			r.report.Slow = append(r.report.Slow, j)
			took(r.shards[j], waited)
		}
	}
	return r.giveUp(win)
}

// giveUp stops waiting for all reads of the window that have not ended, and makes room for others.
func (r *reader) giveUp(win *readWindow) error {
	given := win.calls
	r.abandon(win)
	win.again = true
	var sizes []int
	for _, c := range given {
		if c.abandoned && !c.extra {
			for _, b := range c.bufs {
				sizes = append(sizes, len(b))
			}
		}
	}
	return r.relay(win, given, sizes)
}

// spareFor says whether enough shards are left without the late ones. Shards that were slow before count
// again, once: they may have been slow for a moment only, and another may hang for good.
func (r *reader) spareFor(late map[int]bool) bool {
	left, slow := 0, 0
	for j := range r.shards {
		switch {
		case late[j]:
		case r.usable(j):
			left++
		case r.state[j] == shardSlow:
			slow++
		}
	}
	if left >= r.geo.Scheme.Data {
		return true
	}
	if r.revived || left+slow < r.geo.Scheme.Data {
		return false
	}
	r.revive()
	return true
}

// revive takes the slow shards as good again.
func (r *reader) revive() {
	r.revived = true
	for j := range r.shards {
		if r.state[j] == shardSlow {
			r.state[j] = shardGood
		}
	}
}

// relay gives own bytes that a call may still write to a new place.
func (r *reader) relay(win *readWindow, given []*call, sizes []int) error {
	spans, err := win.takeScratch(r.io.cfg.Arena, sizes)
	if err != nil {
		r.scratch = scratchSlabs(win.asked)
		return err
	}
	for _, c := range given {
		if !c.abandoned || c.extra {
			continue
		}
		win.cols[c.column].issued = false
		for i := range win.pieces {
			if win.pieces[i].Shard == c.column {
				spans[0].off = win.bufs[i].off
				win.bufs[i], spans = spans[0], spans[1:]
			}
		}
	}
	return nil
}

// abandon stops waiting for the reads of the window. They keep its memory until they end.
func (r *reader) abandon(win *readWindow) {
	if win.pending == 0 {
		return
	}
	for _, c := range win.calls {
		if c.answered {
			continue
		}
		c.abandoned = true
		if c.extra {
			col := &win.cols[c.column]
			col.extraIssued, col.extra = false, nil
		}
	}
	win.pending, win.tainted = 0, true
	r.results = nil // theirs has no room for others
	win.calls, win.store = nil, nil
}

// settle waits a moment for reads that are no longer wanted, so that as a rule none outlives the Read.
func (r *reader) settle(win *readWindow) {
	if win.pending == 0 {
		return
	}
	timer := time.NewTimer(r.io.slowAfter())
	defer timer.Stop()
	for win.pending > 0 {
		select {
		case c := <-r.results:
			c.answered = true
			win.pending--
		case <-timer.C:
			r.abandon(win)
		}
	}
}
