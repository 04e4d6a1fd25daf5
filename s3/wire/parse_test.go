package wire

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares text with a file in testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s differs (-want +got):\n%s", name, d)
	}
}

func readRequest(raw string) (*http.Request, error) {
	return http.ReadRequest(bufio.NewReader(strings.NewReader(raw)))
}

// codeOf returns S3's code of an error; "" for nil.
func codeOf(err error) Code {
	var e *Error
	switch {
	case err == nil:
		return ""
	case errors.As(err, &e):
		return e.Code
	}
	return "not a wire.Error"
}

// rawRequests are request lines, with a host after them if it isn't s3.example.com.
func rawRequests() []string {
	key1024 := strings.Repeat("k", 1024)
	return []string{
		"GET /", "GET", "HEAD /", "POST /", "PUT /", "GET //", "GET //key",
		"GET /bucket", "GET /bucket/", "GET /bucket?list-type=2", "GET /bucket?list-type=1", "GET /bucket?list-type",
		"GET /bucket?x-id=ListObjectsV2&list-type=2&prefix=a%2Fb", "HEAD /bucket", "PUT /bucket", "DELETE /bucket",
		"POST /bucket", "POST /bucket?delete", "POST /bucket?delete=", "OPTIONS /bucket", "PATCH /bucket", "FOO /bucket/key",
		"GET /bucket?location", "GET /bucket?uploads", "GET /bucket?versions", "GET /bucket?policy", "PUT /bucket?policy",
		"GET /bucket?analytics", "GET /bucket?analytics&id=1", "GET /bucket?inventory&id=1", "GET /bucket?unknown=1",
		"DELETE /bucket?lifecycle", "GET /bucket?prefix=acl&acl", "GET /bucket?&&acl", "GET /bucket?acl&policy",
		"GET /bucket/key", "HEAD /bucket/key", "PUT /bucket/key", "DELETE /bucket/key", "POST /bucket/key",
		"GET /bucket/key?acl", "GET /bucket/key?attributes", "GET /bucket/key?uploadId=1", "GET /bucket/key?partNumber=1",
		"PUT /bucket/key?partNumber=1&uploadId=2", "PUT /bucket/key?partNumber=1", "PUT /bucket/key?uploadId=2",
		"POST /bucket/key?uploads", "POST /bucket/key?uploadId=x", "DELETE /bucket/key?uploadId=x",
		"POST /bucket/key?restore",
		"POST /bucket/key?select&select-type=2", "GET /bucket/key?torrent", "PUT /bucket/key?renameObject",
		"GET /bucket/a+b", "GET /bucket/a%2Bb", "GET /bucket/a%20b", "GET /bucket/a%2520b", "GET /bucket/%2Fkey",
		"GET /bucket//key", "GET /bucket/key/", "GET /bucket///", "GET /bucket/../etc/passwd", "GET /bucket/./a",
		"GET /bucket/%2e%2e/a", "GET /bucket/a%00b", "GET /bucket/%F4%8F%BF%BF", "GET /bucket/%C3%A4", "GET /bucket/%ff",
		"GET /bucket/%C3", "GET /bucket/%3Fx=y", "GET /bucket/a;b,c=d", "GET /bucket/~%7E", "GET /bucket/%0D%0A",
		"GET /bucket/key?prefix=%ff", "GET /bucket/key?prefix=%zz", "GET /bucket?prefix=a+b%2B", "GET /bucket?a=1&a=2",
		"GET /bucket/" + key1024, "GET /bucket/" + key1024 + "k", "GET /bucket?" + strings.Repeat("a&", 65),
		"GET /bu", "GET /BUCKET", "GET /" + strings.Repeat("b", 63), "GET /" + strings.Repeat("b", 64), "GET /a..b",
		"GET /a.-b", "GET /a-.b", "GET /-ab", "GET /ab-", "GET /a_b", "GET /192.168.5.4", "GET /b%20b", "GET /b%00b",
		"PUT /xn--bucket", "GET /xn--bucket", "PUT /bucket-s3alias", "GET /../bucket", "GET /%2e%2e/x",
		"GET / bucket.s3.example.com", "GET /key bucket.s3.example.com:9000", "GET /bucket/key s3.example.com:9000",
		"GET /a/b?acl a.b.c.S3.EXAMPLE.com", "GET /key .s3.example.com", "GET /bucket/key other.example.com",
		"GET /bucket/key [::1]:9000", "GET /bucket/key 127.0.0.1", "PUT /?policy bucket.s3.example.com",
		"GET /x/y BUCKET.s3.example.com", "GET http://bucket.s3.example.com/key ignored.example.com",
	}
}

func TestParse(t *testing.T) {
	var out strings.Builder
	for _, line := range rawRequests() {
		fields := strings.Split(line, " ")
		method, target, host := fields[0], "*", "s3.example.com"
		if len(fields) > 1 {
			target = fields[1]
		}
		if len(fields) > 2 {
			host = fields[2]
		}
		fmt.Fprintf(&out, "%.80s\n\t", line)
		r, err := readRequest(method + " " + target + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n")
		if err != nil {
			fmt.Fprintf(&out, "refused by net/http\n")
			continue
		}
		req, err := Parse(r, []string{"s3.example.com"})
		style := ""
		if req.VirtualHost {
			style = " (virtual host)"
		}
		fmt.Fprintf(&out, "%v bucket=%.70q key=%.70q query=%.60q%s %s\n",
			req.Op, req.Bucket, req.Key, fmt.Sprint(req.Query.params), style, codeOf(err))
	}
	golden(t, "requests.golden", out.String())
}

func TestParseCopy(t *testing.T) {
	for target, want := range map[string]Op{
		"/bucket/key": CopyObject, "/bucket/key?partNumber=1&uploadId=2": UploadPartCopy, "/bucket": CreateBucket,
	} {
		r, err := readRequest("PUT " + target + " HTTP/1.1\r\nHost: h\r\nx-amz-copy-source: /a/b\r\n\r\n")
		if err != nil {
			t.Fatal(err)
		}
		if req, err := Parse(r, nil); err != nil || req.Op != want {
			t.Errorf("Parse(PUT %s with a source) = %v, %v; want %v", target, req.Op, err, want)
		}
	}
}

func TestOpNames(t *testing.T) {
	seen := map[string]bool{}
	for i := range OpCount {
		name := Op(i).String()
		if name == "" || seen[name] {
			t.Errorf("Op(%d).String() = %q; want a name of its own", i, name)
		}
		seen[name] = true
	}
	if got := Op(250).String(); got != "Unknown" {
		t.Errorf("Op(250).String() = %q; want Unknown", got)
	}
}

func TestCodes(t *testing.T) {
	for code, info := range codes {
		if info.status < 300 || info.status > 599 || info.message == "" {
			t.Errorf("code %s has %+v", code, info)
		}
	}
	if got := Code("Other").Status(); got != http.StatusInternalServerError {
		t.Errorf("Status of an unknown code = %d; want 500", got)
	}
}

func TestQuery(t *testing.T) {
	q, err := ParseQuery("a=1&b=&c&a=2&n=17&big=99999999999&neg=-1&text=x&max=5000")
	if err != nil {
		t.Fatal(err)
	}
	if q.Get("a") != "1" || !q.Has("b") || !q.Has("c") || q.Has("d") {
		t.Errorf("query = %+v", q)
	}
	for _, c := range []struct {
		name string
		want int
		code Code
	}{
		{"n", 17, ""}, {"max", 1000, ""}, {"d", 1000, ""}, {"b", 1000, ""},
		{"big", 0, InvalidArgument}, {"neg", 0, InvalidArgument}, {"text", 0, InvalidArgument},
	} {
		if got, err := q.Count(c.name, 1000, 1000); got != c.want || codeOf(err) != c.code {
			t.Errorf("Count(%s) = %d, %v; want %d, %s", c.name, got, err, c.want, c.code)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, line := range rawRequests() {
		f.Add(strings.TrimPrefix(line, "GET "), "bucket.s3.example.com")
	}
	f.Fuzz(func(t *testing.T, target, host string) {
		r, err := readRequest("GET " + target + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n")
		if err != nil {
			return
		}
		req, err := Parse(r, []string{"s3.example.com"})
		if err != nil {
			if codeOf(err) == "not a wire.Error" {
				t.Fatalf("Parse: %v", err)
			}
			return
		}
		if req.Op == Unknown || len(req.Key) > 1024 || req.Bucket == "" != (req.Op == ListBuckets) {
			t.Fatalf("Parse(%q, %q) = %v %q %q", target, host, req.Op, req.Bucket, req.Key)
		}
	})
}

func BenchmarkParse(b *testing.B) {
	r, err := readRequest("GET /bucket/some/key?x-id=GetObject HTTP/1.1\r\nHost: s3.example.com\r\n\r\n")
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Parse(r, []string{"s3.example.com"}); err != nil {
			b.Fatal(err)
		}
	}
}
