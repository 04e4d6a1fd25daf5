package storetest

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/millrace/millrace/s3/checksum"
	"github.com/millrace/millrace/s3/store"
)

func testListParts(t *testing.T, open New) {
	s, ctx := withBucket(t, open), t.Context()
	u := mustUpload(t, s, "k")
	wantParts := func(after, maxParts int, more bool, want ...int) {
		t.Helper()
		parts, gotMore, err := s.ListParts(ctx, bucketName, "k", u.ID, after, maxParts)
		if err != nil {
			t.Fatalf("ListParts(%d, %d): %v", after, maxParts, err)
		}
		var got []int
		for _, p := range parts {
			got = append(got, p.Number)
		}
		wantSame(t, fmt.Sprintf("ListParts(%d, %d)", after, maxParts), got, want)
		if gotMore != more {
			t.Fatalf("ListParts(%d, %d): more = %v; want %v", after, maxParts, gotMore, more)
		}
	}
	wantParts(0, 10, false)
	for _, n := range []int{10_000, 9, 300, 2, 10, 1} {
		mustPart(t, s, u, n, content(uint64(n), n))
	}
	wantParts(0, 1000, false, 1, 2, 9, 10, 300, 10_000)
	wantParts(0, 6, false, 1, 2, 9, 10, 300, 10_000)
	wantParts(0, 5, true, 1, 2, 9, 10, 300)
	wantParts(300, 5, false, 10_000)
	wantParts(3, 1, true, 9)
	wantParts(10_000, 5, false)
	wantParts(0, 0, false)

	sum := []store.Checksum{{Algorithm: checksum.CRC32C, Value: []byte{1, 2, 3, 4}}}
	made, err := s.PutPart(ctx, store.PartRequest{
		Bucket: bucketName, Key: "k", UploadID: u.ID, Number: 9, SizeBytes: 3, Body: bytes.NewReader([]byte("new")),
		Finish: func(store.Digests) (store.Seal, error) { return store.Seal{Checksums: sum}, nil },
	})
	if err != nil {
		t.Fatalf("PutPart: %v", err)
	}
	parts, _, err := s.ListParts(ctx, bucketName, "k", u.ID, 8, 1)
	if err != nil || len(parts) != 1 {
		t.Fatalf("ListParts = %v, %v; want one part", parts, err)
	}
	wantSame(t, "a replaced part", parts[0], made)
	wantSame(t, "its checksums", parts[0].Checksums, sum)
}

func testListUploads(t *testing.T, open New) {
	s := withBucket(t, open)
	var all []store.Upload // in the order of the listing
	for _, key := range []string{"a", "b/1", "b/1", "b/1", "b/2", "c", "c\x00", "c/x", "d"} {
		all = append(all, mustUpload(t, s, key))
	}
	for _, prefix := range []string{"", "b", "b/", "b/1", "c", "nothing"} {
		for _, delimiter := range []string{"", "/"} {
			for _, size := range []int{1, 2, 3, 100} {
				wantUploads(t, s, store.UploadsRequest{
					Bucket: bucketName, Prefix: prefix, Delimiter: delimiter, MaxEntries: size,
				}, all)
			}
		}
	}
	for _, u := range all {
		for _, id := range []string{"", u.ID} {
			for _, delimiter := range []string{"", "/"} {
				wantUploads(t, s, store.UploadsRequest{
					Bucket: bucketName, Delimiter: delimiter, KeyAfter: u.Key, IDAfter: id, MaxEntries: 100,
				}, all)
			}
		}
	}
	page, err := s.ListUploads(t.Context(), store.UploadsRequest{Bucket: bucketName})
	if err != nil || page.Truncated || len(page.Uploads) > 0 {
		t.Fatalf("ListUploads(max 0) = %+v, %v; want an empty page, not truncated", page, err)
	}
}

// uploadEntry is an upload, or a common prefix (id "").
type uploadEntry struct{ key, id string }

func expectUploads(all []store.Upload, r store.UploadsRequest) (want []uploadEntry) {
	seen := map[string]bool{}
	for _, u := range all {
		entries, common := expectList([]string{u.Key}, store.ListRequest{Prefix: r.Prefix, Delimiter: r.Delimiter})
		if len(entries) == 0 {
			continue
		}
		e := uploadEntry{entries[0], u.ID}
		if common[e.key] {
			e.id = ""
			if seen[e.key] {
				continue
			}
			seen[e.key] = true
		}
		sameKey := e.id != "" && r.IDAfter != "" && e.key == r.KeyAfter && e.id > r.IDAfter
		if e.key > r.KeyAfter || sameKey {
			want = append(want, e)
		}
	}
	return want
}

// wantUploads checks all pages of a listing of uploads.
func wantUploads(t *testing.T, s store.Store, r store.UploadsRequest, all []store.Upload) {
	t.Helper()
	want := expectUploads(all, r)
	for {
		what := fmt.Sprintf("ListUploads(%+v)", r)
		page, err := s.ListUploads(t.Context(), r)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		n := min(r.MaxEntries, len(want))
		var got, uploads, prefixes []uploadEntry
		for _, u := range page.Uploads {
			got = append(got, uploadEntry{u.Key, u.ID})
		}
		for _, e := range want[:n] {
			if e.id == "" {
				prefixes = append(prefixes, e)
			} else {
				uploads = append(uploads, e)
			}
		}
		if len(got) != len(uploads) || len(page.Prefixes) != len(prefixes) || page.Truncated != (n < len(want)) {
			t.Fatalf("%s = %v and %q, truncated %v; want %v", what, got, page.Prefixes, page.Truncated, want)
		}
		for i := range uploads {
			if got[i] != uploads[i] || page.Uploads[i].Owner != "root" || page.Uploads[i].Initiated.IsZero() {
				t.Fatalf("%s: upload %d = %+v; want %v", what, i, page.Uploads[i], uploads[i])
			}
		}
		for i := range prefixes {
			if page.Prefixes[i] != prefixes[i].key {
				t.Fatalf("%s: common prefix %q; want %q", what, page.Prefixes[i], prefixes[i].key)
			}
		}
		if want = want[n:]; len(want) == 0 {
			return
		}
		r.KeyAfter, r.IDAfter = page.NextKey, page.NextID
	}
}
