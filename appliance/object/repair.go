package object

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/millrace/millrace/appliance/erasure"
	"github.com/millrace/millrace/appliance/placement"
	"github.com/millrace/millrace/appliance/record"
	"github.com/millrace/millrace/appliance/segment"
	"github.com/millrace/millrace/nvme/shardstore"
)

// maxHeals bounds the damaged segments that wait to be healed; a later read finds the others again.
const maxHeals = 1024

// wound is a segment of which shards are missing or damaged.
type wound struct {
	owner   record.Owner
	layout  record.Layout
	segment int
	bad     []int     // shard indexes
	wrong   []int     // of them, those that are there, but damaged
	found   time.Time // when they were; zero by a repair
	moves   bool      // they are whole, and to move to the slots that come first in the segment's order
}

func (w *wound) shard(index int) shardstore.ShardID {
	return shardstore.ShardID{Segment: shardstore.SegmentID(w.layout.Instance.Segment(w.segment)), Index: uint8(index)}
}

// heal queues a wound that a read found.
func (e *Engine) heal(w wound) {
	select {
	case e.heals <- w:
		e.mender.nudge()
	default: // the queue is full
	}
}

// healQueued mends what is queued. Many reads may have found the same damage before it is mended; it is
// mended once.
func (e *Engine) healQueued(ctx context.Context) error {
	mended := map[shardstore.ShardID]time.Time{}
	for {
		select {
		case w := <-e.heals:
			w.bad = slices.DeleteFunc(w.bad, func(i int) bool { return mended[w.shard(i)].After(w.found) })
			if len(w.bad) == 0 {
				continue
			}
			ok, err := e.mendSegment(ctx, &w)
			if err != nil {
				return err
			}
			for _, i := range w.bad {
				if ok {
					mended[w.shard(i)] = time.Now()
				}
			}
		default:
			return nil
		}
	}
}

// missing gives the shards of a segment that are to be made anew now.
func (e *Engine) missing(l *record.Layout, i int) (bad []int) {
	id := shardstore.SegmentID(l.Instance.Segment(i))
	for index, slot := range l.Segments[i].Slots {
		s := e.live(slot)
		if e.lostForGood(slot) {
			bad = append(bad, index)
			continue
		}
		if s == nil || e.away(slot) {
			continue
		}
		_, err := s.ShardInfo(shardstore.ShardID{Segment: id, Index: uint8(index)})
		if errors.Is(err, shardstore.ErrNotFound) {
			bad = append(bad, index)
		}
	}
	return bad
}

// lostForGood says whether a slot has been out for so long that its shards move elsewhere.
func (e *Engine) lostForGood(slot uint8) bool {
	v := e.view.Load()
	return int(slot) < len(v.Slots) && v.Slots[slot].State == placement.Lost
}

// away says whether a slot is out, and may come back with its shards. They are not made anew elsewhere meanwhile: nobody
// would free the old ones then.
func (e *Engine) away(slot uint8) bool {
	v := e.view.Load()
	return int(slot) < len(v.Slots) && v.Slots[slot].State == placement.Out
}

// ownerOf asks the shards of a segment whose they are.
func (e *Engine) ownerOf(l *record.Layout, i int) (*record.Owner, error) {
	id := l.Instance.Segment(i)
	for index, slot := range l.Segments[i].Slots {
		s := e.live(slot)
		if s == nil {
			continue
		}
		value, err := s.Get(record.OwnerKey(id, index), nil)
		if err == nil {
			return record.DecodeOwner(value)
		}
	}
	return nil, nil
}

// mendSegment makes the bad shards of a segment anew from the good ones, and lets the record that
// refers to the segment name their slots, unless that record has gone meanwhile. It says whether no more
// is to be done; if not, there is no place for the shards now, or too few others are left.
func (e *Engine) mendSegment(ctx context.Context, w *wound) (mended bool, err error) {
	// Nothing is freed meanwhile; but the segment may be gone already.
	e.janitor.work.RLock()
	defer e.janitor.work.RUnlock()
	l, err := e.layoutOfOwner(&w.owner)
	if err != nil || l == nil || l.Instance != w.layout.Instance || w.segment >= len(l.Segments) {
		return true, err
	}
	was, slots := w.layout.Segments[w.segment].Slots, l.Segments[w.segment].Slots
	w.layout = *l
	w.bad = slices.DeleteFunc(w.bad, func(i int) bool { return slots[i] != was[i] }) // moved since it was found bad
	if len(w.bad) == 0 {
		return true, nil
	}
	w.bad = slices.DeleteFunc(w.bad, func(i int) bool { return e.away(slots[i]) })
	if len(w.bad) == 0 {
		return false, nil
	}
	size := min(erasure.SegmentBytes, w.layout.SizeBytes-int64(w.segment)*erasure.SegmentBytes)
	old := w.layout.Segments[w.segment]
	geo, err := erasure.NewGeometry(old.Scheme, size)
	if err != nil {
		return false, err
	}
	set := e.openReplacements(ctx, w, geo)
	if set == nil {
		return false, ctx.Err() // broken off is not the same as no place
	}
	from := e.shardReaders(&w.layout, w.segment)
	to := make([]segment.ShardWriter, 0, len(w.bad))
	for _, index := range w.bad {
		from[index] = nil
		to = append(to, set.writers[index])
	}
	report, err := e.io.Rebuild(ctx, geo, from, w.bad, to)
	if err != nil {
		set.abort()
		if ctx.Err() == nil {
			e.log.Warn("segment can't be mended", "object", e.nameOf(record.ObjectKey(w.owner.Bucket, w.owner.Key)),
				"segment", set.id, "err", err)
			return false, nil
		}
		return false, err
	}
	if len(report.Failed) > 0 {
		e.noteFailed(&w.layout, w.segment, report.Failed)
	}
	if err := e.commitMended(w, set); !errors.Is(err, shardstore.ErrFull) {
		return true, err
	}
	return false, nil
}

// openReplacements reserves space for the bad shards: in their own slots if those are in, in slots that the segment
// doesn't use yet if they are lost or the shards are to move. It gives nil if that can't be done for all of them now.
func (e *Engine) openReplacements(ctx context.Context, w *wound, geo erasure.Geometry) *shardSet {
	old := w.layout.Segments[w.segment]
	set := &shardSet{id: shardstore.SegmentID(w.layout.Instance.Segment(w.segment)),
		seg:     record.Segment{Scheme: old.Scheme, Slots: slices.Clone(old.Slots)},
		writers: make([]*shardstore.ShardWriter, len(old.Slots))}
	v := e.view.Load()
	for _, index := range w.bad {
		candidates := []uint8{old.Slots[index]}
		unused := slices.DeleteFunc(v.SegmentOrder(set.id[:]), func(s uint8) bool {
			return slices.Contains(set.seg.Slots, s)
		})
		switch v.Slots[old.Slots[index]].State {
		case placement.Out: // since a moment ago
			candidates = nil
		case placement.Lost:
			candidates = unused
		default:
			if w.moves {
				candidates = unused
			}
		}
		for _, slot := range candidates {
			sw, err := e.stores[slot].NewShard(ctx, shardstore.ShardID{Segment: set.id, Index: uint8(index)}, geo.ShardBytes())
			if err == nil {
				set.writers[index], set.seg.Slots[index] = sw, slot
				break
			}
		}
		if set.writers[index] == nil {
			set.abort()
			return nil
		}
	}
	return set
}

// commitMended makes the new shards durable, then the record's reference to them.
func (e *Engine) commitMended(w *wound, set *shardSet) error {
	ownerValue := record.AppendOwner(nil, &w.owner)
	for _, index := range w.bad {
		slot := set.seg.Slots[index]
		b := e.stores[slot].NewBatch()
		b.PutShard(set.writers[index])
		b.Set(record.OwnerKey(set.id, index), ownerValue)
		b.Set(record.PendingKey(set.id, index), nil)
		if err := e.stores[slot].Commit(context.Background(), b, true); err != nil {
			set.abort()
			if errors.Is(err, shardstore.ErrFull) {
				return err
			}
			return e.drop(int(slot), err) // the shard is found again as missing
		}
	}
	var left *departure
	if w.moves {
		var err error
		if left, err = e.depart(w); err != nil {
			return err // the new shards stay pending
		}
	}
	kept, err := e.refer(w, set)
	if err != nil {
		return err // the shards stay pending
	}
	mended := record.Layout{Instance: w.layout.Instance, Segments: make([]record.Segment, w.segment+1)}
	mended.Segments[w.segment] = set.seg
	if !kept {
		e.deleteShards([]record.Layout{mended}, false)
		return nil
	}
	e.janitor.settle(&mended)
	if w.moves {
		e.counters.MovedShards.Add(uint64(len(w.bad)))
		return left.end()
	}
	e.counters.MendedShards.Add(uint64(len(w.bad)))
	e.noteDamaged(w)
	return nil
}

// refer makes the record name the segment's new slots. It says whether the record still refers to
// the segment.
func (e *Engine) refer(w *wound, set *shardSet) (kept bool, err error) {
	lock := e.keyLock(w.owner.Bucket, w.owner.Key)
	lock.Lock()
	defer lock.Unlock()
	group := e.view.Load().GroupOf(w.owner.Bucket, w.owner.Key)
	key := record.ObjectKey(w.owner.Bucket, w.owner.Key)
	if w.owner.Upload != (record.UploadID{}) {
		key = record.PartKey(group, w.owner.Upload, w.owner.Number)
	}
	value, err := e.get(group, key)
	if errors.Is(err, shardstore.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	value, moved, err := renamed(key, value, &w.layout.Instance, w.segment, set.seg)
	if err != nil || value == nil {
		return false, err
	}
	if !moved {
		return true, nil
	}
	m := e.newMutation(group)
	m.set(key, value)
	_, err = e.apply(m)
	return true, err
}

// renamed gives the record with the segment's slots replaced; nil if it is of another instance.
// moved says whether that changed anything.
func renamed(key, value []byte, in *record.Instance, i int, seg record.Segment) (out []byte, moved bool, err error) {
	var l *record.Layout
	var encode func() []byte
	if record.KindOf(key) == record.PartRecord {
		p, err := record.DecodePart(value)
		if err != nil {
			return nil, false, err
		}
		l, encode = &p.Layout, func() []byte { return record.AppendPart(nil, p) }
	} else {
		o, err := record.DecodeObject(value)
		if err != nil {
			return nil, false, err
		}
		l, encode = &o.Layout, func() []byte { return record.AppendObject(nil, o) }
	}
	if l.Instance != *in || i >= len(l.Segments) {
		return nil, false, nil
	}
	moved = !slices.Equal(l.Segments[i].Slots, seg.Slots)
	l.Segments[i] = seg
	return encode(), moved, nil
}
