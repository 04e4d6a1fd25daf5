package object

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/millrace/millrace/appliance/record"
	"github.com/millrace/millrace/nvme/shardstore"
	"github.com/millrace/millrace/s3/store"
)

// Put implements store.Objects.
func (e *Engine) Put(ctx context.Context, r store.PutRequest) (store.Object, error) {
	b, err := e.buckets.get(r.Bucket)
	if err != nil {
		return store.Object{}, err
	}
	if err := checkName(r.Key, r.SizeBytes); err != nil {
		return store.Object{}, err
	}
	w, err := e.receive(ctx, record.Owner{Bucket: b.id, Key: r.Key}, r.SizeBytes, r.Body, r.Finish, r.NoMD5)
	if err != nil {
		return store.Object{}, err
	}
	defer w.release()
	rec := &record.Object{Size: r.SizeBytes, Modified: now(), ETag: w.seal.ETag, Layout: w.layout,
		Checksums: w.seal.Checksums, System: maps.Clone(r.System), User: maps.Clone(r.User),
		Attributes: cloneAttributes(r.Attributes)}
	return e.commitObject(r.Bucket, r.Key, r.Precondition, func(m *mutation, _ *record.Object) (*record.Object, error) {
		w.addTo(m)
		return rec, nil
	}, w)
}

// commitObject makes the record that build gives the current version of a key, under the key's
// lock. What the version before it occupied is freed afterwards. written, if not nil, is kept or thrown
// away with the outcome.
func (e *Engine) commitObject(bucketName, key string, pre store.Precondition,
	build func(*mutation, *record.Object) (*record.Object, error), written *written) (store.Object, error) {
	b, leave, err := e.buckets.enter(bucketName)
	if err != nil {
		e.discard(written)
		return store.Object{}, err
	}
	defer leave()
	lock := e.keyLock(b.id, key)
	lock.Lock()
	defer lock.Unlock()
	group := e.view.Load().GroupOf(b.id, key)
	cur, err := e.current(group, b.id, key)
	if err == nil {
		err = e.judge(pre, group, bucketName, key, cur)
	}
	if err != nil {
		e.discard(written)
		return store.Object{}, err
	}
	m := e.newMutation(group)
	rec, err := build(m, cur)
	if err != nil {
		e.cancel(m)
		e.discard(written)
		return store.Object{}, err
	}
	rec.Seq = m.seq
	freed := e.retire(m, cur)
	m.set(record.ObjectKey(b.id, key), record.AppendObject(nil, rec))
	applied, err := e.apply(m)
	if err != nil {
		if !applied {
			e.discard(written)
		}
		return store.Object{}, err
	}
	e.settle(written)
	e.janitor.free(freed)
	return e.info(group, bucketName, key, rec)
}

// judge asks a precondition about the current version.
func (e *Engine) judge(pre store.Precondition, group int, bucketName, key string, cur *record.Object) error {
	if pre == nil {
		return nil
	}
	if cur == nil {
		return pre(nil)
	}
	info, err := e.info(group, bucketName, key, cur)
	if err != nil {
		return err
	}
	return pre(&info)
}

// Delete implements store.Objects.
func (e *Engine) Delete(_ context.Context, r store.DeleteRequest) error {
	b, leave, err := e.buckets.enter(r.Bucket)
	if err != nil {
		return err
	}
	defer leave()
	lock := e.keyLock(b.id, r.Key)
	lock.Lock()
	defer lock.Unlock()
	group := e.view.Load().GroupOf(b.id, r.Key)
	cur, err := e.current(group, b.id, r.Key)
	if err == nil {
		err = e.judge(r.Precondition, group, r.Bucket, r.Key, cur)
	}
	if err != nil || cur == nil {
		return err
	}
	m := e.newMutation(group)
	freed := e.retire(m, cur)
	m.delete(record.ObjectKey(b.id, r.Key))
	m.frees = true
	if _, err := e.apply(m); err != nil {
		return err
	}
	e.janitor.free(freed)
	return nil
}

// retire adds to m what must happen to the bytes that m leaves unreferred: those of the version
// that it removes, and m.unused. The result names the free records to work off after m is applied.
func (e *Engine) retire(m *mutation, old *record.Object) []*freeItem {
	f := &record.Free{Group: m.group, Layouts: m.unused}
	switch {
	case old == nil:
	case old.IsMultipart():
		f.Upload = old.Upload
	case old.Layout.Inline:
		m.dropBody(&old.Layout)
	default:
		f.Layouts = append(f.Layouts, old.Layout)
	}
	return m.addFree(f)
}

// freeSegments bounds the segments that one free record names, and so its size.
const freeSegments = 8192

// addFree adds what f says to be freed to the mutation, as one record or several.
func (m *mutation) addFree(f *record.Free) []*freeItem {
	var items []*freeItem
	add := func(f *record.Free) {
		key := record.FreeKey(m.group, m.seq, len(items))
		m.set(key, record.AppendFree(nil, f))
		items = append(items, &freeItem{key: key, free: f})
	}
	if f.Upload != (record.UploadID{}) {
		add(&record.Free{Group: m.group, Upload: f.Upload})
		m.cleared = append(m.cleared, record.ManifestKey(m.group, f.Upload)) // so the op-log names the upload
	}
	for rest := f.Layouts; len(rest) > 0; {
		n, segments := 0, 0
		for n < len(rest) && (n == 0 || segments+len(rest[n].Segments) <= freeSegments) {
			segments += 1 + len(rest[n].Segments)
			n++
		}
		add(&record.Free{Group: m.group, Layouts: rest[:n]})
		rest = rest[n:]
	}
	return items
}

func (m *mutation) dropBody(l *record.Layout) {
	if l.SizeBytes > 0 {
		m.delete(record.BodyKey(m.group, l.Instance))
	}
}

// current reads the current version's record; nil if there is none.
func (e *Engine) current(group int, bucket uint64, key string) (*record.Object, error) {
	value, err := e.get(group, record.ObjectKey(bucket, key))
	if errors.Is(err, shardstore.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return record.DecodeObject(value)
}

// info renders a record as the front sees it.
func (e *Engine) info(group int, bucketName, key string, rec *record.Object) (store.Object, error) {
	o := store.Object{Bucket: bucketName, Key: key, VersionID: store.NullVersion, SizeBytes: rec.Size,
		Modified: rec.Modified, ETag: rec.ETag, Checksums: rec.Checksums, System: rec.System,
		User: rec.User, Attributes: rec.Attributes}
	if !rec.IsMultipart() {
		return o, nil
	}
	value, err := e.get(group, record.ManifestKey(group, rec.Upload))
	if err != nil {
		return o, fmt.Errorf("manifest: %w", err)
	}
	o.Parts, err = record.DecodeManifest(value)
	return o, err
}

func (e *Engine) keyLock(bucket uint64, key string) interface {
	Lock()
	Unlock()
	RLock()
	RUnlock()
} {
	return &e.keys[xxh3.HashStringSeed(key, bucket)%lockStripes]
}

func cloneAttributes(a map[string][]byte) map[string][]byte {
	c := maps.Clone(a)
	for k, v := range c {
		c[k] = append([]byte{}, v...)
	}
	return c
}

func checkName(key string, size int64) error {
	switch {
	case len(key) == 0 || len(key) > store.MaxKeyBytes:
		return fmt.Errorf("%w: key of %d bytes", record.ErrInvalid, len(key))
	case size < 0 || size > store.MaxObjectBytes:
		return fmt.Errorf("%w: object of %d bytes", record.ErrInvalid, size)
	}
	return nil
}

func newInstance() (i record.Instance) {
	rand.Read(i[:]) // never fails
	return i
}

func now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

// expectEOF checks that the body ends where it should, and lets it have its last word.
func expectEOF(body io.Reader) error {
	var one [1]byte
	for range 100 {
		n, err := body.Read(one[:])
		switch {
		case n > 0:
			return store.ErrBodyTooLong
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
	}
	return io.ErrNoProgress
}

// UpdateObject implements store.ObjectUpdater.
func (e *Engine) UpdateObject(_ context.Context, bucketName, key string, change func(*store.Object) error) error {
	b, leave, err := e.buckets.enter(bucketName)
	if err != nil {
		return err
	}
	defer leave()
	lock := e.keyLock(b.id, key)
	lock.Lock()
	defer lock.Unlock()
	group := e.view.Load().GroupOf(b.id, key)
	rec, err := e.existing(group, b.id, key)
	if err != nil {
		return err
	}
	info, err := e.info(group, bucketName, key, rec)
	if err != nil {
		return err
	}
	if err := change(&info); err != nil {
		return err
	}
	m := e.newMutation(group)
	rec.Attributes = info.Attributes
	m.set(record.ObjectKey(b.id, key), record.AppendObject(nil, rec))
	_, err = e.apply(m)
	return err
}
