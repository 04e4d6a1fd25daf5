package storetest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"testing"

	"github.com/millrace/millrace/s3/checksum"
	"github.com/millrace/millrace/s3/store"
)

func mustUpload(t *testing.T, s store.Store, key string) store.Upload {
	t.Helper()
	u, err := s.CreateUpload(t.Context(), store.Upload{
		Bucket: bucketName, Key: key, Owner: "root", System: map[string]string{"Content-Type": "text/x"},
		User: map[string]string{"k": "v"}, Attributes: map[string][]byte{"kept": []byte("for later")},
	})
	if err != nil {
		t.Fatalf("CreateUpload(%.40q): %v", key, err)
	}
	return u
}

func mustPart(t *testing.T, s store.Store, u store.Upload, number int, data []byte) store.Part {
	t.Helper()
	p, err := s.PutPart(t.Context(), store.PartRequest{
		Bucket: u.Bucket, Key: u.Key, UploadID: u.ID, Number: number,
		SizeBytes: int64(len(data)), Body: bytes.NewReader(data),
	})
	if err != nil {
		t.Fatalf("PutPart(%d, %d bytes): %v", number, len(data), err)
	}
	if p.Number != number || p.SizeBytes != int64(len(data)) || p.ETag != etag(data) || p.Modified.IsZero() {
		t.Fatalf("PutPart(%d, %d bytes) = %+v", number, len(data), p)
	}
	return p
}

// complete completes an upload with an ETag that names it.
func complete(t *testing.T, s store.Store, u store.Upload, numbers ...int) (store.Object, error) {
	t.Helper()
	return s.CompleteUpload(t.Context(), store.CompleteRequest{
		Bucket: u.Bucket, Key: u.Key, UploadID: u.ID, Numbers: numbers,
		Finish: func(store.Upload, []store.Part) (store.Seal, error) {
			return store.Seal{ETag: sealETag(u, numbers)}, nil
		},
	})
}

func sealETag(u store.Upload, numbers []int) string {
	return fmt.Sprint(etag([]byte(u.ID)), "-", len(numbers))
}

func testMultipart(t *testing.T, open New) {
	s, ctx := withBucket(t, open), t.Context()
	for _, sizes := range [][]int{{0}, {10}, {1 << 20}, {70_000, 0, 5}, {1 << 20, 1<<20 + 1, 33}, {16384, 16385}} {
		key := fmt.Sprint("mp", sizes)
		u := mustUpload(t, s, key)
		if u.Initiated.IsZero() || !regexp.MustCompile(`^[A-Za-z0-9._~-]+$`).MatchString(u.ID) {
			t.Fatalf("CreateUpload = %+v; want a time and a URL-safe ID", u)
		}
		got, err := s.Upload(ctx, bucketName, key, u.ID)
		if err != nil {
			t.Fatalf("Upload: %v", err)
		}
		wantSame(t, "Upload", got, u)
		parts := map[int][]byte{}
		var numbers []int
		for i := range sizes {
			numbers = append(numbers, 1+i*17) // gaps between the numbers are fine
		}
		for i := len(sizes) - 1; i >= 0; i-- { // out of order
			parts[numbers[i]] = content(uint64(i+100), sizes[i])
			mustPart(t, s, u, numbers[i], content(9, sizes[i]/2)) // replaced by the next
			mustPart(t, s, u, numbers[i], parts[numbers[i]])
		}
		mustPart(t, s, u, store.MaxPartNumber, content(5, 100_000)) // not used
		wantAbsent(t, s, key)
		wantComplete(t, s, u, numbers, parts)
	}
}

// wantComplete completes u and checks all that there is to see of the object.
func wantComplete(t *testing.T, s store.Store, u store.Upload, numbers []int, parts map[int][]byte) {
	t.Helper()
	ctx := t.Context()
	var whole []byte
	var seen []store.Part
	seal := store.Seal{ETag: sealETag(u, numbers), Checksums: []store.Checksum{
		{Algorithm: checksum.CRC64NVME, Value: content(1, 8)},
	}}
	o, err := s.CompleteUpload(ctx, store.CompleteRequest{
		Bucket: u.Bucket, Key: u.Key, UploadID: u.ID, Numbers: numbers,
		Finish: func(up store.Upload, list []store.Part) (store.Seal, error) {
			wantSame(t, "the upload that Finish saw", up, u)
			seen = list
			return seal, nil
		},
	})
	if err != nil {
		t.Fatalf("CompleteUpload%v: %v", numbers, err)
	}
	if len(seen) != len(numbers) {
		t.Fatalf("Finish saw %d parts; want %d", len(seen), len(numbers))
	}
	for i, n := range numbers {
		if seen[i].Number != n || seen[i].SizeBytes != int64(len(parts[n])) || seen[i].ETag != etag(parts[n]) {
			t.Fatalf("Finish saw part %+v; want number %d of %d bytes", seen[i], n, len(parts[n]))
		}
		whole = append(whole, parts[n]...)
	}
	info := wantContent(t, s, u.Key, whole)
	wantSame(t, "CompleteUpload's answer", o, info)
	wantSame(t, "parts", info.Parts, seen)
	wantSame(t, "checksums", info.Checksums, seal.Checksums)
	wantSame(t, "System", info.System, u.System)
	wantSame(t, "User", info.User, u.User)
	wantSame(t, "Attributes", info.Attributes, u.Attributes)
	if info.ETag != seal.ETag || info.VersionID != store.NullVersion {
		t.Fatalf("completed object = %+v", info)
	}
	page, err := s.ListUploads(ctx, store.UploadsRequest{Bucket: bucketName, Prefix: u.Key, MaxEntries: 10})
	if err != nil || len(page.Uploads) != 0 {
		t.Fatalf("ListUploads after completion = %v, %v; want none", page.Uploads, err)
	}
	_, err = s.Upload(ctx, bucketName, u.Key, u.ID)
	wantErr(t, "Upload after completion", err, store.ErrNoSuchUpload)
}

func testMultipartErrors(t *testing.T, open New) {
	s, ctx := withBucket(t, open), t.Context()
	mustCreate(t, s, "another")
	u := mustUpload(t, s, "k")
	part := content(1, 100_000)
	mustPart(t, s, u, 2, part)
	for _, id := range [][3]string{
		{bucketName, "k", u.ID + "x"}, {bucketName, "k", ""}, {bucketName, "other", u.ID}, {"another", "k", u.ID},
		{bucketName, "k", "../" + u.ID}, {bucketName, "k", "\x00"}, {bucketName, "k", strings.Repeat("f", 2000)},
	} {
		b, k, id := id[0], id[1], id[2]
		_, err := s.Upload(ctx, b, k, id)
		wantErr(t, "Upload", err, store.ErrNoSuchUpload)
		_, err = s.PutPart(ctx, store.PartRequest{Bucket: b, Key: k, UploadID: id, Number: 1, Body: strings.NewReader("")})
		wantErr(t, "PutPart", err, store.ErrNoSuchUpload)
		_, _, err = s.ListParts(ctx, b, k, id, 0, 10)
		wantErr(t, "ListParts", err, store.ErrNoSuchUpload)
		_, err = complete(t, s, store.Upload{Bucket: b, Key: k, ID: id}, 2)
		wantErr(t, "CompleteUpload", err, store.ErrNoSuchUpload)
		wantErr(t, "AbortUpload", s.AbortUpload(ctx, b, k, id), store.ErrNoSuchUpload)
	}
	for _, numbers := range [][]int{{1}, {1, 2}, {2, 3}, {2, 2}, {2, 1}} {
		_, err := complete(t, s, u, numbers...)
		wantErr(t, fmt.Sprint("CompleteUpload", numbers), err, store.ErrInvalidPart)
	}
	testBadParts(t, s, u)
	_, err := s.CompleteUpload(ctx, store.CompleteRequest{
		Bucket: bucketName, Key: "k", UploadID: u.ID, Numbers: []int{2},
		Finish: func(store.Upload, []store.Part) (store.Seal, error) { return store.Seal{}, errStop },
	})
	wantErr(t, "CompleteUpload whose Finish fails", err, errStop)
	wantAbsent(t, s, "k")
	wantComplete(t, s, u, []int{2}, map[int][]byte{2: part}) // nothing of the above has harmed it

	u = mustUpload(t, s, "k")
	mustPart(t, s, u, 1, part)
	if err := s.AbortUpload(ctx, bucketName, "k", u.ID); err != nil {
		t.Fatalf("AbortUpload: %v", err)
	}
	wantErr(t, "AbortUpload again", s.AbortUpload(ctx, bucketName, "k", u.ID), store.ErrNoSuchUpload)
	_, err = complete(t, s, u, 1)
	wantErr(t, "CompleteUpload of an aborted one", err, store.ErrNoSuchUpload)
	wantContent(t, s, "k", part)
}

// testBadParts sends parts with bad bodies, in place of part 2 and as a new one.
func testBadParts(t *testing.T, s store.Store, u store.Upload) {
	t.Helper()
	data := content(2, 50_000)
	for _, number := range []int{1, 2} {
		for _, c := range []struct {
			body   io.Reader
			size   int64
			finish func(store.Digests) (store.Seal, error)
			want   error
		}{
			{bytes.NewReader(data), 50_001, nil, store.ErrBodyTooShort},
			{bytes.NewReader(data), 49_999, nil, store.ErrBodyTooLong},
			{failingReader{bytes.NewReader(data), errStop}, 60_000, nil, errStop},
			{bytes.NewReader(data), 50_000, func(store.Digests) (store.Seal, error) { return store.Seal{}, errStop }, errStop},
		} {
			_, err := s.PutPart(t.Context(), store.PartRequest{
				Bucket: u.Bucket, Key: u.Key, UploadID: u.ID, Number: number, SizeBytes: c.size, Body: c.body, Finish: c.finish,
			})
			wantErr(t, "PutPart with a bad body", err, c.want)
		}
	}
	parts, more, err := s.ListParts(t.Context(), u.Bucket, u.Key, u.ID, 0, 10)
	if err != nil || more || len(parts) != 1 || parts[0].Number != 2 || parts[0].SizeBytes != 100_000 {
		t.Fatalf("ListParts after bad parts = %+v, %v, %v; want part 2 alone", parts, more, err)
	}
}

// testMultipartTwice repeats a completion, as a client does that missed the answer.
func testMultipartTwice(t *testing.T, open New) {
	s := withBucket(t, open)
	u := mustUpload(t, s, "k")
	data := content(1, 30_000)
	mustPart(t, s, u, 1, data)
	first, err := complete(t, s, u, 1)
	if err != nil {
		t.Fatalf("CompleteUpload: %v", err)
	}
	again, err := complete(t, s, u, 1)
	if err != nil {
		t.Fatalf("CompleteUpload again: %v", err)
	}
	wantSame(t, "the second completion", again, first)
	_, err = s.PutPart(t.Context(), store.PartRequest{
		Bucket: bucketName, Key: "k", UploadID: u.ID, Number: 1, Body: strings.NewReader(""),
	})
	wantErr(t, "PutPart after completion", err, store.ErrNoSuchUpload)
	wantErr(t, "AbortUpload after completion", s.AbortUpload(t.Context(), bucketName, "k", u.ID), store.ErrNoSuchUpload)
	wantContent(t, s, "k", data)

	mustPut(t, s, "k", []byte("newer"))
	_, err = complete(t, s, u, 1)
	wantErr(t, "CompleteUpload again, after an overwrite", err, store.ErrNoSuchUpload)
	wantContent(t, s, "k", []byte("newer"))

	// Two uploads of one key: each has its own parts, and the later completion wins.
	a, b := mustUpload(t, s, "k"), mustUpload(t, s, "k")
	if a.ID >= b.ID {
		t.Fatalf("upload IDs %q, %q; want the later one to sort after", a.ID, b.ID)
	}
	mustPart(t, s, b, 1, []byte("of b"))
	mustPart(t, s, a, 1, []byte("of a"))
	if _, err := complete(t, s, b, 1); err != nil {
		t.Fatalf("CompleteUpload of b: %v", err)
	}
	wantContent(t, s, "k", []byte("of b"))
	if _, err := complete(t, s, a, 1); err != nil {
		t.Fatalf("CompleteUpload of a: %v", err)
	}
	wantContent(t, s, "k", []byte("of a"))
	_, err = complete(t, s, b, 1)
	wantErr(t, "CompleteUpload of b again", err, store.ErrNoSuchUpload)
}

func testMultipartRanges(t *testing.T, open New) {
	s, ctx := withBucket(t, open), t.Context()
	u := mustUpload(t, s, "k")
	var whole []byte
	var edges []int64
	for i, n := range []int{70_000, 1 << 20, 0, 3, 300_001} {
		data := content(uint64(i), n)
		mustPart(t, s, u, i+1, data)
		whole = append(whole, data...)
		end := int64(len(whole))
		edges = append(edges, end-1, end, min(end+1, 70_000+1<<20+3+300_001))
	}
	if _, err := complete(t, s, u, 1, 2, 3, 4, 5); err != nil {
		t.Fatalf("CompleteUpload: %v", err)
	}
	r, err := s.Open(ctx, bucketName, "k")
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	for _, off := range edges {
		for _, end := range edges {
			if end < off {
				continue
			}
			var buf bytes.Buffer
			if err := r.WriteRange(ctx, &buf, off, end-off); err != nil {
				t.Fatalf("WriteRange(%d, %d): %v", off, end-off, err)
			}
			if !bytes.Equal(buf.Bytes(), whole[off:end]) {
				t.Fatalf("WriteRange(%d, %d) gives other bytes", off, end-off)
			}
		}
	}
	if err := errors.Join(r.Close(), s.Delete(ctx, store.DeleteRequest{Bucket: bucketName, Key: "k"})); err != nil {
		t.Fatal(err)
	}
	wantAbsent(t, s, "k")
}

func testMultipartPrecondition(t *testing.T, open New) {
	s, ctx := withBucket(t, open), t.Context()
	u := mustUpload(t, s, "k")
	mustPart(t, s, u, 1, []byte("x"))
	try := func(p store.Precondition) error {
		_, err := s.CompleteUpload(ctx, store.CompleteRequest{
			Bucket: bucketName, Key: "k", UploadID: u.ID, Numbers: []int{1}, Precondition: p,
			Finish: func(store.Upload, []store.Part) (store.Seal, error) { return store.Seal{ETag: "e-1"}, nil },
		})
		return err
	}
	wantErr(t, "CompleteUpload, refused", try(func(o *store.Object) error {
		if o != nil {
			return errors.New("there is a version")
		}
		return errStop
	}), errStop)
	wantAbsent(t, s, "k")
	mustPut(t, s, "k", []byte("old"))
	wantErr(t, "CompleteUpload over a version, refused", try(func(o *store.Object) error {
		if o == nil || o.SizeBytes != 3 {
			return errors.New("not the current version")
		}
		return errStop
	}), errStop)
	wantContent(t, s, "k", []byte("old"))
	if err := try(func(*store.Object) error { return nil }); err != nil {
		t.Fatalf("CompleteUpload, allowed: %v", err)
	}
	wantContent(t, s, "k", []byte("x"))
}
