// Package memstore is a Store in memory: the reference model that the object engine is compared
// with, and the fake behind the front in tests.
//
// It is not durable and not fast: one mutex guards everything, listings sort all keys of a bucket,
// and every object is one slice. It is meant to be obviously right. Invariant: a stored version is
// never changed in place, so an open Reader needs no lock.
package memstore

import (
	"bytes"
	"context"
	"crypto/md5"
	"encoding/hex"
	"hash/crc64"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/s3/store"
)

// crc64NVMEPoly is the NVMe polynomial in the reversed form that hash/crc64 takes.
const crc64NVMEPoly = 0x9a6c9329ac4bc9b5

// Store keeps buckets, objects and uploads in memory. Make one with New.
type Store struct {
	crc *crc64.Table

	mu      sync.Mutex
	buckets map[string]*bucket
	serial  uint64 // of upload IDs
}

type bucket struct {
	info    store.Bucket
	objects map[string]*object
	uploads map[string]*upload // by ID
}

type object struct {
	info     store.Object
	data     []byte
	uploadID string // of the upload that made it, or ""
}

var (
	_ store.Store         = (*Store)(nil)
	_ store.ObjectUpdater = (*Store)(nil)
)

// New returns an empty store.
func New() *Store {
	return &Store{crc: crc64.MakeTable(crc64NVMEPoly), buckets: map[string]*bucket{}}
}

func now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

// CreateBucket makes a bucket, or returns the one that has the name with ErrBucketExists.
func (s *Store) CreateBucket(_ context.Context, b store.Bucket) (store.Bucket, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, ok := s.buckets[b.Name]; ok {
		return cloneBucket(old.info), store.ErrBucketExists
	}
	b = cloneBucket(b)
	if b.Created.IsZero() {
		b.Created = now()
	}
	b.Created = b.Created.UTC().Truncate(time.Millisecond)
	s.buckets[b.Name] = &bucket{info: b, objects: map[string]*object{}, uploads: map[string]*upload{}}
	return cloneBucket(b), nil
}

// Bucket returns the bucket of that name, or ErrNoSuchBucket.
func (s *Store) Bucket(_ context.Context, name string) (store.Bucket, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, ok := s.buckets[name]
	if !ok {
		return store.Bucket{}, store.ErrNoSuchBucket
	}
	return cloneBucket(b.info), nil
}

// ListBuckets returns all buckets by name.
func (s *Store) ListBuckets(context.Context) ([]store.Bucket, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []store.Bucket
	for _, name := range slices.Sorted(maps.Keys(s.buckets)) {
		list = append(list, cloneBucket(s.buckets[name].info))
	}
	return list, nil
}

// UpdateBucket lets change alter the attributes of a bucket; its error is returned as it is.
func (s *Store) UpdateBucket(_ context.Context, name string, change func(*store.Bucket) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, ok := s.buckets[name]
	if !ok {
		return store.ErrNoSuchBucket
	}
	next := cloneBucket(b.info)
	if err := change(&next); err != nil {
		return err
	}
	b.info.Attributes = cloneAttributes(next.Attributes)
	return nil
}

// DeleteBucket removes an empty bucket.
func (s *Store) DeleteBucket(_ context.Context, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, ok := s.buckets[name]
	if !ok {
		return store.ErrNoSuchBucket
	}
	if len(b.objects) > 0 || len(b.uploads) > 0 {
		return store.ErrBucketNotEmpty
	}
	delete(s.buckets, name)
	return nil
}

// Put stores an object.
func (s *Store) Put(ctx context.Context, r store.PutRequest) (store.Object, error) {
	if _, err := s.Bucket(ctx, r.Bucket); err != nil {
		return store.Object{}, err
	}
	data, seal, err := s.take(r.Body, r.SizeBytes, r.Finish)
	if err != nil {
		return store.Object{}, err
	}
	o := &object{data: data, info: cloneObject(store.Object{
		Bucket: r.Bucket, Key: r.Key, SizeBytes: r.SizeBytes, ETag: seal.ETag, Checksums: seal.Checksums,
		System: r.System, User: r.User, Attributes: r.Attributes,
	})}
	s.mu.Lock()
	defer s.mu.Unlock()
	b, ok := s.buckets[r.Bucket]
	if !ok {
		return store.Object{}, store.ErrNoSuchBucket
	}
	return b.commit(o, r.Precondition)
}

// take reads a whole body and asks finish for the seal.
func (s *Store) take(body io.Reader, size int64, finish func(store.Digests) (store.Seal, error)) (
	[]byte, store.Seal, error) {
	var buf bytes.Buffer
	n, err := io.Copy(&buf, io.LimitReader(body, size+1))
	switch {
	case err != nil:
		return nil, store.Seal{}, err
	case n < size:
		return nil, store.Seal{}, store.ErrBodyTooShort
	case n > size:
		return nil, store.Seal{}, store.ErrBodyTooLong
	}
	data := buf.Bytes()
	d := store.Digests{SizeBytes: n, MD5: md5.Sum(data), CRC64NVME: crc64.Checksum(data, s.crc)}
	var seal store.Seal
	if finish != nil {
		if seal, err = finish(d); err != nil {
			return nil, store.Seal{}, err
		}
	}
	if seal.ETag == "" {
		seal.ETag = hex.EncodeToString(d.MD5[:])
	}
	return data, seal, nil
}

// commit makes o the current version of its key. The store's mutex is held.
func (b *bucket) commit(o *object, allow store.Precondition) (store.Object, error) {
	if err := b.judge(o.info.Key, allow); err != nil {
		return store.Object{}, err
	}
	o.info.VersionID = store.NullVersion
	o.info.Modified = now()
	b.objects[o.info.Key] = o
	return cloneObject(o.info), nil
}

func (b *bucket) judge(key string, allow store.Precondition) error {
	if allow == nil {
		return nil
	}
	if old, ok := b.objects[key]; ok {
		info := cloneObject(old.info)
		return allow(&info)
	}
	return allow(nil)
}

func (s *Store) find(name, key string) (*object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, ok := s.buckets[name]
	if !ok {
		return nil, store.ErrNoSuchBucket
	}
	o, ok := b.objects[key]
	if !ok {
		return nil, store.ErrNoSuchKey
	}
	return o, nil
}

// Stat describes the current version of a key.
func (s *Store) Stat(_ context.Context, bucket, key string) (store.Object, error) {
	o, err := s.find(bucket, key)
	if err != nil {
		return store.Object{}, err
	}
	return cloneObject(o.info), nil
}

// Open opens the current version of a key.
func (s *Store) Open(_ context.Context, bucket, key string) (store.Reader, error) {
	o, err := s.find(bucket, key)
	if err != nil {
		return nil, err
	}
	return reader{o}, nil
}

type reader struct{ o *object }

// Info describes the open version.
func (r reader) Info() store.Object { return cloneObject(r.o.info) }

// Close does nothing.
func (r reader) Close() error { return nil }

// WriteRange writes a range of the open version to w.
func (r reader) WriteRange(ctx context.Context, w io.Writer, off, n int64) error {
	size := int64(len(r.o.data))
	if off < 0 || n < 0 || off > size || n > size-off {
		return store.ErrInvalidRange
	}
	if err := ctx.Err(); err != nil || n == 0 {
		return err
	}
	_, err := w.Write(r.o.data[off : off+n])
	return err
}

// Delete removes a key, if its precondition allows it.
func (s *Store) Delete(_ context.Context, r store.DeleteRequest) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, ok := s.buckets[r.Bucket]
	if !ok {
		return store.ErrNoSuchBucket
	}
	if err := b.judge(r.Key, r.Precondition); err != nil {
		return err
	}
	delete(b.objects, r.Key)
	return nil
}

// UpdateObject lets change alter the attributes of the current version of a key.
func (s *Store) UpdateObject(_ context.Context, bucket, key string, change func(*store.Object) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, ok := s.buckets[bucket]
	if !ok {
		return store.ErrNoSuchBucket
	}
	old, ok := b.objects[key]
	if !ok {
		return store.ErrNoSuchKey
	}
	changed := cloneObject(old.info)
	if err := change(&changed); err != nil {
		return err
	}
	next := *old
	next.info.Attributes = cloneAttributes(changed.Attributes)
	b.objects[key] = &next
	return nil
}
