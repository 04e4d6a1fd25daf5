package object

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/millrace/millrace/appliance/record"
	"github.com/millrace/millrace/nvme/shardstore"
	"github.com/millrace/millrace/s3/store"
)

// CreateUpload implements store.Multipart.
func (e *Engine) CreateUpload(_ context.Context, u store.Upload) (store.Upload, error) {
	if err := checkName(u.Key, 0); err != nil {
		return store.Upload{}, err
	}
	b, leave, err := e.buckets.enter(u.Bucket)
	if err != nil {
		return store.Upload{}, err
	}
	defer leave()
	m := e.newMutation(e.view.Load().GroupOf(b.id, u.Key))
	var id record.UploadID
	binary.BigEndian.PutUint64(id[:], m.seq)
	rand.Read(id[8:]) // never fails
	u.ID, u.Initiated = id.String(), now()
	m.set(record.UploadKey(b.id, u.Key, id), record.AppendUpload(nil, &u))
	_, err = e.apply(m)
	return u, err
}

// upload is an upload in progress, found.
type upload struct {
	id    record.UploadID
	group int
	key   []byte // of its record
	info  store.Upload
}

func (e *Engine) findUpload(b *bucket, key, id string) (*upload, error) {
	uid, err := record.ParseUploadID(id)
	if err != nil {
		return nil, fmt.Errorf("%w: %q", store.ErrNoSuchUpload, id)
	}
	u := &upload{id: uid, group: e.view.Load().GroupOf(b.id, key), key: record.UploadKey(b.id, key, uid),
		info: store.Upload{Bucket: b.info.Name, Key: key, ID: id}}
	value, err := e.get(u.group, u.key)
	if errors.Is(err, shardstore.ErrNotFound) {
		return nil, fmt.Errorf("%w: %q", store.ErrNoSuchUpload, id)
	}
	if err != nil {
		return nil, err
	}
	return u, record.DecodeUpload(value, &u.info)
}

// Upload implements store.Multipart.
func (e *Engine) Upload(_ context.Context, bucketName, key, id string) (store.Upload, error) {
	b, err := e.buckets.get(bucketName)
	if err != nil {
		return store.Upload{}, err
	}
	u, err := e.findUpload(b, key, id)
	if err != nil {
		return store.Upload{}, err
	}
	return u.info, nil
}

// PutPart implements store.Multipart.
func (e *Engine) PutPart(ctx context.Context, r store.PartRequest) (store.Part, error) {
	b, err := e.buckets.get(r.Bucket)
	if err != nil {
		return store.Part{}, err
	}
	if r.Number < 1 || r.Number > store.MaxPartNumber {
		return store.Part{}, fmt.Errorf("%w: number %d", store.ErrInvalidPart, r.Number)
	}
	u, err := e.findUpload(b, r.Key, r.UploadID)
	if err != nil {
		return store.Part{}, err
	}
	owner := record.Owner{Bucket: b.id, Key: r.Key, Upload: u.id, Number: r.Number}
	w, err := e.receive(ctx, owner, r.SizeBytes, r.Body, r.Finish, r.NoMD5)
	if err != nil {
		return store.Part{}, err
	}
	p := &record.Part{Layout: w.layout, Part: store.Part{Number: r.Number, SizeBytes: r.SizeBytes,
		ETag: w.seal.ETag, Checksums: w.seal.Checksums, Modified: now()}}
	if err := e.commitPart(b, r, p, w); err != nil {
		return store.Part{}, err
	}
	return p.Part, nil
}

// commitPart makes p the part of that number, if the upload is still there.
func (e *Engine) commitPart(b *bucket, r store.PartRequest, p *record.Part, w *written) error {
	lock := e.keyLock(b.id, r.Key)
	lock.Lock()
	defer lock.Unlock()
	u, err := e.findUpload(b, r.Key, r.UploadID)
	if err != nil {
		e.discard(w)
		return err
	}
	key := record.PartKey(u.group, u.id, r.Number)
	old, err := e.partIfAny(key)
	if err != nil {
		e.discard(w)
		return err
	}
	m := e.newMutation(u.group)
	var freed []*freeItem
	if old != nil {
		freed = m.retirePart(&old.Layout)
	}
	m.set(key, record.AppendPart(nil, p))
	w.addTo(m)
	applied, err := e.apply(m)
	if err != nil {
		if !applied {
			e.discard(w)
		}
		return err
	}
	e.settle(w)
	e.janitor.free(freed)
	return nil
}

func (m *mutation) retirePart(l *record.Layout) []*freeItem {
	if l.Inline {
		m.dropBody(l)
		return nil
	}
	return m.addFree(&record.Free{Group: m.group, Layouts: []record.Layout{*l}})
}

func (e *Engine) partIfAny(key []byte) (*record.Part, error) {
	value, err := e.get(record.GroupOfKey(key), key)
	if errors.Is(err, shardstore.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return record.DecodePart(value)
}

// ListParts implements store.Multipart.
func (e *Engine) ListParts(_ context.Context, bucketName, key, id string, after, maxParts int) ([]store.Part, bool, error) {
	b, err := e.buckets.get(bucketName)
	if err != nil {
		return nil, false, err
	}
	u, err := e.findUpload(b, key, id)
	if err != nil {
		return nil, false, err
	}
	var parts []store.Part
	more := false
	err = e.eachPart(u.group, u.id, after, func(p *record.Part) bool {
		if more = len(parts) >= maxParts && maxParts > 0; len(parts) >= maxParts {
			return false
		}
		parts = append(parts, p.Part)
		return true
	})
	return parts, more, err
}

// eachPart calls f with every part of an upload with a number greater than after, until f
// returns false. When a drive fails in between, the next one goes on.
func (e *Engine) eachPart(group int, u record.UploadID, after int, f func(*record.Part) bool) error {
	v := e.view.Load()
	for _, slot := range v.Reads(group) {
		err := eachPartOn(e.stores[slot], group, u, after, func(p *record.Part) bool {
			after = p.Part.Number
			return f(p)
		})
		if err == nil {
			return nil
		}
		e.log.Warn("read of parts failed", "slot", slot, "err", err)
	}
	return fmt.Errorf("%w: group %d has no member left", store.ErrUnavailable, group)
}

func eachPartOn(s *shardstore.Store, group int, u record.UploadID, after int, f func(*record.Part) bool) error {
	lower := record.PartKey(group, u, after+1)
	it, err := s.Scan(lower, record.PrefixEnd(record.PartPrefix(group, u)))
	if err != nil {
		return err
	}
	defer it.Close()
	for it.First(); it.Valid(); it.Next() {
		value, err := it.Value()
		if err != nil {
			return err
		}
		p, err := record.DecodePart(value)
		if err != nil {
			return err
		}
		if !f(p) {
			return nil
		}
	}
	return it.Err()
}

// CompleteUpload implements store.Multipart.
func (e *Engine) CompleteUpload(ctx context.Context, r store.CompleteRequest) (store.Object, error) {
	b, err := e.buckets.get(r.Bucket)
	if err != nil {
		return store.Object{}, err
	}
	if _, err := e.findUpload(b, r.Key, r.UploadID); errors.Is(err, store.ErrNoSuchUpload) {
		return e.completedBefore(ctx, b, r, err)
	}
	var refused error // the precondition's word
	pre := r.Precondition
	if pre != nil {
		pre = func(cur *store.Object) error {
			refused = r.Precondition(cur)
			return refused
		}
	}
	o, err := e.commitObject(r.Bucket, r.Key, pre, func(m *mutation, _ *record.Object) (*record.Object, error) {
		u, err := e.findUpload(b, r.Key, r.UploadID)
		if err != nil {
			return nil, err
		}
		return e.assemble(m, u, r)
	}, nil)
	if refused == nil && !errors.Is(err, store.ErrNoSuchUpload) {
		return o, err
	}
	// Perhaps somebody else has completed it meanwhile.
	if _, gone := e.findUpload(b, r.Key, r.UploadID); errors.Is(gone, store.ErrNoSuchUpload) {
		return e.completedBefore(ctx, b, r, err)
	}
	return o, err
}

// completedBefore answers the second completion of an upload as the first was answered.
func (e *Engine) completedBefore(_ context.Context, b *bucket, r store.CompleteRequest, notThere error) (store.Object, error) {
	uid, err := record.ParseUploadID(r.UploadID)
	if err != nil {
		return store.Object{}, notThere
	}
	lock := e.keyLock(b.id, r.Key)
	lock.RLock()
	defer lock.RUnlock()
	group := e.view.Load().GroupOf(b.id, r.Key)
	rec, err := e.current(group, b.id, r.Key)
	if err != nil {
		return store.Object{}, err
	}
	if rec == nil || rec.Upload != uid {
		return store.Object{}, notThere
	}
	return e.info(group, r.Bucket, r.Key, rec)
}

// assemble builds the object record of a completed upload: the parts stay where they are, those
// not named are freed.
func (e *Engine) assemble(m *mutation, u *upload, r store.CompleteRequest) (*record.Object, error) {
	var parts []store.Part
	var unused []record.Layout
	want := r.Numbers
	err := e.eachPart(u.group, u.id, 0, func(p *record.Part) bool {
		if len(want) > 0 && want[0] == p.Part.Number {
			parts, want = append(parts, p.Part), want[1:]
			return true
		}
		m.delete(record.PartKey(u.group, u.id, p.Part.Number))
		if p.Layout.Inline {
			m.dropBody(&p.Layout)
		} else {
			unused = append(unused, p.Layout)
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	if len(want) > 0 {
		return nil, fmt.Errorf("%w: number %d", store.ErrInvalidPart, want[0])
	}
	seal := store.Seal{}
	if r.Finish != nil {
		if seal, err = r.Finish(u.info, slices.Clone(parts)); err != nil {
			return nil, err
		}
	}
	rec := &record.Object{Modified: now(), ETag: seal.ETag, Upload: u.id, Checksums: seal.Checksums,
		System: u.info.System, User: u.info.User, Attributes: u.info.Attributes}
	for _, p := range parts {
		rec.Size += p.SizeBytes
	}
	m.set(record.ManifestKey(u.group, u.id), record.AppendManifest(nil, parts))
	m.delete(u.key)
	m.unused = unused
	return rec, nil
}

// AbortUpload implements store.Multipart.
func (e *Engine) AbortUpload(_ context.Context, bucketName, key, id string) error {
	b, leave, err := e.buckets.enter(bucketName)
	if err != nil {
		return err
	}
	defer leave()
	lock := e.keyLock(b.id, key)
	lock.Lock()
	defer lock.Unlock()
	u, err := e.findUpload(b, key, id)
	if err != nil {
		return err
	}
	m := e.newMutation(u.group)
	m.delete(u.key)
	m.frees = true
	freed := m.addFree(&record.Free{Group: u.group, Upload: u.id})
	if _, err := e.apply(m); err != nil {
		return err
	}
	e.janitor.free(freed)
	return nil
}

// ListUploads implements store.Multipart.
func (e *Engine) ListUploads(ctx context.Context, r store.UploadsRequest) (store.UploadsPage, error) {
	b, err := e.buckets.get(r.Bucket)
	if err != nil {
		return store.UploadsPage{}, err
	}
	for {
		page, err := e.listUploadsOnce(ctx, b.id, r)
		if !errors.Is(err, errRetryList) {
			return page, err
		}
	}
}
