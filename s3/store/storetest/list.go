package storetest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/s3/store"
)

func testNastyKeys(t *testing.T, open New) {
	s := withBucket(t, open)
	keys := NastyKeys()
	for i, key := range keys {
		mustPut(t, s, key, []byte(fmt.Sprint("value ", i)))
	}
	for i, key := range keys {
		wantContent(t, s, key, []byte(fmt.Sprint("value ", i)))
	}
	sorted := slices.Clone(keys)
	slices.Sort(sorted)
	wantPages(t, s, store.ListRequest{}, sorted)
	for _, r := range []store.ListRequest{
		{Prefix: "a"}, {Prefix: "a", Delimiter: "/"}, {Delimiter: "/"}, {Delimiter: "\x00"}, {Prefix: "\x00"},
		{Delimiter: "\U0010ffff"}, {Prefix: "\U0010ffff"}, {Prefix: "/", Delimiter: "/"}, {Delimiter: "k"},
		{After: "a\x00"}, {After: "\U0010ffff"}, {After: strings.Repeat("k", store.MaxKeyBytes)},
		{Prefix: strings.Repeat("k", store.MaxKeyBytes)}, {Prefix: strings.Repeat("k/", 10), Delimiter: "/"},
	} {
		wantPages(t, s, r, sorted)
	}
	for _, key := range keys {
		if err := s.Delete(t.Context(), store.DeleteRequest{Bucket: bucketName, Key: key}); err != nil {
			t.Fatalf("Delete(%.40q): %v", key, err)
		}
		wantAbsent(t, s, key)
	}
	wantPages(t, s, store.ListRequest{}, nil)
}

// expectList says what a listing of the sorted keys gives, without limit: keys and common
// prefixes in one order; the latter are those in the set.
func expectList(keys []string, r store.ListRequest) (entries []string, common map[string]bool) {
	common = map[string]bool{}
	for _, key := range keys {
		rest, ok := strings.CutPrefix(key, r.Prefix)
		if !ok {
			continue
		}
		entry := key
		if i := strings.Index(rest, r.Delimiter); r.Delimiter != "" && i >= 0 {
			entry = r.Prefix + rest[:i+len(r.Delimiter)]
			if entry > r.After && !common[entry] {
				common[entry] = true
				entries = append(entries, entry)
			}
			continue
		}
		if entry > r.After {
			entries = append(entries, entry)
		}
	}
	return entries, common
}

// wantPages checks the listing that r asks for, page by page, with several sizes of page.
func wantPages(t *testing.T, s store.Store, r store.ListRequest, keys []string) {
	t.Helper()
	want, common := expectList(keys, r)
	for _, size := range []int{1, 2, 7, store.MaxListEntries} {
		if size == 1 && len(want) > 40 {
			continue
		}
		r := r
		r.Bucket, r.MaxEntries = bucketName, size
		rest := want
		for {
			n := min(size, len(rest))
			wantPage(t, s, r, rest[:n], common, n < len(rest))
			if rest = rest[n:]; len(rest) == 0 {
				break
			}
			r.After = want[len(want)-len(rest)-1]
		}
	}
}

func wantPage(t *testing.T, s store.Store, r store.ListRequest, want []string, common map[string]bool, more bool) {
	t.Helper()
	what := fmt.Sprintf("List(prefix %.20q, delimiter %q, after %.20q, max %d)",
		r.Prefix, r.Delimiter, r.After, r.MaxEntries)
	page, err := s.List(t.Context(), r)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	var keys, prefixes []string
	for _, entry := range want {
		if common[entry] {
			prefixes = append(prefixes, entry)
		} else {
			keys = append(keys, entry)
		}
	}
	var got []string
	for _, o := range page.Objects {
		got = append(got, o.Key)
		if o.Bucket != bucketName || o.Parts != nil || o.ETag == "" || o.Modified.IsZero() {
			t.Fatalf("%s gives %+v", what, o)
		}
	}
	wantSame(t, what+": keys", got, keys)
	wantSame(t, what+": common prefixes", page.Prefixes, prefixes)
	if page.Truncated != more {
		t.Fatalf("%s: Truncated = %v; want %v", what, page.Truncated, more)
	}
	if more && page.Next != want[len(want)-1] {
		t.Fatalf("%s: Next = %.40q; want %.40q", what, page.Next, want[len(want)-1])
	}
}

func testList(t *testing.T, open New) {
	s := withBucket(t, open)
	wantPages(t, s, store.ListRequest{}, nil)
	wantPages(t, s, store.ListRequest{Prefix: "p", Delimiter: "/"}, nil)
	keys := []string{
		"a", "b/", "b/1", "b/2", "b/c/1", "b/c/2", "b0", "c/1", "c//1", "c//2", "d", "e--f", "e--g", "e-h", "f/g/h/i",
		"photos/2006/January/sample.jpg", "photos/2006/February/sample2.jpg", "z",
	}
	for i, key := range keys {
		mustPut(t, s, key, content(uint64(i), i))
	}
	mustCreate(t, s, bucketName+"2") // its keys must not be seen
	if _, err := s.Put(t.Context(), store.PutRequest{
		Bucket: bucketName + "2", Key: "b/3", Body: strings.NewReader(""),
	}); err != nil {
		t.Fatalf("Put: %v", err)
	}
	slices.Sort(keys)
	for _, r := range []store.ListRequest{
		{}, {Prefix: "b"}, {Prefix: "b/"}, {Prefix: "b/c/"}, {Prefix: "nothing"}, {Prefix: "z"}, {Prefix: "zz"},
		{Delimiter: "/"}, {Delimiter: "--"}, {Delimiter: "-"}, {Delimiter: "nothing"},
		{Prefix: "b/", Delimiter: "/"}, {Prefix: "b", Delimiter: "/"}, {Prefix: "c/", Delimiter: "//"},
		{Prefix: "photos/2006/", Delimiter: "/"}, {Prefix: "e", Delimiter: "--"},
		{After: "a"}, {After: "b"}, {After: "zz"}, {After: "z"}, {After: "\x00"},
		{Delimiter: "/", After: "b/"},   // a common prefix
		{Delimiter: "/", After: "b/1"},  // inside a common prefix: it is not greater than After
		{Delimiter: "/", After: "b/zz"}, // still inside
		{Delimiter: "/", After: "b"},
		{Delimiter: "/", Prefix: "b/", After: "b/c/"}, {Delimiter: "/", Prefix: "b/", After: "b/c/1"},
		{Delimiter: "/", Prefix: "b/", After: "a"}, {Delimiter: "/", Prefix: "b/", After: "c"},
	} {
		wantPages(t, s, r, keys)
	}
	page, err := s.List(t.Context(), store.ListRequest{Bucket: bucketName, MaxEntries: 0})
	if err != nil || page.Truncated || len(page.Objects)+len(page.Prefixes) > 0 {
		t.Fatalf("List(max 0) = %+v, %v; want an empty page, not truncated", page, err)
	}
	// A listed object is what Stat says of it.
	page, err = s.List(t.Context(), store.ListRequest{Bucket: bucketName, MaxEntries: 3})
	if err != nil {
		t.Fatalf("List: %v", err)
	}
	for _, o := range page.Objects {
		stat, err := s.Stat(t.Context(), bucketName, o.Key)
		if err != nil {
			t.Fatalf("Stat: %v", err)
		}
		if o.SizeBytes != stat.SizeBytes || o.ETag != stat.ETag || !o.Modified.Equal(stat.Modified) {
			t.Fatalf("listed %+v; Stat gives %+v", o, stat)
		}
	}
}

// testListPages has more keys under one common prefix, and more common prefixes, than a page.
func testListPages(t *testing.T, open New) {
	s := withBucket(t, open)
	var keys []string
	for i := range 70 {
		keys = append(keys, fmt.Sprintf("dir%d/file", i%35+100), fmt.Sprintf("one/%03d", i))
	}
	keys = append(keys, "zzz")
	slices.Sort(keys)
	keys = slices.Compact(keys)
	for _, key := range keys {
		mustPut(t, s, key, nil)
	}
	for _, r := range []store.ListRequest{{}, {Delimiter: "/"}, {Prefix: "one/"}, {Prefix: "one/", Delimiter: "/"}} {
		wantPages(t, s, r, keys)
	}
}

// testListLive lists while keys come and go.
func testListLive(t *testing.T, open New) {
	s, ctx := withBucket(t, open), t.Context()
	live := map[string]bool{}
	for i := range 60 {
		key := fmt.Sprintf("%c/%d", 'a'+i%3, i*7%20)
		if live[key] {
			if err := s.Delete(ctx, store.DeleteRequest{Bucket: bucketName, Key: key}); err != nil {
				t.Fatalf("Delete: %v", err)
			}
			delete(live, key)
		} else {
			mustPut(t, s, key, []byte(key))
			live[key] = true
		}
		var keys []string
		for key := range live {
			keys = append(keys, key)
		}
		slices.Sort(keys)
		for _, r := range []store.ListRequest{
			{Bucket: bucketName, MaxEntries: store.MaxListEntries},
			{Bucket: bucketName, MaxEntries: store.MaxListEntries, Delimiter: "/"},
		} {
			want, common := expectList(keys, r)
			wantPage(t, s, r, want, common, false)
		}
	}
}
