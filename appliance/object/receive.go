package object

import (
	"context"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/minio/crc64nvme"

	"github.com/millrace/millrace/appliance/arena"
	"github.com/millrace/millrace/appliance/erasure"
	"github.com/millrace/millrace/appliance/record"
	"github.com/millrace/millrace/appliance/segment"
	"github.com/millrace/millrace/nvme/shardstore"
	"github.com/millrace/millrace/s3/checksum"
	"github.com/millrace/millrace/s3/store"
)

// written is a run of bytes that is durable but not referred to yet. It ends in settle or discard.
type written struct {
	layout record.Layout
	seal   store.Seal
	body   []byte // of an inline layout
	short  bool   // not all shards are there
}

// addTo adds the body record of an inline run to the mutation that refers to it.
func (w *written) addTo(m *mutation) {
	if w.layout.Inline && len(w.body) > 0 {
		m.set(record.BodyKey(m.group, w.layout.Instance), w.body)
	}
}

func (w *written) release() { w.body = nil }

// receive stores a body of size bytes: inline, or as segments whose shards are durable and
// marked pending when it returns. finish has then been asked; with noMD5 it must give an ETag.
func (e *Engine) receive(ctx context.Context, owner record.Owner, size int64, body io.Reader,
	finish func(store.Digests) (store.Seal, error), noMD5 bool) (*written, error) {
	w := &written{layout: record.Layout{Instance: newInstance(), SizeBytes: size, Inline: size <= int64(e.cfg.InlineBytes)}}
	sum := md5.New()
	var crc uint64
	var err error
	if w.layout.Inline {
		w.body, err = readInline(body, size)
		if !noMD5 {
			sum.Write(w.body)
		}
		crc = crc64nvme.Checksum(w.body)
	} else {
		digest := func(p []byte) { sum.Write(p) }
		if noMD5 {
			digest = nil
		}
		crc, err = e.receiveSegments(ctx, w, owner, body, digest)
	}
	if err == nil {
		err = expectEOF(body)
	}
	if err == nil {
		d := store.Digests{SizeBytes: size, CRC64NVME: crc}
		if !noMD5 {
			sum.Sum(d.MD5[:0])
		}
		if finish != nil {
			w.seal, err = finish(d)
		}
		if w.seal.ETag == "" {
			w.seal.ETag = hex.EncodeToString(d.MD5[:])
		}
	}
	if err != nil {
		e.discard(w)
		return nil, err
	}
	return w, nil
}

func readInline(body io.Reader, size int64) ([]byte, error) {
	p := make([]byte, size)
	for at := 0; at < len(p); {
		n, err := body.Read(p[at:])
		if at += n; at == len(p) {
			break
		}
		if err == io.EOF {
			return nil, store.ErrBodyTooShort
		}
		if err != nil {
			return nil, err
		}
	}
	return p, nil
}

// receiveSegments writes the body segment by segment, and adds each to w's layout once its shards
// are committed.
func (e *Engine) receiveSegments(ctx context.Context, w *written, owner record.Owner, body io.Reader,
	digest func([]byte)) (crc uint64, err error) {
	for at := int64(0); at < w.layout.SizeBytes; at += erasure.SegmentBytes {
		n := min(erasure.SegmentBytes, w.layout.SizeBytes-at)
		c, err := e.receiveSegment(ctx, w, owner, body, n, digest)
		if err != nil {
			return 0, err
		}
		crc = checksum.CombineCRC64NVME(crc, c, n)
	}
	return crc, nil
}

// shardSet is the shards of a segment that is being written.
type shardSet struct {
	id      shardstore.SegmentID
	seg     record.Segment
	writers []*shardstore.ShardWriter
}

func (s *shardSet) abort() {
	for _, w := range s.writers {
		if w != nil {
			w.Abort()
		}
	}
}

func (e *Engine) receiveSegment(ctx context.Context, w *written, owner record.Owner, body io.Reader,
	size int64, digest func([]byte)) (crc uint64, err error) {
	set, geo, err := e.openShards(ctx, shardstore.SegmentID(w.layout.Instance.Segment(len(w.layout.Segments))), size)
	if err != nil {
		return 0, err
	}
	targets := make([]segment.ShardWriter, len(set.writers))
	for i, sw := range set.writers {
		targets[i] = sw
	}
	res, err := e.io.Write(ctx, geo, targets, body, digest)
	if err != nil {
		set.abort()
		return 0, bodyError(err)
	}
	// From here on the layout names the segment, so that discard finds what was committed.
	w.layout.Segments = append(w.layout.Segments, set.seg)
	whole, err := e.commitShards(set, owner, res.Failed)
	if err != nil {
		return 0, err
	}
	w.short = w.short || !whole
	return res.CRC64NVME, nil
}

func bodyError(err error) error {
	switch {
	case errors.Is(err, segment.ErrBodyShort):
		return store.ErrBodyTooShort
	case errors.Is(err, arena.ErrOverloaded):
		return fmt.Errorf("%w: %w", store.ErrOverloaded, err)
	case errors.Is(err, segment.ErrTooFewShards):
		return fmt.Errorf("%w: %w", store.ErrUnavailable, err)
	}
	return err
}

// openShards chooses slots for a new segment and reserves its space on them.
func (e *Engine) openShards(ctx context.Context, id shardstore.SegmentID, size int64) (*shardSet, erasure.Geometry, error) {
	var full []int
	for {
		v := e.view.Load()
		if _, err := e.targets(v, record.AllSlots); err != nil {
			return nil, erasure.Geometry{}, err
		}
		scheme, slots, ok := v.SegmentSlots(id[:], func(s int) bool { return slices.Contains(full, s) })
		if !ok {
			if len(full) > 0 {
				return nil, erasure.Geometry{}, fmt.Errorf("%w on %d drives", store.ErrFull, len(full))
			}
			return nil, erasure.Geometry{}, fmt.Errorf("%w: %d drives in", store.ErrUnavailable, v.CountIn())
		}
		geo, err := erasure.NewGeometry(scheme, size)
		if err != nil {
			return nil, geo, err
		}
		set := &shardSet{id: id, seg: record.Segment{Scheme: scheme, Slots: slots},
			writers: make([]*shardstore.ShardWriter, len(slots))}
		slot, err := e.reserve(ctx, set, geo.ShardBytes())
		if err == nil {
			if scheme != v.Scheme {
				e.counters.DegradedWrites.Add(1)
			}
			return set, geo, nil
		}
		set.abort()
		if ctx.Err() != nil {
			return nil, geo, ctx.Err()
		}
		if errors.Is(err, shardstore.ErrFull) {
			full = append(full, slot)
		} else {
			if err := e.drop(slot, err); err != nil {
				return nil, geo, err
			}
		}
	}
}

func (e *Engine) reserve(ctx context.Context, set *shardSet, size int64) (slot int, err error) {
	for i, s := range set.seg.Slots {
		id := shardstore.ShardID{Segment: set.id, Index: uint8(i)}
		if set.writers[i], err = e.stores[s].NewShard(ctx, id, size); err != nil {
			return int(s), err
		}
	}
	return 0, nil
}

// commitShards is phase 1 of a write: every shard durable, with its record, its owner and a
// pending mark. A drive that fails is dropped; at least k+1 shards (all, without parity) must be safe. It says
// whether all are.
func (e *Engine) commitShards(set *shardSet, owner record.Owner, failed []error) (whole bool, err error) {
	errs := make([]error, len(set.writers))
	ownerValue := record.AppendOwner(nil, &owner)
	commit := func(i int) {
		if i < len(failed) && failed[i] != nil {
			errs[i] = failed[i]
			return
		}
		s := e.stores[set.seg.Slots[i]]
		b := s.NewBatch()
		b.PutShard(set.writers[i])
		b.Set(record.OwnerKey(set.id, i), ownerValue)
		b.Set(record.PendingKey(set.id, i), nil)
		errs[i] = s.Commit(context.Background(), b, true)
	}
	var wg sync.WaitGroup
	for i := 1; i < len(set.writers); i++ {
		wg.Go(func() { commit(i) })
	}
	commit(0)
	wg.Wait()
	if slices.ContainsFunc(errs, func(err error) bool { return errors.Is(err, shardstore.ErrFull) }) {
		set.abort()
		return false, fmt.Errorf("metadata: %w", store.ErrFull)
	}
	safe := 0
	for i, err := range errs {
		if err == nil {
			safe++
			continue
		}
		set.writers[i].Abort()
		if err := e.drop(int(set.seg.Slots[i]), err); err != nil {
			return false, err
		}
	}
	need := set.seg.Scheme.Data + min(1, set.seg.Scheme.Parity)
	if safe < need {
		return false, fmt.Errorf("%w: %d of %d shards safe, %d needed", store.ErrUnavailable, safe, len(errs), need)
	}
	if safe < len(errs) {
		e.counters.DegradedWrites.Add(1)
	}
	return safe == len(errs), nil
}

// settle says that a record refers to w now: its shards are not pending any more.
func (e *Engine) settle(w *written) {
	if w == nil || w.layout.Inline {
		return
	}
	e.janitor.settle(&w.layout)
	if w.short {
		e.askRepair()
	}
}

// discard frees what w occupies; no record refers to it.
func (e *Engine) discard(w *written) {
	if w != nil && !w.layout.Inline {
		e.deleteShards([]record.Layout{w.layout}, false)
	}
}
