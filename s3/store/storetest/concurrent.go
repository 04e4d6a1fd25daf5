package storetest

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/millrace/millrace/s3/store"
)

// testRace lets several writers create one key at once, each on the condition that it isn't there.
func testRace(t *testing.T, open New) {
	s, ctx := withBucket(t, open), t.Context()
	const writers = 8
	for round, size := range []int{0, 100, 1 << 20, 100} {
		key := fmt.Sprint("race", round)
		var won atomic.Int64
		var wins, losses atomic.Int32
		var wg sync.WaitGroup
		for i := range writers {
			wg.Go(func() {
				_, err := s.Put(ctx, store.PutRequest{
					Bucket: bucketName, Key: key, SizeBytes: int64(size), Body: bytes.NewReader(content(uint64(i), size)),
					Precondition: func(o *store.Object) error {
						if o != nil {
							return errStop
						}
						return nil
					},
				})
				switch {
				case err == nil:
					wins.Add(1)
					won.Store(int64(i))
				case errors.Is(err, errStop):
					losses.Add(1)
				default:
					t.Errorf("Put: %v", err)
				}
			})
		}
		wg.Wait()
		if wins.Load() != 1 || losses.Load() != writers-1 {
			t.Fatalf("%d of %d conditional writers won, %d lost; want 1", wins.Load(), writers, losses.Load())
		}
		wantContent(t, s, key, content(uint64(won.Load()), size))
	}
}

// testMixed reads, writes, lists and deletes a few keys at once: whatever is read is one version,
// whole, and what a worker has written is what it then reads of its own key.
func testMixed(t *testing.T, open New) {
	s, ctx := withBucket(t, open), t.Context()
	const workers, rounds = 4, 12
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range rounds {
				seed := uint64(w*rounds + i)
				data := content(seed, []int{10, 20_000, 300_000}[i%3])
				shared, own := fmt.Sprint("shared", i%2), fmt.Sprint("own", w)
				if _, err := put(ctx, s, shared, data); err != nil {
					t.Errorf("Put: %v", err)
					return
				}
				info, got, err := read(ctx, s, shared)
				if err != nil && !errors.Is(err, store.ErrNoSuchKey) {
					t.Errorf("read: %v", err)
				}
				if err == nil && etag(got) != info.ETag {
					t.Errorf("read of a shared key: MD5 %s of %d bytes; want %s", etag(got), len(got), info.ETag)
				}
				if i%4 == 3 {
					if err := s.Delete(ctx, store.DeleteRequest{Bucket: bucketName, Key: shared}); err != nil {
						t.Errorf("Delete: %v", err)
					}
				}
				if _, err := put(ctx, s, own, data); err != nil {
					t.Errorf("Put: %v", err)
				}
				if _, got, err := read(ctx, s, own); err != nil || !bytes.Equal(got, data) {
					t.Errorf("read of an own key: %d bytes, %v; want the %d bytes just put", len(got), err, len(data))
				}
				page, err := s.List(ctx, store.ListRequest{Bucket: bucketName, Prefix: own, MaxEntries: 5})
				if err != nil || len(page.Objects) != 1 || page.Objects[0].ETag != etag(data) {
					t.Errorf("List of an own key = %+v, %v; want the version just put", page, err)
				}
			}
		})
	}
	wg.Wait()
}

// testUpdateObject is for a store.ObjectUpdater only.
func testUpdateObject(t *testing.T, open New) {
	s, ctx := withBucket(t, open), t.Context()
	u, ok := s.(store.ObjectUpdater)
	if !ok {
		t.Skip("the store is no ObjectUpdater")
	}
	set := func(name string) func(*store.Object) error {
		return func(o *store.Object) error {
			if o.Attributes == nil {
				o.Attributes = map[string][]byte{}
			}
			o.Attributes[name] = []byte(name)
			o.ETag, o.SizeBytes = "changed", 1 // must have no effect
			return nil
		}
	}
	wantErr(t, "UpdateObject without bucket", u.UpdateObject(ctx, "nowhere", "k", set("a")), store.ErrNoSuchBucket)
	wantErr(t, "UpdateObject without key", u.UpdateObject(ctx, bucketName, "k", set("a")), store.ErrNoSuchKey)
	for _, n := range []int{10, 200_000} {
		data := content(1, n)
		want := mustPut(t, s, "k", data)
		for _, name := range []string{"a", "b"} {
			if err := u.UpdateObject(ctx, bucketName, "k", set(name)); err != nil {
				t.Fatalf("UpdateObject: %v", err)
			}
		}
		err := u.UpdateObject(ctx, bucketName, "k", func(o *store.Object) error {
			clear(o.Attributes)
			return errStop
		})
		wantErr(t, "UpdateObject that fails", err, errStop)
		want.Attributes = map[string][]byte{"a": []byte("a"), "b": []byte("b")}
		wantSame(t, "the object after an update", wantContent(t, s, "k", data), want)
		err = u.UpdateObject(ctx, bucketName, "k", func(o *store.Object) error {
			o.Attributes = nil
			return nil
		})
		if err != nil {
			t.Fatalf("UpdateObject: %v", err)
		}
		want.Attributes = nil
		wantSame(t, "the object without attributes", wantContent(t, s, "k", data), want)
	}
}
