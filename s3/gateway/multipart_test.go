package gateway

import (
	"crypto/md5"
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/millrace/millrace/s3/checksum"
	"github.com/millrace/millrace/s3/store"
)

func md5Base64(text string) string {
	sum := md5.Sum([]byte(text))
	return base64.StdEncoding.EncodeToString(sum[:])
}

func sumOf(a checksum.Algorithm, text string) string {
	h := checksum.New(a)
	h.Write([]byte(text))
	return checksum.Encode(h.Sum(nil))
}

// part is an element of the body of CompleteMultipartUpload.
func part(number int, etag, more string) string {
	return fmt.Sprintf("<Part><PartNumber>%d</PartNumber><ETag>%s</ETag>%s</Part>", number, etag, more)
}

func completeBody(parts ...string) string {
	return "<CompleteMultipartUpload>" + strings.Join(parts, "") + "</CompleteMultipartUpload>"
}

const etagOfX = "9dd4e461268c8034f5c8564e155c67a6" // MD5 of "x"

// TestMultipartScript relies on memstore's IDs, which count from 1.
func TestMultipartScript(t *testing.T) {
	s := newSite(t, nil)
	s.must("PUT", "/bucket", "")
	const id, id2, id3 = "0000000000000001", "0000000000000002", "0000000000000003"
	s.run("multipart",
		"POST /nowhere/key?uploads", "POST /bucket/key?uploads\nContent-Type: text/x\nx-amz-meta-a: b\nx-amz-tagging: t=1",
		"PUT /bucket/key?partNumber=2&uploadId="+id+"\n\nx", "PUT /bucket/key?partNumber=1&uploadId="+id+"\n\nfirst",
		"PUT /bucket/key?partNumber=1&uploadId="+id+"\n\nx", "PUT /bucket/key?partNumber=0&uploadId="+id+"\n\nx",
		"PUT /bucket/key?partNumber=10001&uploadId="+id+"\n\nx", "PUT /bucket/key?partNumber=1&uploadId=none\n\nx",
		"PUT /bucket/key?partNumber=1\n\nx", "PUT /nowhere/key?partNumber=1&uploadId="+id+"\n\nx",
		"GET /bucket/key?uploadId="+id, "GET /bucket/key?uploadId="+id+"&max-parts=1", "GET /bucket/key?uploadId=none",
		"GET /bucket/key?uploadId="+id+"&part-number-marker=1", "GET /bucket/key?uploadId="+id+"&max-parts=x",
		"POST /bucket/key?uploads\nx-amz-checksum-algorithm: SHA256", "GET /bucket?uploads",
		"GET /bucket?uploads&max-uploads=1",
		"GET /bucket?uploads&key-marker=key&upload-id-marker="+id, "GET /bucket?uploads&prefix=k&delimiter=e&max-uploads=0",
		step("POST /bucket/key?uploadId="+id+"\n\n"+completeBody(part(2, etagOfX, ""), part(1, etagOfX, ""))),
		step("POST /bucket/key?uploadId="+id+"\n\n"+completeBody(part(1, etagOfX, ""), part(2, etagOfX, ""))),
		step("POST /bucket/key?uploadId="+id+"\n\n"+completeBody(part(1, "other", ""))),
		step("POST /bucket/key?uploadId="+id+"\n\n"+completeBody(part(3, etagOfX, ""))),
		step("POST /bucket/key?uploadId=none\n\n"+completeBody(part(1, etagOfX, ""))),
		"POST /bucket/key?uploadId="+id, "POST /bucket/key?uploadId="+id+"\n\n<CompleteMultipartUpload/>",
		step("POST /bucket/key?uploadId="+id+"\nx-amz-mp-object-size: 2\n\n"+completeBody(part(1, etagOfX, ""))),
		step("POST /bucket/key?uploadId="+id+"\nIf-Match: *\n\n"+completeBody(part(1, etagOfX, ""))),
		step("POST /bucket/key?uploadId="+id+"\nIf-None-Match: *\nx-amz-mp-object-size: 1\n\n"+
			completeBody(part(1, "&quot;"+etagOfX+"&quot;", ""))),
		step("POST /bucket/key?uploadId="+id+"\n\n"+completeBody(part(1, etagOfX, ""))), // again
		"GET /bucket/key\nx-amz-checksum-mode: ENABLED", "GET /bucket/key?partNumber=1", "GET /bucket/key?partNumber=2",
		"GET /bucket/key?tagging", "GET /bucket/key?attributes\nx-amz-object-attributes: ObjectParts,Checksum,ETag",
		"PUT /bucket/key?partNumber=1&uploadId="+id2+"\nx-amz-checksum-crc32: AAAAAA==\n\nx",
		"PUT /bucket/key?partNumber=1&uploadId="+id2+"\n\nx",
		"DELETE /bucket/key?uploadId="+id2, "DELETE /bucket/key?uploadId="+id2, "DELETE /nowhere/key?uploadId="+id2,
		"POST /bucket/key?uploads\nx-amz-checksum-algorithm: MD4", "POST /bucket/key?uploads\nx-amz-checksum-type: COMPOSITE",
		"POST /bucket/key?uploads\nx-amz-checksum-algorithm: CRC64NVME\nx-amz-checksum-type: COMPOSITE",
		"POST /bucket/key?uploads\nx-amz-checksum-algorithm: CRC32C\nx-amz-checksum-type: FULL_OBJECT",
		"PUT /bucket/key?partNumber=7&uploadId="+id3+"\nx-amz-copy-source: /bucket/key",
		"PUT /bucket/key?partNumber=8&uploadId="+id3+"\nx-amz-copy-source: /bucket/none",
		"PUT /bucket/key?partNumber=8&uploadId="+id3+"\nx-amz-copy-source: /bucket/key\nx-amz-copy-source-range: bytes=0-1",
		"PUT /bucket/key?partNumber=8&uploadId="+id3+"\nx-amz-copy-source: /bucket/key\nx-amz-copy-source-range: bytes=0",
		"GET /bucket/key?uploadId="+id3,
	)
}

// TestMultipartChecksums completes uploads of three parts with every algorithm and type.
func TestMultipartChecksums(t *testing.T) {
	s := newSite(t, nil)
	s.must("PUT", "/bucket", "")
	parts := []string{pattern(store.MinPartBytes), pattern(store.MinPartBytes + 1), "the end"}
	whole := strings.Join(parts, "")
	for _, a := range checksum.All() {
		for _, kind := range []checksum.Type{checksum.FullObject, checksum.Composite} {
			if !a.Allows(kind) {
				continue
			}
			name := a.String() + "-" + kind.String()
			target := "/bucket/" + name
			created := s.must("POST", target+"?uploads", "", "x-amz-checksum-algorithm: "+a.String(),
				"x-amz-checksum-type: "+kind.String())
			_, rest, _ := strings.Cut(created.body, "<UploadId>")
			id, _, _ := strings.Cut(rest, "<")
			var list []string
			var raw []checksum.Part
			for i, p := range parts {
				put := s.must("PUT", fmt.Sprintf("%s?partNumber=%d&uploadId=%s", target, i+1, id), p,
					a.Header()+": "+sumOf(a, p))
				value, err := a.Decode(put.header.Get(a.Header()))
				if err != nil {
					t.Fatalf("%s: part has the checksum %q", name, put.header.Get(a.Header()))
				}
				raw = append(raw, checksum.Part{Value: value, SizeBytes: int64(len(p))})
				list = append(list, part(i+1, put.header.Get("ETag"), "<Checksum"+a.String()+">"+sumOf(a, p)+
					"</Checksum"+a.String()+">"))
			}
			want := sumOf(a, whole)
			if kind == checksum.Composite {
				value, err := checksum.CompositeOf(a, raw)
				if err != nil {
					t.Fatal(err)
				}
				want = checksum.EncodeComposite(value, len(parts))
			}
			wrong := strings.Replace(list[0], ">"+sumOf(a, parts[0]), ">"+sumOf(a, parts[1]), 1)
			s.want(400, "InvalidPart", "POST", target+"?uploadId="+id, completeBody(append([]string{wrong}, list[1:]...)...))
			s.want(400, "BadDigest", "POST", target+"?uploadId="+id, completeBody(list...), a.Header()+": "+sumOf(a, "x"))
			done := s.must("POST", target+"?uploadId="+id, completeBody(list...), a.Header()+": "+want,
				"x-amz-checksum-type: "+kind.String())
			if !strings.Contains(done.body, ">"+want+"<") || !strings.Contains(done.body, kind.String()) {
				t.Errorf("%s: completed with %s; want %s", name, done.body, want)
			}
			got := s.must("GET", target, "", "x-amz-checksum-mode: ENABLED")
			if got.header.Get(a.Header()) != want || got.header.Get("x-amz-checksum-type") != kind.String() {
				t.Errorf("%s: GET has the headers %v; want %s", name, got.header, want)
			}
			equalBytes(t, name, got.body, whole)
			second := s.must("GET", target+"?partNumber=2", "", "x-amz-checksum-mode: ENABLED")
			equalBytes(t, name+", part 2", second.body, parts[1])
			if second.status != http.StatusPartialContent || second.header.Get("X-Amz-Mp-Parts-Count") != "3" ||
				second.header.Get(a.Header()) != sumOf(a, parts[1]) {
				t.Errorf("%s: GET of part 2 has the headers %v", name, second.header)
			}
		}
	}
}

func TestCopyScript(t *testing.T) {
	s := newSite(t, nil)
	s.must("PUT", "/bucket", "")
	s.must("PUT", "/other", "")
	s.must("PUT", "/bucket/src", "hello", "Content-Type: text/x", "x-amz-meta-a: b", "x-amz-tagging: t=1",
		"x-amz-checksum-crc32: "+sumOf(checksum.CRC32, "hello"))
	s.must("PUT", "/bucket/a%20b%3F+%25", "odd key")
	copyTo := func(target, source string, headers ...string) step {
		return step(strings.Join(append([]string{"PUT " + target, "x-amz-copy-source: " + source}, headers...), "\n"))
	}
	s.run("copy",
		copyTo("/other/dst", "/bucket/src"), "GET /other/dst\nx-amz-checksum-mode: ENABLED", "GET /other/dst?tagging",
		copyTo("/bucket/odd", "bucket/a%20b%3F+%25"), "GET /bucket/odd",
		copyTo("/bucket/new", "bucket/src", "x-amz-metadata-directive: REPLACE", "x-amz-meta-c: d",
			"x-amz-tagging-directive: REPLACE", "x-amz-tagging: n=2", "x-amz-checksum-algorithm: SHA1"),
		"GET /bucket/new\nx-amz-checksum-mode: ENABLED", "GET /bucket/new?tagging",
		copyTo("/bucket/src", "bucket/src"), copyTo("/bucket/src", "bucket/src", "x-amz-metadata-directive: REPLACE"),
		"GET /bucket/src", copyTo("/bucket/x", "bucket/none"), copyTo("/bucket/x", "nowhere/src"),
		copyTo("/nowhere/x", "bucket/src"), copyTo("/bucket/x", "bucket/src?versionId=null"),
		copyTo("/bucket/x", "bucket/src?versionId=other"), copyTo("/bucket/x", "bucket"), copyTo("/bucket/x", "%zz/x"),
		copyTo("/bucket/x", "bucket/src", "x-amz-metadata-directive: WHATEVER"),
		copyTo("/bucket/x", "bucket/src", "x-amz-copy-source-if-match: other"),
		copyTo("/bucket/x", "bucket/src", "x-amz-copy-source-if-none-match: other"),
		copyTo("/bucket/x", "bucket/src", "x-amz-copy-source-if-unmodified-since: Mon, 01 Jan 2001 00:00:00 GMT"),
		copyTo("/bucket/x", "bucket/src", "If-None-Match: *"),
		copyTo("/bucket/x", "bucket/src", "x-amz-source-expected-bucket-owner: other"),
		copyTo("/bucket/x", "bucket/src", "x-amz-checksum-algorithm: MD4"),
	)
	// A larger object goes through the pipe in pieces, and a part of it becomes a part.
	data := pattern(3<<20 + 17)
	s.must("PUT", "/bucket/large", data)
	s.must("PUT", "/other/large", "", "x-amz-copy-source: bucket/large")
	equalBytes(t, "copy", s.must("GET", "/other/large", "").body, data)
	s.must("POST", "/other/mp?uploads", "")
	copied := s.must("PUT", "/other/mp?partNumber=1&uploadId=0000000000000001", "", "x-amz-copy-source: bucket/large",
		"x-amz-copy-source-range: bytes=5-2000004")
	_, rest, _ := strings.Cut(copied.body, "&quot;")
	etag, _, _ := strings.Cut(rest, "&quot;")
	s.must("POST", "/other/mp?uploadId=0000000000000001", completeBody(part(1, etag, "")))
	equalBytes(t, "copied part", s.must("GET", "/other/mp", "").body, data[5:2000005])
}
