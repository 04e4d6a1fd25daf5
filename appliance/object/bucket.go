package object

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/millrace/millrace/appliance/record"
	"github.com/millrace/millrace/s3/store"
)

const (
	bucketPrefix = "bucket/"
	// maxBuckets bounds what is kept in memory.
	maxBuckets = 100_000
)

// bucketRecord is the configuration record of a bucket.
type bucketRecord struct {
	ID         uint64            `json:"id"` // never used again
	Owner      string            `json:"owner"`
	Region     string            `json:"region,omitempty"`
	Created    time.Time         `json:"created"`
	Attributes map[string][]byte `json:"attributes,omitempty"`
}

// bucket is a bucket that exists. Mutations of its objects share gate; its removal excludes them.
type bucket struct {
	gate sync.RWMutex
	gone bool
	id   uint64
	info store.Bucket
}

// buckets are all buckets, in memory, as their configuration records say.
type buckets struct {
	change sync.Mutex // held over a change and its commit
	mu     sync.RWMutex
	byName map[string]*bucket
}

func (bs *buckets) get(name string) (*bucket, error) {
	bs.mu.RLock()
	b := bs.byName[name]
	bs.mu.RUnlock()
	if b == nil {
		return nil, fmt.Errorf("%w: %s", store.ErrNoSuchBucket, name)
	}
	return b, nil
}

func (bs *buckets) put(b *bucket) {
	bs.mu.Lock()
	bs.byName[b.info.Name] = b
	bs.mu.Unlock()
}

func (bs *buckets) remove(name string) {
	bs.mu.Lock()
	delete(bs.byName, name)
	bs.mu.Unlock()
}

// enter takes a bucket for a mutation of its objects; leave gives it back.
func (bs *buckets) enter(name string) (b *bucket, leave func(), err error) {
	b, err = bs.get(name)
	if err != nil {
		return nil, nil, err
	}
	b.gate.RLock()
	if b.gone {
		b.gate.RUnlock()
		return nil, nil, fmt.Errorf("%w: %s", store.ErrNoSuchBucket, name)
	}
	return b, b.gate.RUnlock, nil
}

// CreateBucket implements store.Buckets.
func (e *Engine) CreateBucket(_ context.Context, info store.Bucket) (store.Bucket, error) {
	e.buckets.change.Lock()
	defer e.buckets.change.Unlock()
	if b, err := e.buckets.get(info.Name); err == nil {
		return cloneBucket(b.info), fmt.Errorf("%w: %s", store.ErrBucketExists, info.Name)
	}
	if len(e.buckets.byName) >= maxBuckets {
		return store.Bucket{}, fmt.Errorf("%w: %d buckets", store.ErrFull, maxBuckets)
	}
	info = cloneBucket(info)
	info.Created = time.Now().UTC().Truncate(time.Millisecond)
	m := e.newMutation(record.AllSlots)
	b := &bucket{id: m.seq, info: info}
	if err := e.setBucket(m, b.id, info); err != nil {
		return store.Bucket{}, err
	}
	e.buckets.put(b)
	return cloneBucket(info), nil
}

func (e *Engine) setBucket(m *mutation, id uint64, info store.Bucket) error {
	text, err := json.Marshal(bucketRecord{ID: id, Owner: info.Owner, Region: info.Region,
		Created: info.Created, Attributes: info.Attributes})
	if err != nil {
		e.cancel(m)
		return fmt.Errorf("bucket record: %w", err)
	}
	m.set(record.ConfigKey(bucketPrefix+info.Name), text)
	_, err = e.apply(m)
	return err
}

// Bucket implements store.Buckets.
func (e *Engine) Bucket(_ context.Context, name string) (store.Bucket, error) {
	b, err := e.buckets.get(name)
	if err != nil {
		return store.Bucket{}, err
	}
	e.buckets.mu.RLock()
	defer e.buckets.mu.RUnlock()
	return cloneBucket(b.info), nil
}

// ListBuckets implements store.Buckets.
func (e *Engine) ListBuckets(context.Context) ([]store.Bucket, error) {
	e.buckets.mu.RLock()
	defer e.buckets.mu.RUnlock()
	list := make([]store.Bucket, 0, len(e.buckets.byName))
	for _, b := range e.buckets.byName {
		list = append(list, cloneBucket(b.info))
	}
	slices.SortFunc(list, func(a, b store.Bucket) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// UpdateBucket implements store.Buckets.
func (e *Engine) UpdateBucket(_ context.Context, name string, change func(*store.Bucket) error) error {
	e.buckets.change.Lock()
	defer e.buckets.change.Unlock()
	b, err := e.buckets.get(name)
	if err != nil {
		return err
	}
	info := cloneBucket(b.info)
	if err := change(&info); err != nil {
		return err
	}
	info.Name = name
	if err := e.setBucket(e.newMutation(record.AllSlots), b.id, info); err != nil {
		return err
	}
	e.buckets.mu.Lock()
	b.info = info
	e.buckets.mu.Unlock()
	return nil
}

// DeleteBucket implements store.Buckets.
func (e *Engine) DeleteBucket(ctx context.Context, name string) error {
	e.buckets.change.Lock()
	defer e.buckets.change.Unlock()
	b, err := e.buckets.get(name)
	if err != nil {
		return err
	}
	b.gate.Lock()
	defer b.gate.Unlock()
	objects, err := e.List(ctx, store.ListRequest{Bucket: name, MaxEntries: 1})
	if err != nil {
		return err
	}
	uploads, err := e.ListUploads(ctx, store.UploadsRequest{Bucket: name, MaxEntries: 1})
	if err != nil {
		return err
	}
	if len(objects.Objects)+len(uploads.Uploads) > 0 {
		return fmt.Errorf("%w: %s", store.ErrBucketNotEmpty, name)
	}
	m := e.newMutation(record.AllSlots)
	m.delete(record.ConfigKey(bucketPrefix + name))
	m.frees = true
	if _, err := e.apply(m); err != nil {
		return err
	}
	b.gone = true
	e.buckets.remove(name)
	return nil
}

// loadBuckets reads all configuration records from one drive.
func (e *Engine) loadBuckets() error {
	e.buckets.byName = map[string]*bucket{}
	var errs []error
	for _, slot := range e.configSlots() {
		err := e.loadBucketsFrom(slot)
		if err == nil {
			return nil
		}
		errs = append(errs, err)
	}
	return fmt.Errorf("read buckets: %w", errors.Join(errs...))
}

func (e *Engine) loadBucketsFrom(slot uint8) error {
	prefix := record.ConfigKey(bucketPrefix)
	it, err := e.stores[slot].Scan(prefix, record.PrefixEnd(prefix))
	if err != nil {
		return err
	}
	defer it.Close()
	for it.First(); it.Valid(); it.Next() {
		value, err := it.Value()
		if err != nil {
			return err
		}
		var r bucketRecord
		name := strings.TrimPrefix(record.ConfigName(it.Key()), bucketPrefix)
		if err := json.Unmarshal(value, &r); err != nil {
			return fmt.Errorf("%w: bucket %s: %w", record.ErrInvalid, name, err)
		}
		e.buckets.put(&bucket{id: r.ID, info: store.Bucket{Name: name, Owner: r.Owner, Region: r.Region,
			Created: r.Created, Attributes: r.Attributes}})
	}
	return it.Err()
}

func cloneBucket(b store.Bucket) store.Bucket {
	b.Attributes = cloneAttributes(b.Attributes)
	return b
}
