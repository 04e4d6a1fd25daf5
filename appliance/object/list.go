package object

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/millrace/millrace/appliance/placement"
	"github.com/millrace/millrace/appliance/record"
	"github.com/millrace/millrace/nvme/shardstore"
	"github.com/millrace/millrace/s3/store"
)

// errRetryList: a drive failed while a listing ran, and was dropped.
var errRetryList = errors.New("drive failed during a listing")

// List implements store.Objects.
func (e *Engine) List(ctx context.Context, r store.ListRequest) (store.ListPage, error) {
	b, err := e.buckets.get(r.Bucket)
	if err != nil {
		return store.ListPage{}, err
	}
	for {
		page, err := e.listOnce(ctx, b.id, r)
		if !errors.Is(err, errRetryList) {
			return page, err
		}
	}
}

func (e *Engine) listOnce(ctx context.Context, bucket uint64, r store.ListRequest) (store.ListPage, error) {
	var page store.ListPage
	if r.MaxEntries <= 0 {
		return page, nil
	}
	base := record.BucketPrefix(bucket)
	lower := append(bytes.Clone(base), r.Prefix...)
	groupOf := func(v *placement.View, key []byte) int { return v.GroupOfBytes(bucket, key[len(base):]) }
	c, err := e.openCursor(lower, groupOf)
	if err != nil {
		return page, err
	}
	defer c.close()
	if r.After >= r.Prefix {
		c.seek(append(append(bytes.Clone(base), r.After...), 0))
	} else {
		c.seek(lower)
	}
	for c.valid() {
		if err := ctx.Err(); err != nil {
			return page, err
		}
		key := string(c.key()[len(base):])
		common, rolled := commonPrefix(key, r.Prefix, r.Delimiter)
		if rolled && common <= r.After {
			c.seek(record.PrefixEnd(append(bytes.Clone(base), common...)))
			continue
		}
		if len(page.Objects)+len(page.Prefixes) == r.MaxEntries {
			page.Truncated = true
			break
		}
		if rolled {
			page.Prefixes = append(page.Prefixes, common)
			page.Next = common
			c.seek(record.PrefixEnd(append(bytes.Clone(base), common...)))
			continue
		}
		o, err := listed(c, r.Bucket, key)
		if err != nil {
			return page, err
		}
		page.Objects = append(page.Objects, o)
		page.Next = key
		c.next()
	}
	return page, c.err()
}

func listed(c *cursor, bucketName, key string) (store.Object, error) {
	value, err := c.value()
	if err != nil {
		return store.Object{}, err
	}
	var rec record.Object
	if err := record.DecodeListed(value, &rec); err != nil {
		return store.Object{}, err
	}
	return store.Object{Bucket: bucketName, Key: key, VersionID: store.NullVersion, SizeBytes: rec.Size,
		Modified: rec.Modified, ETag: rec.ETag, Checksums: rec.Checksums}, nil
}

// commonPrefix says what the key is rolled up into, if the delimiter follows the prefix in it.
func commonPrefix(key, prefix, delimiter string) (string, bool) {
	if delimiter == "" {
		return "", false
	}
	i := strings.Index(key[len(prefix):], delimiter)
	if i < 0 {
		return "", false
	}
	return key[:len(prefix)+i+len(delimiter)], true
}

// cursor walks the records under a prefix over all drives in order of their keys, each drive
// speaking only for the groups that it leads.
type cursor struct {
	e       *Engine
	view    *placement.View
	groupOf func(*placement.View, []byte) int
	sources []*source
	at      *source // the one with the least key, nil at the end
	failed  error
}

// source is one drive's part of a cursor.
type source struct {
	slot int
	it   *shardstore.Iterator
}

func (e *Engine) openCursor(prefix []byte, groupOf func(*placement.View, []byte) int) (*cursor, error) {
	c := &cursor{e: e, view: e.view.Load(), groupOf: groupOf}
	leads := make([]bool, len(c.view.Slots))
	for g := range c.view.Groups {
		lead := c.view.Lead(g)
		if lead < 0 {
			return nil, fmt.Errorf("%w: group %d has no member left", store.ErrUnavailable, g)
		}
		leads[lead] = true
	}
	for slot, leads := range leads {
		if !leads {
			continue
		}
		it, err := e.stores[slot].Scan(prefix, record.PrefixEnd(prefix))
		if err != nil {
			c.close()
			return nil, e.retryList(slot, err)
		}
		c.sources = append(c.sources, &source{slot: slot, it: it})
	}
	return c, nil
}

// retryList drops a drive that failed a listing, which may then be tried again without it.
func (e *Engine) retryList(slot int, why error) error {
	if err := e.drop(slot, why); err != nil {
		return err
	}
	return errRetryList
}

func (c *cursor) close() {
	for _, s := range c.sources {
		s.it.Close()
	}
}

// seek moves every source to its first key at or after key that it speaks for.
func (c *cursor) seek(key []byte) {
	if key == nil { // past the last possible key
		c.at = nil
		return
	}
	for _, s := range c.sources {
		s.it.SeekGE(key)
		c.skip(s)
	}
	c.pick()
}

func (c *cursor) next() {
	c.at.it.Next()
	c.skip(c.at)
	c.pick()
}

// skip passes over keys of groups that another drive leads.
func (c *cursor) skip(s *source) {
	for s.it.Valid() && c.view.Lead(c.groupOf(c.view, s.it.Key())) != s.slot {
		s.it.Next()
	}
	if err := s.it.Err(); err != nil && c.failed == nil {
		c.failed = c.e.retryList(s.slot, err)
	}
}

func (c *cursor) pick() {
	c.at = nil
	for _, s := range c.sources {
		if s.it.Valid() && (c.at == nil || bytes.Compare(s.it.Key(), c.at.it.Key()) < 0) {
			c.at = s
		}
	}
}

func (c *cursor) valid() bool { return c.failed == nil && c.at != nil }
func (c *cursor) key() []byte { return c.at.it.Key() }
func (c *cursor) err() error  { return c.failed }

func (c *cursor) value() ([]byte, error) {
	v, err := c.at.it.Value()
	if err != nil {
		return nil, c.e.retryList(c.at.slot, err)
	}
	return v, nil
}
