// Package storetest is the conformance suite of s3/store: what every Store must do, as tests.
//
// It is not a test of one implementation: it sees a Store only through its interface, and it
// checks nothing that the interface does not promise. Invariant: a Store that passes Run and
// RunRandom can't be told from store/memstore by the S3 front. The sizes are bounded, so that a
// store which flushes to a drive on every write passes in seconds.
package storetest

import (
	"bytes"
	"context"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/millrace/millrace/s3/store"
)

// New makes an empty store for one test; it registers its own clean-up with t.
type New func(t *testing.T) store.Store

const bucketName = "conformance"

// errStop is an error of the test's own, which a store must hand through.
var errStop = errors.New("stop")

// Run runs the whole suite, except for RunRandom.
func Run(t *testing.T, open New) {
	for _, g := range []struct {
		name string
		test func(*testing.T, New)
	}{
		{"Buckets", testBuckets},
		{"BucketAttributes", testBucketAttributes},
		{"RoundTrip", testRoundTrip},
		{"Metadata", testMetadata},
		{"Ranges", testRanges},
		{"Overwrite", testOverwrite},
		{"Delete", testDelete},
		{"NoBucket", testNoBucket},
		{"BadBodies", testBadBodies},
		{"Preconditions", testPreconditions},
		{"Seal", testSeal},
		{"UpdateObject", testUpdateObject},
		{"NastyKeys", testNastyKeys},
		{"Race", testRace},
		{"Mixed", testMixed},
		{"List", testList},
		{"ListPages", testListPages},
		{"ListLive", testListLive},
		{"Multipart", testMultipart},
		{"MultipartErrors", testMultipartErrors},
		{"MultipartTwice", testMultipartTwice},
		{"MultipartRanges", testMultipartRanges},
		{"MultipartPrecondition", testMultipartPrecondition},
		{"ListParts", testListParts},
		{"ListUploads", testListUploads},
	} {
		t.Run(g.name, func(t *testing.T) { g.test(t, open) })
	}
}

// withBucket opens a store with one bucket in it.
func withBucket(t *testing.T, open New) store.Store {
	t.Helper()
	s := open(t)
	mustCreate(t, s, bucketName)
	return s
}

func mustCreate(t *testing.T, s store.Store, name string) store.Bucket {
	t.Helper()
	b, err := s.CreateBucket(t.Context(), store.Bucket{
		Name: name, Owner: "root", Region: "us-east-1", Created: time.Now().UTC().Truncate(time.Millisecond),
	})
	if err != nil {
		t.Fatalf("CreateBucket(%q): %v", name, err)
	}
	return b
}

// content returns n bytes that depend on seed only.
func content(seed uint64, n int) []byte {
	b := make([]byte, n)
	c := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16), byte(seed >> 24)})
	_, _ = c.Read(b) // never fails
	return b
}

func etag(b []byte) string {
	sum := md5.Sum(b)
	return hex.EncodeToString(sum[:])
}

func put(ctx context.Context, s store.Store, key string, data []byte) (store.Object, error) {
	return s.Put(ctx, store.PutRequest{
		Bucket: bucketName, Key: key, SizeBytes: int64(len(data)), Body: bytes.NewReader(data),
	})
}

func mustPut(t *testing.T, s store.Store, key string, data []byte) store.Object {
	t.Helper()
	o, err := put(t.Context(), s, key, data)
	if err != nil {
		t.Fatalf("Put(%.40q, %d bytes): %v", key, len(data), err)
	}
	return o
}

// read opens a key and reads it whole.
func read(ctx context.Context, s store.Store, key string) (store.Object, []byte, error) {
	r, err := s.Open(ctx, bucketName, key)
	if err != nil {
		return store.Object{}, nil, err
	}
	info := r.Info()
	var buf bytes.Buffer
	if err := errors.Join(r.WriteRange(ctx, &buf, 0, info.SizeBytes), r.Close()); err != nil {
		return info, nil, err
	}
	return info, buf.Bytes(), nil
}

// wantContent checks the bytes and the description of a key.
func wantContent(t *testing.T, s store.Store, key string, data []byte) store.Object {
	t.Helper()
	info, got, err := read(t.Context(), s, key)
	if err != nil {
		t.Fatalf("read %.40q: %v", key, err)
	}
	if !bytes.Equal(got, data) {
		t.Fatalf("read %.40q: %d bytes with MD5 %s; want %d bytes with MD5 %s",
			key, len(got), etag(got), len(data), etag(data))
	}
	if info.SizeBytes != int64(len(data)) || info.Key != key || info.Bucket != bucketName {
		t.Fatalf("Info of %.40q = %s/%.40q, %d bytes; want %s/%.40q, %d bytes",
			key, info.Bucket, info.Key, info.SizeBytes, bucketName, key, len(data))
	}
	stat, err := s.Stat(t.Context(), bucketName, key)
	if err != nil {
		t.Fatalf("Stat(%.40q): %v", key, err)
	}
	wantSame(t, "Stat against Info of "+key, stat, info)
	return info
}

func wantSame(t *testing.T, what string, got, want any) {
	t.Helper()
	if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
		t.Fatalf("%s differs (-want +got):\n%s", what, d)
	}
}

func wantErr(t *testing.T, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Fatalf("%s = %v; want %v", what, got, want)
	}
}

// wantAbsent checks that a key is in no listing and can't be opened.
func wantAbsent(t *testing.T, s store.Store, key string) {
	t.Helper()
	_, err := s.Stat(t.Context(), bucketName, key)
	wantErr(t, "Stat of an absent key", err, store.ErrNoSuchKey)
	_, err = s.Open(t.Context(), bucketName, key)
	wantErr(t, "Open of an absent key", err, store.ErrNoSuchKey)
	page, err := s.List(t.Context(), store.ListRequest{Bucket: bucketName, Prefix: key, MaxEntries: 1})
	if err != nil {
		t.Fatalf("List: %v", err)
	}
	if len(page.Objects) > 0 && page.Objects[0].Key == key {
		t.Fatalf("absent key %.40q is listed", key)
	}
}

// failingReader yields data, then err.
type failingReader struct {
	data io.Reader
	err  error
}

func (r failingReader) Read(p []byte) (int, error) {
	n, err := r.data.Read(p)
	if err == io.EOF {
		err = r.err
	}
	return n, err
}

// NastyKeys returns keys that a careless store or front would mangle: each is valid UTF-8, and
// together they hold every byte value that UTF-8 has.
func NastyKeys() []string {
	keys := []string{
		"/", "//", "///x", "a//b", "a/", "a", "a/b", "a/b/", "a\x00", "a\x00b", "\x00", "\x00\x00", "\x01", "a\xc3\xbf",
		".", "..", "../", "../../etc/passwd", "./a", "a/../b", "a/./b", "%2f", "%", "%zz", "a+b", "a b", " ", "  a", "a ",
		"?x=y", "#f", "&amp;", "<a>", "\"", "'", "\\", "\\..\\", "\r\n", "\t", "\x7f", "\u0080", "\u0085", "\u2028",
		"\ufffd", "\ufffe", "\uffff", "\ud7ff", "\ue000", "\U00010000", "\U0010ffff", "\U0010ffff\U0010ffff",
		"\u00e9", "e\u0301", "A", "a\u00df", "SS", "con", "nul.txt", ".meta", "o|", "|", "~", "_", "-", "*", "{}", "[]",
		strings.Repeat("k", store.MaxKeyBytes), strings.Repeat("k", store.MaxKeyBytes-1),
		strings.Repeat("k/", store.MaxKeyBytes/2), strings.Repeat("\U0010ffff", store.MaxKeyBytes/4),
		strings.Repeat("\x00", store.MaxKeyBytes), strings.Repeat("d", 300) + "/" + strings.Repeat("f", 300),
	}
	var ascii, two strings.Builder // bytes 00–7f; lead bytes c2–df and continuation bytes 80–bf
	for r := range rune(0x80) {
		ascii.WriteRune(r)
	}
	for r := rune(0x80); r < 0x800; r += 0x41 {
		two.WriteRune(r)
	}
	for r := rune(0x800); r < 0xd000; r += 0x1000 { // lead bytes e0–ef
		keys = append(keys, string(r))
	}
	for r := rune(0x10000); r < 0x110000; r += 0x40000 { // lead bytes f0–f4
		keys = append(keys, string(r))
	}
	slices.Sort(keys)
	return append(slices.Compact(keys), ascii.String(), two.String())
}
