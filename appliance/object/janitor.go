package object

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/appliance/placement"
	"github.com/millrace/millrace/appliance/record"
	"github.com/millrace/millrace/nvme/shardstore"
)

const (
	janitorInterval = 200 * time.Millisecond
	// janitorRound bounds how many free records one round works off.
	janitorRound = 512
	// maxQueued bounds the free records that are kept in memory; more are found by a scan.
	maxQueued = 100_000
	// opLogKeep is how many mutations the op-log reaches back; a drive away for fewer can be
	// brought up to date from it.
	opLogKeep = 1 << 17
	opLogStep = 4096
)

// freeItem is a free record to work off.
type freeItem struct {
	key  []byte
	free *record.Free
	from *shardstore.Store // found at a start: the drive to read an upload's parts from
}

// janitor does what need not be done before an acknowledgement: it clears pending marks, frees
// what no record refers to, and trims the op-log. All of it is found again after a crash.
type janitor struct {
	e    *Engine
	wake chan struct{}

	work sync.RWMutex // held by one flush at a time, and shared while segments are mended

	mu      sync.Mutex
	queue   []*freeItem
	missed  bool // the queue was full: scan for what isn't in it
	settled []record.Layout

	deferred   bool   // free records wait for a drive that is away
	triedEpoch uint64 // the epoch of the last try of those

	mark record.Watermark
}

func newJanitor(e *Engine) *janitor {
	return &janitor{e: e, wake: make(chan struct{}, 1)}
}

// free queues items, each once nobody reads what it frees.
func (j *janitor) free(items []*freeItem) {
	for _, item := range items {
		ids := make([]pin, 0, 1+len(item.free.Layouts))
		if item.free.Upload != (record.UploadID{}) {
			ids = append(ids, pin(item.free.Upload))
		}
		for i := range item.free.Layouts {
			ids = append(ids, instancePin(item.free.Layouts[i].Instance))
		}
		j.freeAfter(item, ids)
	}
}

func (j *janitor) freeAfter(item *freeItem, ids []pin) {
	if len(ids) > 0 {
		j.e.pins.whenUnread(ids[0], func() { j.freeAfter(item, ids[1:]) })
		return
	}
	j.mu.Lock()
	if len(j.queue) < maxQueued {
		j.queue = append(j.queue, item)
	} else {
		j.missed = true
	}
	j.mu.Unlock()
	j.nudge()
}

func (j *janitor) settle(l *record.Layout) {
	j.mu.Lock()
	j.settled = append(j.settled, *l)
	full := len(j.settled) >= janitorRound
	j.mu.Unlock()
	if full {
		j.nudge()
	}
}

func (j *janitor) nudge() {
	select {
	case j.wake <- struct{}{}:
	default:
	}
}

func (j *janitor) run(ctx context.Context) {
	tick := time.NewTicker(janitorInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-j.wake:
		}
		j.flush()
	}
}

// flush does all that is queued; when it returns, it is done.
func (j *janitor) flush() {
	j.work.Lock()
	defer j.work.Unlock()
	if j.e.readOnly {
		return
	}
	j.clearPending()
	for j.freeRound() {
	}
	j.trimOpLog()
}

// clearPending removes the pending marks of the layouts that records refer to now.
func (j *janitor) clearPending() {
	j.mu.Lock()
	settled := j.settled
	j.settled = nil
	j.mu.Unlock()
	if len(settled) == 0 {
		return
	}
	j.e.onSlots(settled, false, func(b *shardstore.Batch, id shardstore.ShardID) {
		b.Delete(record.PendingKey(id.Segment, int(id.Index)))
	})
}

// freeRound works off up to janitorRound free records, and says whether there may be more.
func (j *janitor) freeRound() bool {
	j.mu.Lock()
	n := min(len(j.queue), janitorRound)
	items := j.queue[:n:n]
	j.queue = j.queue[n:]
	scan := n == 0 && j.missed
	if scan {
		j.missed = false
	}
	j.mu.Unlock()
	if scan {
		if err := j.e.queueFrees(); err != nil {
			j.e.log.Warn("scan of free records failed", "err", err)
			return false
		}
		return true
	}
	if n == 0 {
		return false
	}
	var layouts []record.Layout
	var done []*freeItem
	for _, item := range items {
		l, err := j.e.layoutsOf(item)
		if errors.Is(err, errNotBelieved) {
			j.mu.Lock()
			j.missed = true // a scan finds it on another, if it is to be worked off yet
			j.mu.Unlock()
			continue
		}
		if err != nil {
			j.e.log.Warn("free record not worked off", "err", err) // the next start finds it
			continue
		}
		layouts = append(layouts, l...)
		item.free.Layouts = l // with those of an upload's parts: their bodies go too
		done = append(done, item)
	}
	if j.e.deleteShards(layouts, true) {
		j.e.removeFreed(done)
	} else {
		j.mu.Lock()
		j.deferred = true
		j.mu.Unlock()
	}
	return true
}

// retry queues the free records that wait for a drive that was away, once for each map.
func (j *janitor) retry(epoch uint64) error {
	j.mu.Lock()
	again := j.deferred && j.triedEpoch != epoch
	if again {
		j.deferred, j.triedEpoch = false, epoch
	}
	j.mu.Unlock()
	if !again {
		return nil
	}
	return j.e.queueFrees()
}

// errNotBelieved: the drive that a free record was found on has become none that is read, and may have been swept.
var errNotBelieved = errors.New("found on a drive that is not believed any more")

// layoutsOf gives all layouts that a free record covers.
func (e *Engine) layoutsOf(item *freeItem) ([]record.Layout, error) {
	f := item.free
	layouts := f.Layouts
	if f.Upload == (record.UploadID{}) {
		return layouts, nil
	}
	add := func(p *record.Part) bool {
		layouts = append(layouts, p.Layout)
		return true
	}
	gate := &e.gates[min(f.Group, len(e.gates)-1)] // no sweep meanwhile
	gate.RLock()
	defer gate.RUnlock()
	if item.from != nil {
		isFrom := func(slot uint8) bool { return e.stores[slot] == item.from }
		if !slices.ContainsFunc(e.view.Load().Reads(f.Group), isFrom) {
			return nil, errNotBelieved
		}
		err := eachPartOn(item.from, f.Group, f.Upload, 0, add)
		return layouts, err
	}
	err := e.eachPart(f.Group, f.Upload, 0, add)
	return layouts, err
}

// deleteShards frees the shards of layouts on every drive that is here. It says whether all have freed theirs
// but those of drives that are given up, which are swept if they ever come back. One that fails in the act may come
// back with its shards.
func (e *Engine) deleteShards(layouts []record.Layout, sync bool) bool {
	return e.onSlots(layouts, sync, func(b *shardstore.Batch, id shardstore.ShardID) {
		b.DeleteShard(id)
		b.Delete(record.OwnerKey(id.Segment, int(id.Index)))
		b.Delete(record.PendingKey(id.Segment, int(id.Index)))
	})
}

// maxBatchShards bounds the shards of one commit.
const maxBatchShards = 1024

// onSlots commits, on every live drive that has shards of the layouts, what f adds to a batch for each. It
// says whether all drives have it but those that are given up.
func (e *Engine) onSlots(layouts []record.Layout, synced bool, f func(*shardstore.Batch, shardstore.ShardID)) bool {
	ok := true
	batches := make([]*shardstore.Batch, len(e.stores))
	n := 0
	for i := range layouts {
		for s, seg := range layouts[i].Segments {
			id := shardstore.SegmentID(layouts[i].Instance.Segment(s))
			for index, slot := range seg.Slots {
				if st := e.live(slot); st == nil {
					ok = ok && e.Map().Slots[slot].State == placement.Lost
				} else {
					if batches[slot] == nil {
						batches[slot] = st.NewBatch()
					}
					f(batches[slot], shardstore.ShardID{Segment: id, Index: uint8(index)})
				}
			}
			if n++; n%maxBatchShards == 0 {
				ok = e.commitBatches(batches, synced) && ok
				clear(batches)
			}
		}
	}
	return e.commitBatches(batches, synced) && ok
}

// commitBatches commits a batch a slot, in parallel; a drive that fails is dropped, but not one that is full. It
// says whether each has its batch.
func (e *Engine) commitBatches(batches []*shardstore.Batch, synced bool) bool {
	var wg sync.WaitGroup
	var failed atomic.Bool
	for slot, b := range batches {
		if b == nil {
			continue
		}
		wg.Go(func() {
			if err := e.stores[slot].Commit(context.Background(), b, synced); err != nil {
				failed.Store(true)
				if !errors.Is(err, shardstore.ErrFull) { // which is no fault of the drive
					_ = e.drop(slot, err) // it stays in if it can't be spared
				}
			}
		})
	}
	wg.Wait()
	return !failed.Load()
}

// removeFreed removes free records that are worked off, with the part, body and manifest records that
// belonged to them. Not synced: what a crash undoes is done again.
func (e *Engine) removeFreed(items []*freeItem) {
	byGroup := map[int][]*freeItem{}
	for _, item := range items {
		byGroup[item.free.Group] = append(byGroup[item.free.Group], item)
	}
	batches := make([]*shardstore.Batch, len(e.stores))
	for group := range byGroup {
		e.gates[group].RLock()
		defer e.gates[group].RUnlock()
	}
	v := e.view.Load()
	for group, items := range byGroup {
		for _, slot := range v.Targets(group) {
			if batches[slot] == nil {
				batches[slot] = e.stores[slot].NewBatch()
			}
			for _, item := range items {
				item.removeFrom(batches[slot])
			}
		}
	}
	e.commitBatches(batches, false)
}

func (f *freeItem) removeFrom(b *shardstore.Batch) {
	b.Delete(f.key)
	if u := f.free.Upload; u != (record.UploadID{}) {
		parts := record.PartPrefix(f.free.Group, u)
		b.DeleteRange(parts, record.PrefixEnd(parts))
		b.Delete(record.ManifestKey(f.free.Group, u))
	}
	for i := range f.free.Layouts {
		if f.free.Layouts[i].Inline {
			b.Delete(record.BodyKey(f.free.Group, f.free.Layouts[i].Instance))
		}
	}
}

// trimOpLog persists the watermark and forgets old entries, once in a while.
func (j *janitor) trimOpLog() {
	settled := j.e.inflight.settled(&j.e.seq)
	if settled < j.mark.Seq+opLogStep {
		return
	}
	from := j.mark.Trimmed
	j.mark = record.Watermark{Seq: settled, Trimmed: max(from, max(settled, opLogKeep)-opLogKeep)}
	batches := make([]*shardstore.Batch, len(j.e.stores))
	for _, slot := range j.e.view.Load().AllIn() {
		b := j.e.stores[slot].NewBatch()
		b.UseReserve()
		b.Set(record.WatermarkKey(), record.AppendWatermark(nil, j.mark))
		if j.mark.Trimmed > from {
			b.DeleteRange(record.OpLogKey(from), record.OpLogKey(j.mark.Trimmed))
		}
		batches[slot] = b
	}
	j.e.commitBatches(batches, false)
}

// quiet says whether nothing is queued.
func (j *janitor) quiet() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.queue) == 0 && len(j.settled) == 0 && !j.missed
}
