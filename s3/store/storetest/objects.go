package storetest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/millrace/millrace/s3/checksum"
	"github.com/millrace/millrace/s3/store"
)

// sizes are around the edges that stores have: blocks, inline limits, checksum blocks, stripes.
func sizes() []int {
	return []int{
		0, 1, 2, 511, 4095, 4096, 4097, 8192, 16383, 16384, 16385, 32768, 65535, 65536, 65537, 131072, 262143,
		262145, 1<<20 - 1, 1 << 20, 1<<20 + 1, 3<<20 + 12345, 6 << 20,
	}
}

func testRoundTrip(t *testing.T, open New) {
	s := withBucket(t, open)
	for i, n := range sizes() {
		key := fmt.Sprintf("size/%d", n)
		data := content(uint64(i), n)
		before := time.Now().Add(-2 * time.Second)
		o := mustPut(t, s, key, data)
		if o.ETag != etag(data) || o.SizeBytes != int64(n) || o.VersionID != store.NullVersion {
			t.Fatalf("Put of %d bytes = %+v; want ETag %s, version %q", n, o, etag(data), store.NullVersion)
		}
		if o.Modified.Before(before) || o.Modified.Nanosecond()%1e6 != 0 {
			t.Fatalf("Modified = %v; want now, in milliseconds", o.Modified)
		}
		wantSame(t, "Put's answer against Info", wantContent(t, s, key, data), o)
	}
	// A body that comes in small pieces is the same body.
	data := content(99, 70000)
	body := iotest.HalfReader(iotest.DataErrReader(bytes.NewReader(data)))
	_, err := s.Put(t.Context(), store.PutRequest{Bucket: bucketName, Key: "pieces", SizeBytes: 70000, Body: body})
	if err != nil {
		t.Fatalf("Put in pieces: %v", err)
	}
	wantContent(t, s, "pieces", data)
}

func testMetadata(t *testing.T, open New) {
	s, ctx := withBucket(t, open), t.Context()
	for _, n := range []int{10, 100_000} {
		data := content(7, n)
		key := fmt.Sprint("meta", n)
		r := store.PutRequest{
			Bucket: bucketName, Key: key, SizeBytes: int64(n), Body: bytes.NewReader(data),
			System:     map[string]string{"Content-Type": "text/plain", "Cache-Control": "", "Content-Encoding": "gzip"},
			User:       map[string]string{"a": "b", "": "empty name", "long": strings.Repeat("ä", 900)},
			Attributes: map[string][]byte{"tags": {0, 1, 2}, "empty": {}, "big": content(8, store.MaxSystemBytes)},
		}
		o, err := s.Put(ctx, r)
		if err != nil {
			t.Fatalf("Put: %v", err)
		}
		wantSame(t, "System", o.System, r.System)
		wantSame(t, "User", o.User, r.User)
		wantSame(t, "Attributes", o.Attributes, r.Attributes)
		// The value is the caller's: changing it changes nothing stored.
		o.System["Content-Type"], o.Attributes["tags"][0] = "changed", 9
		o = wantContent(t, s, key, data)
		wantSame(t, "System", o.System, r.System)
		wantSame(t, "Attributes", o.Attributes, r.Attributes)
		// An overwrite leaves nothing of the old metadata.
		mustPut(t, s, key, nil)
		o = wantContent(t, s, key, nil)
		if len(o.System)+len(o.User)+len(o.Attributes) != 0 {
			t.Fatalf("metadata left after an overwrite: %+v", o)
		}
	}
}

func testRanges(t *testing.T, open New) {
	s, ctx := withBucket(t, open), t.Context()
	for _, size := range []int64{0, 10, 5000, 1<<20 + 77, 3<<20 + 5} {
		data := content(uint64(size), int(size))
		mustPut(t, s, "r", data)
		r, err := s.Open(ctx, bucketName, "r")
		if err != nil {
			t.Fatalf("Open: %v", err)
		}
		edges := []int64{0, 1, 4096, 65535, 65536, 65537, 262144, 1 << 20, size / 2, size - 1, size}
		for _, off := range edges {
			for _, end := range edges {
				if off < 0 || end < off || end > size {
					continue
				}
				var buf bytes.Buffer
				if err := r.WriteRange(ctx, &buf, off, end-off); err != nil {
					t.Fatalf("WriteRange(%d, %d) of %d bytes: %v", off, end-off, size, err)
				}
				if !bytes.Equal(buf.Bytes(), data[off:end]) {
					t.Fatalf("WriteRange(%d, %d) of %d bytes gives other bytes", off, end-off, size)
				}
			}
		}
		for _, bad := range [][2]int64{{0, size + 1}, {size + 1, 0}, {size, 1}, {-1, 1}, {0, -1}, {1, 1<<63 - 1}} {
			err := r.WriteRange(ctx, io.Discard, bad[0], bad[1])
			wantErr(t, fmt.Sprintf("WriteRange(%d, %d) of %d bytes", bad[0], bad[1], size), err, store.ErrInvalidRange)
		}
		if size > 0 {
			wantErr(t, "WriteRange to a failing writer", r.WriteRange(ctx, failingWriter{}, 0, size), errStop)
		}
		if err := r.Close(); err != nil {
			t.Fatalf("Close: %v", err)
		}
	}
}

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, errStop }

func testOverwrite(t *testing.T, open New) {
	s, ctx := withBucket(t, open), t.Context()
	sizes := []int{100, 2 << 20, 0, 300_000, 100}
	var readers []store.Reader
	for i, n := range sizes {
		mustPut(t, s, "k", content(uint64(i), n))
		r, err := s.Open(ctx, bucketName, "k")
		if err != nil {
			t.Fatalf("Open: %v", err)
		}
		readers = append(readers, r)
	}
	if err := s.Delete(ctx, store.DeleteRequest{Bucket: bucketName, Key: "k"}); err != nil {
		t.Fatalf("Delete: %v", err)
	}
	mustPut(t, s, "other", content(50, 2<<20)) // may take the space that was freed too early
	for i, r := range readers {
		want := content(uint64(i), sizes[i])
		var buf bytes.Buffer
		if err := r.WriteRange(ctx, &buf, 0, int64(sizes[i])); err != nil {
			t.Fatalf("WriteRange of version %d, overwritten: %v", i, err)
		}
		if !bytes.Equal(buf.Bytes(), want) || r.Info().ETag != etag(want) {
			t.Fatalf("version %d gives other bytes after it was overwritten", i)
		}
		if err := r.Close(); err != nil {
			t.Fatalf("Close: %v", err)
		}
	}
	wantAbsent(t, s, "k")
}

func testDelete(t *testing.T, open New) {
	s, ctx := withBucket(t, open), t.Context()
	del := func(key string, p store.Precondition) error {
		return s.Delete(ctx, store.DeleteRequest{Bucket: bucketName, Key: key, Precondition: p})
	}
	if err := del("never", nil); err != nil {
		t.Fatalf("Delete of an absent key: %v", err)
	}
	for _, n := range []int{5, 1 << 20} {
		data := content(3, n)
		mustPut(t, s, "k", data)
		mustPut(t, s, "k2", data)
		wantErr(t, "Delete refused", del("k", func(o *store.Object) error {
			if o == nil || o.ETag != etag(data) {
				return errors.New("not the current version")
			}
			return errStop
		}), errStop)
		wantContent(t, s, "k", data)
		if err := del("k", func(*store.Object) error { return nil }); err != nil {
			t.Fatalf("Delete: %v", err)
		}
		wantAbsent(t, s, "k")
		wantContent(t, s, "k2", data)
	}
	wantErr(t, "Delete of an absent key, refused", del("k", func(o *store.Object) error {
		if o != nil {
			return errors.New("there is a version")
		}
		return errStop
	}), errStop)
}

func testBadBodies(t *testing.T, open New) {
	s, ctx := withBucket(t, open), t.Context()
	old := []byte("old")
	mustPut(t, s, "old", old)
	finish := func(store.Digests) (store.Seal, error) { return store.Seal{}, errStop }
	never := func(store.Digests) (store.Seal, error) { return store.Seal{}, errors.New("finish was called") }
	for _, n := range []int{0, 10, 20_000, 2 << 20} {
		data := content(1, n)
		bytesThen := func(err error) func() io.Reader {
			return func() io.Reader { return failingReader{bytes.NewReader(data), err} }
		}
		and := func(more int) func() io.Reader {
			return func() io.Reader { return bytes.NewReader(append(content(1, n), content(2, more)...)) }
		}
		for _, c := range []struct {
			name   string
			body   func() io.Reader
			size   int
			finish func(store.Digests) (store.Seal, error)
			want   error
		}{
			{"short", and(0), n + 1, never, store.ErrBodyTooShort},
			{"far too short", and(0), n + 300_000, never, store.ErrBodyTooShort},
			{"long", and(1), n, never, store.ErrBodyTooLong},
			{"far too long", and(300_000), n, never, store.ErrBodyTooLong},
			{"broken off", bytesThen(errStop), n + 1, never, errStop},
			{"broken at the end", bytesThen(errStop), n, never, errStop},
			{"unexpected EOF", bytesThen(io.ErrUnexpectedEOF), n + 1, never, io.ErrUnexpectedEOF},
			{"not finished", and(0), n, finish, errStop},
		} {
			for _, key := range []string{"new", "old"} {
				_, err := s.Put(ctx, store.PutRequest{
					Bucket: bucketName, Key: key, SizeBytes: int64(c.size), Body: c.body(), Finish: c.finish,
				})
				wantErr(t, fmt.Sprintf("Put of %d bytes, %s", n, c.name), err, c.want)
			}
			wantAbsent(t, s, "new")
			wantContent(t, s, "old", old)
		}
	}
}

func testPreconditions(t *testing.T, open New) {
	s, ctx := withBucket(t, open), t.Context()
	for _, n := range []int{10, 1 << 20} {
		data := content(1, n)
		var seen []*store.Object
		refuse := true
		try := func() error {
			_, err := s.Put(ctx, store.PutRequest{
				Bucket: bucketName, Key: "p", SizeBytes: int64(n), Body: bytes.NewReader(data),
				Precondition: func(o *store.Object) error {
					seen = append(seen, o)
					if refuse {
						return errStop
					}
					return nil
				},
			})
			return err
		}
		wantErr(t, "Put, refused", try(), errStop)
		wantAbsent(t, s, "p")
		refuse = false
		if err := try(); err != nil {
			t.Fatalf("Put, allowed: %v", err)
		}
		want := wantContent(t, s, "p", data)
		refuse = true
		wantErr(t, "Put over a version, refused", try(), errStop)
		if len(seen) != 3 || seen[0] != nil || seen[1] != nil || seen[2] == nil {
			t.Fatalf("the precondition saw %v; want nil, nil, the version", seen)
		}
		wantSame(t, "the version that the precondition saw", *seen[2], want)
		wantSame(t, "the version after a refusal", wantContent(t, s, "p", data), want)
		if err := s.Delete(ctx, store.DeleteRequest{Bucket: bucketName, Key: "p"}); err != nil {
			t.Fatalf("Delete: %v", err)
		}
	}
}

func testSeal(t *testing.T, open New) {
	s, ctx := withBucket(t, open), t.Context()
	for _, n := range []int{0, 9, 16384, 1<<20 + 1} {
		data := content(4, n)
		if n == 9 {
			data = []byte("123456789")
		}
		var got store.Digests
		calls := 0
		seal := store.Seal{ETag: "an-etag-2", Checksums: []store.Checksum{
			{Algorithm: checksum.SHA256, Value: content(5, 32)},
			{Algorithm: checksum.CRC32, Composite: true, Value: []byte{0, 1, 2, 3}},
		}}
		o, err := s.Put(ctx, store.PutRequest{
			Bucket: bucketName, Key: "s", SizeBytes: int64(n), Body: bytes.NewReader(data),
			Finish: func(d store.Digests) (store.Seal, error) {
				got = d
				calls++
				return seal, nil
			},
		})
		if err != nil {
			t.Fatalf("Put: %v", err)
		}
		if calls != 1 || got.SizeBytes != int64(n) || fmt.Sprintf("%x", got.MD5) != etag(data) {
			t.Fatalf("Finish was called %d times, with %+v; want once, %d, %s", calls, got, n, etag(data))
		}
		// The check value of CRC-64/NVME over "123456789".
		if n == 9 && got.CRC64NVME != 0xae8b14860a799888 {
			t.Fatalf("CRC64NVME = %016x; want ae8b14860a799888", got.CRC64NVME)
		}
		if n == 0 && got.CRC64NVME != 0 {
			t.Fatalf("CRC64NVME of nothing = %016x; want 0", got.CRC64NVME)
		}
		info := wantContent(t, s, "s", data)
		wantSame(t, "Put's answer", o, info)
		if info.ETag != seal.ETag {
			t.Fatalf("ETag = %q; want %q", info.ETag, seal.ETag)
		}
		wantSame(t, "checksums", info.Checksums, seal.Checksums)
		_, err = s.Put(ctx, store.PutRequest{
			Bucket: bucketName, Key: "s", SizeBytes: int64(n), Body: bytes.NewReader(data), NoMD5: true,
			Finish: func(d store.Digests) (store.Seal, error) {
				if d.CRC64NVME != got.CRC64NVME || d.SizeBytes != got.SizeBytes {
					t.Errorf("Finish without MD5 is called with %+v; want as %+v", d, got)
				}
				return seal, nil
			},
		})
		if err != nil {
			t.Fatalf("Put without MD5: %v", err)
		}
		wantContent(t, s, "s", data)
	}
}
