package memstore

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/millrace/millrace/s3/store"
)

// List returns a page of the keys and common prefixes of a bucket.
func (s *Store) List(_ context.Context, r store.ListRequest) (store.ListPage, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, ok := s.buckets[r.Bucket]
	if !ok {
		return store.ListPage{}, store.ErrNoSuchBucket
	}
	var page store.ListPage
	if r.MaxEntries <= 0 {
		return page, nil
	}
	for _, key := range slices.Sorted(maps.Keys(b.objects)) {
		if !strings.HasPrefix(key, r.Prefix) {
			continue
		}
		entry, common := rollUp(key, r.Prefix, r.Delimiter)
		if entry <= r.After || common && page.Next == entry {
			continue
		}
		if len(page.Objects)+len(page.Prefixes) == r.MaxEntries {
			page.Truncated = true
			break
		}
		if common {
			page.Prefixes = append(page.Prefixes, entry)
		} else {
			o := cloneObject(b.objects[key].info)
			o.Parts = nil
			page.Objects = append(page.Objects, o)
		}
		page.Next = entry
	}
	return page, nil
}

// rollUp returns the common prefix that stands for key in a listing, or the key itself.
func rollUp(key, prefix, delimiter string) (entry string, common bool) {
	if delimiter == "" {
		return key, false
	}
	i := strings.Index(key[len(prefix):], delimiter)
	if i < 0 {
		return key, false
	}
	return key[:len(prefix)+i+len(delimiter)], true
}

// ListUploads returns a page of the uploads of a bucket, by key and ID.
func (s *Store) ListUploads(_ context.Context, r store.UploadsRequest) (store.UploadsPage, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, ok := s.buckets[r.Bucket]
	if !ok {
		return store.UploadsPage{}, store.ErrNoSuchBucket
	}
	var page store.UploadsPage
	if r.MaxEntries <= 0 {
		return page, nil
	}
	all := slices.SortedFunc(maps.Values(b.uploads), func(a, b *upload) int {
		return cmp.Or(cmp.Compare(a.info.Key, b.info.Key), cmp.Compare(a.info.ID, b.info.ID))
	})
	for _, u := range all {
		if !strings.HasPrefix(u.info.Key, r.Prefix) {
			continue
		}
		entry, common := rollUp(u.info.Key, r.Prefix, r.Delimiter)
		sameKey := !common && r.IDAfter != "" && entry == r.KeyAfter && u.info.ID > r.IDAfter
		if entry <= r.KeyAfter && !sameKey || common && page.NextKey == entry {
			continue
		}
		if len(page.Uploads)+len(page.Prefixes) == r.MaxEntries {
			page.Truncated = true
			break
		}
		page.NextKey, page.NextID = entry, ""
		if common {
			page.Prefixes = append(page.Prefixes, entry)
			continue
		}
		page.NextID = u.info.ID
		page.Uploads = append(page.Uploads, cloneUpload(u.info))
	}
	return page, nil
}
