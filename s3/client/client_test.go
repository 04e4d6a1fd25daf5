package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/s3/checksum"
	"github.com/millrace/millrace/s3/sigv4"
)

// against returns a client of a server that answers with h.
func against(t testing.TB, h http.HandlerFunc) *Client {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	c, err := New(Config{Endpoint: server.URL, Mode: ModeOff, Credential: sigv4.Credential{AccessKey: "ak", SecretKey: "sk"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func noise(n int) []byte {
	data := make([]byte, n)
	r := rand.NewChaCha8([32]byte{7})
	_, _ = r.Read(data)
	return data
}

func TestNew(t *testing.T) {
	tests := []struct {
		config Config
		ok     bool
	}{
		{Config{Endpoint: "http://h:9000"}, true},
		{Config{Endpoint: "https://h/", Mode: ModeOff}, true},
		{Config{Endpoint: "h:9000"}, false},
		{Config{Endpoint: "ftp://h"}, false},
		{Config{Endpoint: "http://h/path"}, false},
		{Config{Endpoint: "http://h", Mode: ModeRequire}, true},
		{Config{Endpoint: "http://h", Mode: "perhaps"}, false},
	}
	for _, test := range tests {
		if _, err := New(test.config); (err == nil) != test.ok {
			t.Errorf("New(%+v) = %v; want success %v", test.config, err, test.ok)
		}
	}
}

func TestEscapePath(t *testing.T) {
	tests := map[string]string{
		"/b/a b+c": "/b/a%20b%2Bc", "/b/../x//y": "/b/../x//y", "/b/é~-_.": "/b/%C3%A9~-_.", "/b/%41?#": "/b/%2541%3F%23",
	}
	for path, want := range tests {
		if got := escapePath(path); got != want {
			t.Errorf("escapePath(%q) = %q; want %q", path, got, want)
		}
	}
}

func TestKeyArrivesAsItIs(t *testing.T) {
	var got atomic.Value
	c := against(t, func(w http.ResponseWriter, r *http.Request) { got.Store(r.URL.Path) })
	for _, key := range []string{"a/../b", "a//b", "a b+c%41", "?x=1#y", "é\x01"} {
		if err := c.Delete(context.Background(), "b", key); err != nil {
			t.Fatal(err)
		}
		if got.Load() != "/b/"+key {
			t.Errorf("Delete(%q) asked for %q", key, got.Load())
		}
	}
}

func TestErrors(t *testing.T) {
	c := against(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Amz-Request-Id", "R1")
		w.WriteHeader(404)
		if r.Method != http.MethodHead {
			io.WriteString(w, `<?xml version="1.0"?><Error><Code>NoSuchKey</Code><Message>gone</Message></Error>`)
		}
	})
	_, err := c.Get(context.Background(), "b", "k", io.Discard, GetOptions{})
	var got *Error
	if !errors.As(err, &got) {
		t.Fatalf("Get() = %v; want an Error", err)
	}
	want := &Error{Op: "GetObject", StatusCode: 404, Code: "NoSuchKey", Message: "gone", Resource: "b/k", RequestID: "R1"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Get() error (-want +got):\n%s", diff)
	}
	if !NotFound(err) || Code(err) != "NoSuchKey" {
		t.Errorf("NotFound = %v, Code = %q; want true, NoSuchKey", NotFound(err), Code(err))
	}
	if _, err := c.Head(context.Background(), "b", "k"); Code(err) != "NotFound" {
		t.Errorf("Head() = %v; want NotFound", err)
	}
}

// TestRetries: an overloaded server and a broken connection are tried again, with the whole body.
func TestRetries(t *testing.T) {
	var tries atomic.Int32
	data := noise(300 << 10)
	c := against(t, func(w http.ResponseWriter, r *http.Request) {
		switch tries.Add(1) {
		case 1:
			w.WriteHeader(503)
			io.WriteString(w, `<Error><Code>SlowDown</Code></Error>`)
		case 2:
			panic(http.ErrAbortHandler)
		default:
			if body, err := io.ReadAll(r.Body); err != nil || !bytes.Equal(body, data) {
				t.Errorf("body of the third try: %d bytes, %v; want all of it", len(body), err)
			}
			w.Header().Set("Etag", `"e"`)
			w.Header().Set("X-Amz-Checksum-Crc64nvme", r.Header.Get("X-Amz-Checksum-Crc64nvme"))
		}
	})
	result, err := c.Put(context.Background(), "b", "k", data, PutOptions{})
	if err != nil || tries.Load() != 3 {
		t.Fatalf("Put() = %v after %d tries; want nil after 3", err, tries.Load())
	}
	want := PutResult{Transfer: Transfer{Transport: TransportHTTP}, ETag: "e", SizeBytes: int64(len(data)), ChecksumVerified: true}
	if diff := cmp.Diff(want, result); diff != "" {
		t.Errorf("Put() (-want +got):\n%s", diff)
	}
}

func TestNoRetryOfRefusals(t *testing.T) {
	var tries atomic.Int32
	c := against(t, func(w http.ResponseWriter, r *http.Request) {
		tries.Add(1)
		w.WriteHeader(403)
	})
	if err := c.HeadBucket(context.Background(), "b"); Code(err) != "AccessDenied" || tries.Load() != 1 {
		t.Errorf("HeadBucket() = %v after %d tries; want AccessDenied after 1", err, tries.Load())
	}
}

// object serves one object, with ranges; breakAt breaks each answer after so many bytes, if > 0.
func object(data []byte, sum string, breakAt int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Etag", `"v1"`)
		if r.Header.Get("Range") == "" && r.Header.Get("X-Amz-Checksum-Mode") != "" {
			w.Header().Set("X-Amz-Checksum-Crc64nvme", sum)
			w.Header().Set("X-Amz-Checksum-Type", "FULL_OBJECT")
		}
		from, to, status := 0, len(data)-1, 200
		if text, ok := strings.CutPrefix(r.Header.Get("Range"), "bytes="); ok {
			first, last, _ := strings.Cut(text, "-")
			from, _ = strconv.Atoi(first)
			if last != "" {
				to, _ = strconv.Atoi(last)
			}
			status = 206
			w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to, len(data)))
		}
		w.Header().Set("Content-Length", strconv.Itoa(to-from+1))
		w.WriteHeader(status)
		if r.Method == http.MethodHead {
			return
		}
		if part := data[from : to+1]; breakAt > 0 && len(part) > breakAt {
			w.Write(part[:breakAt])
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		} else {
			w.Write(part)
		}
	}
}

func TestGetResumes(t *testing.T) {
	data := noise(1 << 20)
	c := against(t, object(data, crcText(data), 300<<10))
	var got bytes.Buffer
	result, err := c.Get(context.Background(), "b", "k", &got, GetOptions{})
	if err != nil || !bytes.Equal(got.Bytes(), data) || !result.Verified {
		t.Errorf("Get() = %+v, %v with %d bytes; want all of them, verified", result, err, got.Len())
	}
	if result.Info.SizeBytes != int64(len(data)) || result.Info.ETag != "v1" {
		t.Errorf("Get() info = %+v", result.Info)
	}
	got.Reset()
	result, err = c.Get(context.Background(), "b", "k", &got, GetOptions{Offset: 1000, Length: 700 << 10})
	if err != nil || !bytes.Equal(got.Bytes(), data[1000:1000+700<<10]) || result.Verified {
		t.Errorf("Get(range) = %+v, %v with %d bytes; want the range", result, err, got.Len())
	}
}

func TestChecksumMismatch(t *testing.T) {
	data := noise(200 << 10)
	c := against(t, object(data, crcText([]byte("another")), 0))
	if _, err := c.Get(context.Background(), "b", "k", io.Discard, GetOptions{}); !errors.Is(err, ErrChecksum) {
		t.Errorf("Get() = %v; want ErrChecksum", err)
	}
	file := &memoryFile{}
	if _, err := c.Download(context.Background(), "b", "k", file, DownloadOptions{PartBytes: 50 << 10}); !errors.Is(err, ErrChecksum) {
		t.Errorf("Download() = %v; want ErrChecksum", err)
	}
}

// memoryFile is an io.WriterAt.
type memoryFile struct {
	mu   sync.Mutex
	data []byte
}

func (f *memoryFile) WriteAt(p []byte, off int64) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if grow := int(off) + len(p) - len(f.data); grow > 0 {
		f.data = append(f.data, make([]byte, grow)...)
	}
	return copy(f.data[off:], p), nil
}

func TestDownload(t *testing.T) {
	for _, size := range []int{0, 1, 100, 64 << 10, 1<<20 + 17} {
		data := noise(size)
		c := against(t, object(data, crcText(data), 0))
		file := &memoryFile{}
		var progress atomic.Int64
		result, err := c.Download(context.Background(), "b", "k", file,
			DownloadOptions{PartBytes: 64 << 10, Parallel: 3, Progress: func(n int64) { progress.Add(n) }})
		if err != nil || !bytes.Equal(file.data, data) || !result.Verified || progress.Load() != int64(size) {
			t.Errorf("Download of %d bytes = %+v, %v, %d bytes, progress %d", size, result, err, len(file.data), progress.Load())
		}
	}
}

func TestDownloadStopsAtTheFirstError(t *testing.T) {
	data := noise(1 << 20)
	serve := object(data, crcText(data), 0)
	c := against(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.Header.Get("Range"), "bytes=65536-") {
			w.WriteHeader(412)
			return
		}
		serve(w, r)
	})
	_, err := c.Download(context.Background(), "b", "k", &memoryFile{}, DownloadOptions{PartBytes: 64 << 10})
	if Code(err) != "PreconditionFailed" {
		t.Errorf("Download() = %v; want PreconditionFailed", err)
	}
}

func TestListMergesAndDecodes(t *testing.T) {
	pages := map[string]string{
		"": `<ListBucketResult><EncodingType>url</EncodingType><IsTruncated>true</IsTruncated>
			<NextContinuationToken>t1</NextContinuationToken>
			<Contents><Key>a%01+b</Key><Size>3</Size><ETag>"e"</ETag><LastModified>2026-01-02T03:04:05.000Z</LastModified></Contents>
			<Contents><Key>c</Key></Contents><CommonPrefixes><Prefix>b/</Prefix></CommonPrefixes></ListBucketResult>`,
		"t1": `<ListBucketResult><EncodingType>url</EncodingType><Contents><Key>%C3%A9</Key></Contents></ListBucketResult>`,
	}
	c := against(t, func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, pages[r.URL.Query().Get("continuation-token")])
	})
	var got []string
	for entry, err := range c.List(context.Background(), "b", ListOptions{Delimiter: "/"}) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, entry.Key)
	}
	if diff := cmp.Diff([]string{"a\x01 b", "b/", "c", "é"}, got); diff != "" {
		t.Errorf("List() (-want +got):\n%s", diff)
	}
}

func TestCompleteErrorInside200(t *testing.T) {
	c := against(t, func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, `<Error><Code>InternalError</Code><Message>late</Message></Error>`)
	})
	_, err := c.ListBuckets(context.Background())
	if Code(err) != "InternalError" {
		t.Errorf("an error in an answer of status 200 = %v; want InternalError", err)
	}
}

func TestPartBytes(t *testing.T) {
	tests := []struct {
		o    UploadOptions
		want int64
	}{
		{UploadOptions{}, DefaultPartBytes},
		{UploadOptions{PartBytes: 1}, minPartBytes},
		{UploadOptions{SizeBytes: 5 << 40}, 525 << 20},
		{UploadOptions{PartBytes: 8 << 20, SizeBytes: 100 << 20}, 8 << 20},
	}
	for _, test := range tests {
		if got := test.o.partBytes(); got != test.want || test.o.SizeBytes > got*maxParts {
			t.Errorf("%+v.partBytes() = %d; want %d", test.o, got, test.want)
		}
	}
}

func TestInfoIgnoresComposite(t *testing.T) {
	h := http.Header{}
	h.Set("X-Amz-Checksum-Crc32", checksum.Encode([]byte{1, 2, 3, 4})+"-2")
	if info := infoOf(h); info.Checksum != checksum.None {
		t.Errorf("checksum of a composite text: %v; want none", info.Checksum)
	}
}
