package object

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sort"
	"sync"
	"time"

	"github.com/millrace/millrace/appliance/arena"
	"github.com/millrace/millrace/appliance/erasure"
	"github.com/millrace/millrace/appliance/record"
	"github.com/millrace/millrace/appliance/segment"
	"github.com/millrace/millrace/nvme/shardstore"
	"github.com/millrace/millrace/s3/store"
)

// Stat implements store.Objects.
func (e *Engine) Stat(_ context.Context, bucketName, key string) (store.Object, error) {
	b, err := e.buckets.get(bucketName)
	if err != nil {
		return store.Object{}, err
	}
	group := e.view.Load().GroupOf(b.id, key)
	lock := e.keyLock(b.id, key)
	lock.RLock()
	defer lock.RUnlock()
	rec, err := e.existing(group, b.id, key)
	if err != nil {
		return store.Object{}, err
	}
	return e.info(group, bucketName, key, rec)
}

func (e *Engine) existing(group int, bucket uint64, key string) (*record.Object, error) {
	rec, err := e.current(group, bucket, key)
	if err == nil && rec == nil {
		err = fmt.Errorf("%w: %q", store.ErrNoSuchKey, key)
	}
	return rec, err
}

// Open implements store.Objects.
func (e *Engine) Open(_ context.Context, bucketName, key string) (store.Reader, error) {
	b, err := e.buckets.get(bucketName)
	if err != nil {
		return nil, err
	}
	group := e.view.Load().GroupOf(b.id, key)
	lock := e.keyLock(b.id, key)
	lock.RLock()
	defer lock.RUnlock()
	rec, err := e.existing(group, b.id, key)
	if err != nil {
		return nil, err
	}
	r := &reader{e: e, group: group, rec: rec}
	if r.info, err = e.info(group, bucketName, key, rec); err != nil {
		return nil, err
	}
	switch {
	case rec.IsMultipart():
		r.pin = pin(rec.Upload)
	case rec.Layout.Inline:
		r.body, err = e.inlineBody(group, &rec.Layout)
		return r, err
	default:
		r.pin = instancePin(rec.Layout.Instance)
	}
	// Under the key's lock nothing can free the version between its record and this pin.
	e.pins.add(r.pin)
	r.pinned = true
	return r, nil
}

func instancePin(i record.Instance) (p pin) {
	copy(p[:], i[:])
	return p
}

func (e *Engine) inlineBody(group int, l *record.Layout) ([]byte, error) {
	if l.SizeBytes == 0 {
		return nil, nil
	}
	body, err := e.get(group, record.BodyKey(group, l.Instance))
	if err == nil && int64(len(body)) != l.SizeBytes {
		err = fmt.Errorf("%w: inline body of %d bytes, not %d", store.ErrDamaged, len(body), l.SizeBytes)
	}
	if errors.Is(err, shardstore.ErrNotFound) {
		err = fmt.Errorf("%w: inline body is missing", store.ErrDamaged)
	}
	return body, err
}

// reader is an open version.
type reader struct {
	e      *Engine
	group  int
	rec    *record.Object
	info   store.Object
	body   []byte // of an inline version
	pin    pin
	pinned bool
	once   sync.Once
}

// Info implements store.Reader.
func (r *reader) Info() store.Object { return r.info }

// Close implements store.Reader.
func (r *reader) Close() error {
	r.once.Do(func() {
		if r.pinned {
			r.e.pins.remove(r.pin)
		}
	})
	return nil
}

// WriteRange implements store.Reader.
func (r *reader) WriteRange(ctx context.Context, w io.Writer, off, n int64) error {
	if off < 0 || n < 0 || off+n > r.info.SizeBytes || off+n < off {
		return fmt.Errorf("%w: %d+%d of %d", store.ErrInvalidRange, off, n, r.info.SizeBytes)
	}
	if n == 0 {
		return nil
	}
	if !r.rec.IsMultipart() {
		return r.e.writeRun(ctx, w, &r.rec.Layout, r.body, off, n)
	}
	return r.writeParts(ctx, w, off, n)
}

// writeParts walks the parts that the range covers, reading each one's layout as it comes to it.
func (r *reader) writeParts(ctx context.Context, w io.Writer, off, n int64) error {
	parts := r.info.Parts
	starts := make([]int64, len(parts)+1)
	for i, p := range parts {
		starts[i+1] = starts[i] + p.SizeBytes
	}
	for i := sort.Search(len(parts), func(i int) bool { return starts[i+1] > off }); n > 0; i++ {
		if i == len(parts) {
			return fmt.Errorf("%w: parts shorter than the object", store.ErrDamaged)
		}
		part, err := r.e.part(r.group, r.rec.Upload, parts[i].Number)
		if err != nil {
			return err
		}
		var body []byte
		if part.Layout.Inline {
			if body, err = r.e.inlineBody(r.group, &part.Layout); err != nil {
				return err
			}
		}
		take := min(n, starts[i+1]-off)
		if err := r.e.writeRun(ctx, w, &part.Layout, body, off-starts[i], take); err != nil {
			return err
		}
		off, n = off+take, n-take
	}
	return nil
}

// writeRun writes a range of one stored run of bytes.
func (e *Engine) writeRun(ctx context.Context, w io.Writer, l *record.Layout, body []byte, off, n int64) error {
	if l.Inline {
		_, err := w.Write(body[off : off+n])
		return err
	}
	for n > 0 {
		i := int(off / erasure.SegmentBytes)
		at := int64(i) * erasure.SegmentBytes
		size := min(erasure.SegmentBytes, l.SizeBytes-at)
		take := min(n, at+size-off)
		if err := e.writeSegment(ctx, w, l, i, size, off-at, take); err != nil {
			return err
		}
		off, n = off+take, n-take
	}
	return nil
}

func (e *Engine) writeSegment(ctx context.Context, w io.Writer, l *record.Layout, i int, size, off, n int64) error {
	seg := &l.Segments[i]
	geo, err := erasure.NewGeometry(seg.Scheme, size)
	if err != nil {
		return err
	}
	report, err := e.io.Read(ctx, geo, e.shardReaders(l, i), off, n, w)
	if report.ReconstructedBytes > 0 {
		e.counters.DegradedReads.Add(1)
	}
	for _, index := range report.Slow {
		e.paces[seg.Slots[index]].late.Add(1)
	}
	if len(report.Failed) > 0 {
		e.noteFailed(l, i, report.Failed)
	}
	switch {
	case errors.Is(err, segment.ErrTooFewShards):
		return fmt.Errorf("%w: segment %d: %w", store.ErrDamaged, i, err)
	case errors.Is(err, arena.ErrOverloaded):
		return fmt.Errorf("%w: %w", store.ErrOverloaded, err)
	}
	return err
}

// noteFailed queues for healing the shards that gave wrong bytes or none, unless their drive is dead.
func (e *Engine) noteFailed(l *record.Layout, i int, failed []segment.ShardError) {
	w := wound{layout: *l, segment: i, found: time.Now()}
	for _, f := range failed {
		slot := l.Segments[i].Slots[f.Shard]
		e.log.Warn("shard not readable", "slot", slot, "segment", i, "err", f.Err)
		if e.live(slot) == nil {
			continue
		}
		w.bad = append(w.bad, f.Shard)
		if !errors.Is(f.Err, shardstore.ErrNotFound) {
			w.wrong = append(w.wrong, f.Shard)
		}
	}
	owner, err := e.ownerOf(l, i)
	if len(w.bad) == 0 || err != nil || owner == nil {
		return
	}
	w.owner = *owner
	e.heal(w)
}

// shardReaders gives the segment's shards, nil for those whose drive is not here.
func (e *Engine) shardReaders(l *record.Layout, i int) []segment.ShardReader {
	seg := &l.Segments[i]
	id := shardstore.SegmentID(l.Instance.Segment(i))
	shards := make([]shard, len(seg.Slots))
	readers := make([]segment.ShardReader, len(seg.Slots))
	for j, slot := range seg.Slots {
		if s := e.live(slot); s != nil {
			shards[j] = shard{e, s, shardstore.ShardID{Segment: id, Index: uint8(j)}, slot}
			readers[j] = &shards[j]
		}
	}
	return readers
}

func (e *Engine) part(group int, u record.UploadID, number int) (*record.Part, error) {
	value, err := e.get(group, record.PartKey(group, u, number))
	if errors.Is(err, shardstore.ErrNotFound) {
		return nil, fmt.Errorf("%w: part %d is missing", store.ErrDamaged, number)
	}
	if err != nil {
		return nil, err
	}
	return record.DecodePart(value)
}
