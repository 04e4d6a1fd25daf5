package storetest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/millrace/millrace/s3/store"
)

func testBuckets(t *testing.T, open New) {
	s, ctx := open(t), t.Context()
	if list, err := s.ListBuckets(ctx); err != nil || len(list) != 0 {
		t.Fatalf("ListBuckets of an empty store = %v, %v; want none", list, err)
	}
	names := []string{"b", "a.b", "aa", "a-b", "abc", strings.Repeat("z", 63)}
	for _, name := range names {
		made := mustCreate(t, s, name)
		if made.Name != name || made.Owner != "root" || made.Region != "us-east-1" || made.Created.IsZero() {
			t.Fatalf("CreateBucket(%q) = %+v", name, made)
		}
		got, err := s.Bucket(ctx, name)
		if err != nil {
			t.Fatalf("Bucket(%q): %v", name, err)
		}
		wantSame(t, "Bucket "+name, got, made)
	}
	got, err := s.CreateBucket(ctx, store.Bucket{Name: "aa", Owner: "somebody else"})
	wantErr(t, "CreateBucket of a taken name", err, store.ErrBucketExists)
	if got.Name != "aa" || got.Owner != "root" {
		t.Fatalf("CreateBucket of a taken name gives %+v; want the bucket that there is", got)
	}
	wantBuckets(t, s, "a-b", "a.b", "aa", "abc", "b", names[5])

	if err := s.DeleteBucket(ctx, "aa"); err != nil {
		t.Fatalf("DeleteBucket: %v", err)
	}
	wantErr(t, "DeleteBucket again", s.DeleteBucket(ctx, "aa"), store.ErrNoSuchBucket)
	_, err = s.Bucket(ctx, "aa")
	wantErr(t, "Bucket of a deleted one", err, store.ErrNoSuchBucket)
	wantBuckets(t, s, "a-b", "a.b", "abc", "b", names[5])
	mustCreate(t, s, "aa")
}

func wantBuckets(t *testing.T, s store.Store, want ...string) {
	t.Helper()
	list, err := s.ListBuckets(t.Context())
	if err != nil {
		t.Fatalf("ListBuckets: %v", err)
	}
	var got []string
	for _, b := range list {
		got = append(got, b.Name)
	}
	wantSame(t, "ListBuckets", got, want)
}

func testBucketAttributes(t *testing.T, open New) {
	s, ctx := withBucket(t, open), t.Context()
	set := func(name string, value []byte) error {
		return s.UpdateBucket(ctx, bucketName, func(b *store.Bucket) error {
			if b.Attributes == nil {
				b.Attributes = map[string][]byte{}
			}
			b.Attributes[name] = value
			return nil
		})
	}
	for i, value := range [][]byte{{}, {0}, content(1, 20<<10), []byte("x")} {
		if err := set(fmt.Sprint("policy", i%3), value); err != nil {
			t.Fatalf("UpdateBucket: %v", err)
		}
	}
	err := s.UpdateBucket(ctx, bucketName, func(b *store.Bucket) error {
		delete(b.Attributes, "policy1")
		return errStop
	})
	wantErr(t, "UpdateBucket with a change that fails", err, errStop)
	err = s.UpdateBucket(ctx, "nowhere", func(*store.Bucket) error { return nil })
	wantErr(t, "UpdateBucket of no bucket", err, store.ErrNoSuchBucket)

	got, err := s.Bucket(ctx, bucketName)
	if err != nil {
		t.Fatalf("Bucket: %v", err)
	}
	want := map[string][]byte{"policy0": []byte("x"), "policy1": {0}, "policy2": content(1, 20<<10)}
	wantSame(t, "attributes", got.Attributes, want)

	err = s.UpdateBucket(ctx, bucketName, func(b *store.Bucket) error {
		delete(b.Attributes, "policy1")
		return nil
	})
	if err != nil {
		t.Fatalf("UpdateBucket: %v", err)
	}
	if got, err = s.Bucket(ctx, bucketName); err != nil {
		t.Fatalf("Bucket: %v", err)
	}
	delete(want, "policy1")
	wantSame(t, "attributes after a removal", got.Attributes, want)
}

func testNoBucket(t *testing.T, open New) {
	s, ctx := withBucket(t, open), t.Context()
	const other = "nowhere"
	_, err := s.Put(ctx, store.PutRequest{Bucket: other, Key: "k", Body: strings.NewReader("")})
	wantErr(t, "Put", err, store.ErrNoSuchBucket)
	_, err = s.Open(ctx, other, "k")
	wantErr(t, "Open", err, store.ErrNoSuchBucket)
	_, err = s.Stat(ctx, other, "k")
	wantErr(t, "Stat", err, store.ErrNoSuchBucket)
	wantErr(t, "Delete", s.Delete(ctx, store.DeleteRequest{Bucket: other, Key: "k"}), store.ErrNoSuchBucket)
	_, err = s.List(ctx, store.ListRequest{Bucket: other, MaxEntries: 1})
	wantErr(t, "List", err, store.ErrNoSuchBucket)
	_, err = s.CreateUpload(ctx, store.Upload{Bucket: other, Key: "k"})
	wantErr(t, "CreateUpload", err, store.ErrNoSuchBucket)
	_, err = s.ListUploads(ctx, store.UploadsRequest{Bucket: other, MaxEntries: 1})
	wantErr(t, "ListUploads", err, store.ErrNoSuchBucket)

	mustPut(t, s, "k", []byte("x"))
	wantErr(t, "DeleteBucket with a key", s.DeleteBucket(ctx, bucketName), store.ErrBucketNotEmpty)
	if err := s.Delete(ctx, store.DeleteRequest{Bucket: bucketName, Key: "k"}); err != nil {
		t.Fatalf("Delete: %v", err)
	}
	u, err := s.CreateUpload(ctx, store.Upload{Bucket: bucketName, Key: "k"})
	if err != nil {
		t.Fatalf("CreateUpload: %v", err)
	}
	wantErr(t, "DeleteBucket with an upload", s.DeleteBucket(ctx, bucketName), store.ErrBucketNotEmpty)
	if err := s.AbortUpload(ctx, bucketName, "k", u.ID); err != nil {
		t.Fatalf("AbortUpload: %v", err)
	}
	if err := s.DeleteBucket(ctx, bucketName); err != nil {
		t.Fatalf("DeleteBucket of an empty bucket: %v", err)
	}
	// A bucket made again under the same name has nothing of the old one in it.
	mustCreate(t, s, bucketName)
	wantAbsent(t, s, "k")
}
