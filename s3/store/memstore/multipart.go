package memstore

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/millrace/millrace/s3/store"
)

type upload struct {
	info  store.Upload
	parts map[int]part
}

type part struct {
	info store.Part
	data []byte
}

// upload finds an upload. The mutex is held.
func (s *Store) upload(name, key, id string) (*bucket, *upload, error) {
	b, ok := s.buckets[name]
	if !ok {
		return nil, nil, store.ErrNoSuchUpload
	}
	u, ok := b.uploads[id]
	if !ok || u.info.Key != key {
		return b, nil, store.ErrNoSuchUpload
	}
	return b, u, nil
}

// CreateUpload starts a multipart upload.
func (s *Store) CreateUpload(_ context.Context, u store.Upload) (store.Upload, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, ok := s.buckets[u.Bucket]
	if !ok {
		return store.Upload{}, store.ErrNoSuchBucket
	}
	u = cloneUpload(u)
	s.serial++
	u.ID = fmt.Sprintf("%016x", s.serial)
	u.Initiated = now()
	b.uploads[u.ID] = &upload{info: u, parts: map[int]part{}}
	return cloneUpload(u), nil
}

// Upload describes an upload in progress.
func (s *Store) Upload(_ context.Context, bucket, key, id string) (store.Upload, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, u, err := s.upload(bucket, key, id)
	if err != nil {
		return store.Upload{}, err
	}
	return cloneUpload(u.info), nil
}

// PutPart stores a part, in place of an earlier one of its number.
func (s *Store) PutPart(ctx context.Context, r store.PartRequest) (store.Part, error) {
	if _, err := s.Upload(ctx, r.Bucket, r.Key, r.UploadID); err != nil {
		return store.Part{}, err
	}
	data, seal, err := s.take(r.Body, r.SizeBytes, r.Finish)
	if err != nil {
		return store.Part{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, u, err := s.upload(r.Bucket, r.Key, r.UploadID)
	if err != nil {
		return store.Part{}, err
	}
	p := store.Part{
		Number: r.Number, SizeBytes: r.SizeBytes, ETag: seal.ETag, Modified: now(),
		Checksums: cloneChecksums(seal.Checksums),
	}
	u.parts[r.Number] = part{info: p, data: data}
	return clonePart(p), nil
}

// ListParts returns the parts after a number, in order, and whether there are more.
func (s *Store) ListParts(_ context.Context, bucket, key, id string, after, maxParts int) (
	[]store.Part, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, u, err := s.upload(bucket, key, id)
	if err != nil || maxParts <= 0 {
		return nil, false, err
	}
	var list []store.Part
	for _, n := range slices.Sorted(maps.Keys(u.parts)) {
		if n <= after {
			continue
		}
		if len(list) == maxParts {
			return list, true, nil
		}
		list = append(list, clonePart(u.parts[n].info))
	}
	return list, false, nil
}

// CompleteUpload makes an object of the named parts.
func (s *Store) CompleteUpload(_ context.Context, r store.CompleteRequest) (store.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, u, err := s.upload(r.Bucket, r.Key, r.UploadID)
	if err != nil {
		if b != nil && r.UploadID != "" {
			if o, ok := b.objects[r.Key]; ok && o.uploadID == r.UploadID {
				return cloneObject(o.info), nil
			}
		}
		return store.Object{}, err
	}
	o := &object{uploadID: r.UploadID, info: store.Object{
		Bucket: r.Bucket, Key: r.Key,
		System: u.info.System, User: u.info.User, Attributes: u.info.Attributes,
	}}
	var data [][]byte
	last := 0
	for _, n := range r.Numbers {
		p, ok := u.parts[n]
		if !ok || n <= last {
			return store.Object{}, store.ErrInvalidPart
		}
		last = n
		o.info.Parts = append(o.info.Parts, clonePart(p.info))
		o.info.SizeBytes += p.info.SizeBytes
		data = append(data, p.data)
	}
	if last == 0 {
		return store.Object{}, store.ErrInvalidPart
	}
	seal, err := r.Finish(cloneUpload(u.info), cloneObject(o.info).Parts)
	if err != nil {
		return store.Object{}, err
	}
	o.info.ETag, o.info.Checksums = seal.ETag, cloneChecksums(seal.Checksums)
	o.data = bytes.Join(data, nil)
	info, err := b.commit(o, r.Precondition)
	if err == nil {
		delete(b.uploads, r.UploadID)
	}
	return info, err
}

// AbortUpload forgets an upload and its parts.
func (s *Store) AbortUpload(_ context.Context, bucket, key, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, _, err := s.upload(bucket, key, id)
	if err == nil {
		delete(b.uploads, id)
	}
	return err
}
