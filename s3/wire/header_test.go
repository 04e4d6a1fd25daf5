package wire

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/s3/checksum"
	"github.com/millrace/millrace/s3/store"
)

func TestParseRange(t *testing.T) {
	whole := func(n int64) Span { return Span{0, n} }
	for _, c := range []struct {
		header  string
		size    int64
		want    Span
		partial bool
		code    Code
	}{
		{"", 10, whole(10), false, ""},
		{"bytes=0-0", 10, Span{0, 1}, true, ""},
		{"bytes=0-9", 10, Span{0, 10}, true, ""},
		{"bytes=5-", 10, Span{5, 5}, true, ""},
		{"bytes=5-100", 10, Span{5, 5}, true, ""},
		{"bytes=-3", 10, Span{7, 3}, true, ""},
		{"bytes=-100", 10, Span{0, 10}, true, ""},
		{"Bytes= 1-2 ", 10, Span{1, 2}, true, ""},
		{"bytes=0-99999999999999999999999999", 10, Span{0, 10}, true, ""},
		{"bytes=10-", 10, Span{}, false, InvalidRange},
		{"bytes=10-20", 10, Span{}, false, InvalidRange},
		{"bytes=99999999999999999999999999-", 10, Span{}, false, InvalidRange},
		{"bytes=-0", 10, Span{}, false, InvalidRange},
		{"bytes=0-", 0, Span{}, false, InvalidRange},
		{"bytes=-5", 0, Span{}, false, InvalidRange},
		{"bytes=40-50", 0, Span{}, false, InvalidRange},
		{"bytes=5-2", 10, whole(10), false, ""},
		{"bytes=0-1,3-4", 10, whole(10), false, ""},
		{"bytes=-", 10, whole(10), false, ""},
		{"bytes=a-b", 10, whole(10), false, ""},
		{"bytes=1", 10, whole(10), false, ""},
		{"bytes=+1-2", 10, whole(10), false, ""},
		{"bytes=--1", 10, whole(10), false, ""},
		{"items=0-1", 10, whole(10), false, ""},
		{"bytes", 10, whole(10), false, ""},
	} {
		got, partial, err := ParseRange(c.header, c.size)
		if got != c.want || partial != c.partial || codeOf(err) != c.code {
			t.Errorf("ParseRange(%q, %d) = %v, %v, %v; want %v, %v, %q",
				c.header, c.size, got, partial, err, c.want, c.partial, c.code)
		}
	}
	for header, want := range map[string]Code{
		"bytes=0-4": "", "bytes=4-4": "", "bytes=0-5": InvalidRange, "0-2": InvalidArgument, "bytes=0": InvalidArgument,
		"bytes=hello-world": InvalidArgument, "bytes=0-bar": InvalidArgument, "bytes=1-": InvalidArgument,
		"bytes=-1": InvalidArgument, "bytes=0-2,3-5": InvalidArgument, "bytes=3-2": InvalidArgument, "": InvalidArgument,
	} {
		if _, err := ParseCopyRange(header, 5); codeOf(err) != want {
			t.Errorf("ParseCopyRange(%q, 5): %v; want %q", header, err, want)
		}
	}
}

func FuzzParseRange(f *testing.F) {
	f.Add("bytes=0-1", int64(10))
	f.Add("bytes=-5", int64(0))
	f.Fuzz(func(t *testing.T, header string, size int64) {
		if size < 0 {
			return
		}
		s, partial, err := ParseRange(header, size)
		outside := s.Offset < 0 || s.Length < 0 || s.Offset > size || s.Length > size-s.Offset
		if err == nil && (outside || partial && s.Length == 0) {
			t.Fatalf("ParseRange(%q, %d) = %v, %v", header, size, s, partial)
		}
	})
}

func header(pairs ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(pairs); i += 2 {
		h.Add(pairs[i], pairs[i+1])
	}
	return h
}

func TestConditions(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.UTC)
	date := func(d time.Duration) string { return at.Add(d).Format(http.TimeFormat) }
	o := &store.Object{ETag: "e", Modified: at, SizeBytes: 5}
	for _, c := range []struct {
		h     http.Header
		read  Code
		write Code // over o
		fresh Code // over nothing
	}{
		{header(), "", "", ""},
		{header("If-Match", `"e"`), "", "", NoSuchKey},
		{header("If-Match", `e`), "", "", NoSuchKey},
		{header("If-Match", `"x", "e"`), "", "", NoSuchKey},
		{header("If-Match", `"x"`, "If-Match", `W/"e"`), "", "", NoSuchKey},
		{header("If-Match", "*"), "", "", NoSuchKey},
		{header("If-Match", `"x"`), PreconditionFailed, PreconditionFailed, NoSuchKey},
		{header("If-None-Match", `"e"`), NotModified, PreconditionFailed, ""},
		{header("If-None-Match", "*"), NotModified, PreconditionFailed, ""},
		{header("If-None-Match", `"x"`), "", "", ""},
		{header("If-Modified-Since", date(0)), NotModified, "", ""},
		{header("If-Modified-Since", date(-time.Hour)), "", "", ""},
		{header("If-Modified-Since", "yesterday"), "", "", ""},
		{header("If-Unmodified-Since", date(0)), "", "", ""},
		{header("If-Unmodified-Since", date(-time.Hour)), PreconditionFailed, "", ""},
		{header("If-Match", `"e"`, "If-Unmodified-Since", date(-time.Hour)), "", "", NoSuchKey},
		{header("If-None-Match", `"x"`, "If-Modified-Since", date(0)), "", "", ""},
		{header("If-None-Match", `"e"`, "If-Modified-Since", date(-time.Hour)), NotModified, PreconditionFailed, ""},
	} {
		cond := ParseConditions(c.h)
		if got := codeOf(cond.Read(o)); got != c.read {
			t.Errorf("Read with %v = %q; want %q", c.h, got, c.read)
		}
		if got := codeOf(cond.Write(o)); got != c.write {
			t.Errorf("Write with %v = %q; want %q", c.h, got, c.write)
		}
		if got := codeOf(cond.Write(nil)); got != c.fresh {
			t.Errorf("Write of a new key with %v = %q; want %q", c.h, got, c.fresh)
		}
	}
}

func TestOtherConditions(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.UTC)
	date := func(d time.Duration) string { return at.Add(d).Format(http.TimeFormat) }
	o := &store.Object{ETag: "e", Modified: at, SizeBytes: 5}
	source := ParseSourceConditions(header("X-Amz-Copy-Source-If-None-Match", "e"))
	if got := codeOf(source.Source(o)); got != PreconditionFailed {
		t.Errorf("Source with If-None-Match = %q; want PreconditionFailed", got)
	}
	for _, c := range []struct {
		h    http.Header
		want Code
	}{
		{header(), ""}, {header("If-Match", "e"), ""}, {header("If-Match", "x"), PreconditionFailed},
		{header("X-Amz-If-Match-Size", "5"), ""}, {header("X-Amz-If-Match-Size", "6"), PreconditionFailed},
		{header("X-Amz-If-Match-Size", "x"), InvalidArgument}, {header("X-Amz-If-Match-Size", "-5"), InvalidArgument},
		{header("X-Amz-If-Match-Last-Modified-Time", date(0)), ""},
		{header("X-Amz-If-Match-Last-Modified-Time", at.Format(time.RFC3339)), ""},
		{header("X-Amz-If-Match-Last-Modified-Time", date(time.Second)), PreconditionFailed},
		{header("X-Amz-If-Match-Last-Modified-Time", "x"), InvalidArgument},
	} {
		cond, err := ParseDeleteConditions(c.h)
		if err == nil {
			err = cond.Delete(o)
		}
		if codeOf(err) != c.want || cond.Delete(nil) != nil {
			t.Errorf("Delete with %v: %v; want %q", c.h, err, c.want)
		}
	}
	for ifRange, want := range map[string]bool{
		"": true, `"e"`: true, `"x"`: false, date(0): true, date(time.Second): false,
	} {
		if got := RangeAllowed(ifRange, o); got != want {
			t.Errorf("RangeAllowed(%q) = %v; want %v", ifRange, got, want)
		}
	}
}

func TestMetadata(t *testing.T) {
	m, err := ParseMetadata(header("Content-Type", "text/plain", "Content-Encoding", "gzip, aws-chunked", "Expires", "0",
		"X-Amz-Meta-Foo", "1", "X-Amz-Meta-Foo", "2", "x-amz-meta-", "x", "X-Amz-Tagging", "b=2&a", "Other", "y"))
	want := Metadata{
		System: map[string]string{"Content-Type": "text/plain", "Content-Encoding": "gzip", "Expires": "0"},
		User:   map[string]string{"foo": "1,2"}, Tags: []Tag{{"a", ""}, {"b", "2"}},
	}
	if d := cmp.Diff(want, m); err != nil || d != "" {
		t.Errorf("ParseMetadata: %v, differs (-want +got):\n%s", err, d)
	}
	if got := string(FormatTags(m.Tags)); got != "a=&b=2" {
		t.Errorf("FormatTags = %q", got)
	}
	if m, err := ParseMetadata(header("Content-Encoding", "aws-chunked")); err != nil || m.System != nil {
		t.Errorf("ParseMetadata of aws-chunked alone = %v, %v; want nothing", m, err)
	}
	for _, c := range []struct {
		h    http.Header
		want Code
	}{
		{header("X-Amz-Meta-A", strings.Repeat("x", 2047)), ""},
		{header("X-Amz-Meta-A", strings.Repeat("x", 2048)), MetadataTooLarge},
		{header("Cache-Control", strings.Repeat("x", 9000)), MetadataTooLarge},
		{header("X-Amz-Tagging", "a=1&a=2"), InvalidTag},
		{header("X-Amz-Tagging", "%zz"), InvalidTag},
		{header("X-Amz-Tagging", strings.Repeat("k", 129)+"=1"), InvalidTag},
		{header("X-Amz-Tagging", "k="+strings.Repeat("v", 257)), InvalidTag},
		{header("X-Amz-Tagging", "a&b&c&d&e&f&g&h&i&j&k"), InvalidTag},
	} {
		if _, err := ParseMetadata(c.h); codeOf(err) != c.want {
			t.Errorf("ParseMetadata(%.60q): %v; want %q", c.h, err, c.want)
		}
	}
}

func TestParseCopySource(t *testing.T) {
	for _, c := range []struct {
		header string
		want   CopySource
		code   Code
	}{
		{"/bucket/key", CopySource{"bucket", "key", ""}, ""},
		{"bucket/a/b", CopySource{"bucket", "a/b", ""}, ""},
		{"bucket/a%20b+c", CopySource{"bucket", "a b+c", ""}, ""},
		{"bucket%2Fkey", CopySource{"bucket", "key", ""}, ""},
		{"bucket/%3FversionId", CopySource{"bucket", "?versionId", ""}, ""},
		{"bucket/key?versionId=null", CopySource{"bucket", "key", "null"}, ""},
		{"bucket//key", CopySource{"bucket", "/key", ""}, ""},
		{"bucket", CopySource{}, InvalidArgument}, {"bucket/", CopySource{}, InvalidArgument},
		{"", CopySource{}, InvalidArgument}, {"/", CopySource{}, InvalidArgument}, {"B_/k", CopySource{}, InvalidArgument},
		{"bucket/%zz", CopySource{}, InvalidArgument}, {"bucket/%ff", CopySource{}, InvalidArgument},
		{"bucket/" + strings.Repeat("k", 1025), CopySource{}, KeyTooLongError},
	} {
		got, err := ParseCopySource(c.header)
		if got != c.want || codeOf(err) != c.code {
			t.Errorf("ParseCopySource(%.40q) = %v, %v; want %v, %q", c.header, got, err, c.want, c.code)
		}
	}
}

func TestParseIntegrity(t *testing.T) {
	const md5Zero, crc, crc2 = "AAAAAAAAAAAAAAAAAAAAAA==", "X-Amz-Checksum-Crc32", "X-Amz-Checksum-Crc32c"
	for _, c := range []struct {
		h    http.Header
		want Integrity
		code Code
	}{
		{header(), Integrity{}, ""},
		{header("Content-Md5", md5Zero), Integrity{HasMD5: true}, ""},
		{header("Content-Md5", ""), Integrity{}, InvalidDigest},
		{header("Content-Md5", "YWJyYWNhZGFicmE="), Integrity{}, InvalidDigest},
		{header("Content-Md5", "!"), Integrity{}, InvalidDigest},
		{header(crc, "AAAAAQ=="), Integrity{Algorithm: checksum.CRC32, Value: []byte{0, 0, 0, 1}}, ""},
		{header(crc, "AAAAAQ==", "X-Amz-Sdk-Checksum-Algorithm", "CRC32"),
			Integrity{Algorithm: checksum.CRC32, Value: []byte{0, 0, 0, 1}}, ""},
		{header(crc, "bad"), Integrity{}, BadDigest},
		{header(crc, "AAAAAQ==", crc2, "AAAAAQ=="), Integrity{}, InvalidRequest},
		{header("X-Amz-Trailer", "x-amz-checksum-sha256"),
			Integrity{Algorithm: checksum.SHA256, Trailers: []string{"x-amz-checksum-sha256"}}, ""},
		{header("X-Amz-Trailer", "x-amz-checksum-sha256", crc, "AAAAAQ=="), Integrity{}, InvalidRequest},
		{header("X-Amz-Trailer", "x-other"), Integrity{}, InvalidRequest},
		{header("X-Amz-Sdk-Checksum-Algorithm", "CRC32"), Integrity{}, InvalidRequest},
		{header("X-Amz-Sdk-Checksum-Algorithm", "MD4", crc, "AAAAAQ=="), Integrity{}, InvalidRequest},
		{header("X-Amz-Sdk-Checksum-Algorithm", "SHA1", crc, "AAAAAQ=="), Integrity{}, InvalidRequest},
	} {
		got, err := ParseIntegrity(c.h)
		if codeOf(err) != c.code {
			t.Errorf("ParseIntegrity(%v): %v; want %q", c.h, err, c.code)
		}
		if d := cmp.Diff(c.want, got); err == nil && d != "" {
			t.Errorf("ParseIntegrity(%v) differs (-want +got):\n%s", c.h, d)
		}
	}
}
