package client_test

import (
	"bufio"
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/s3/client"
	"github.com/millrace/millrace/verbs"
	"github.com/millrace/millrace/verbs/iwarp"
)

// The programs of the field that speak S3 over RDMA are played here down to the bytes that they put on the connection:
// names and order of headers, what is signed, and by what they judge the answer. Nothing of the client package takes
// part; the signature is made from its specification.

// sent is one header line, in the spelling and at the place that the program gives it. "$token", "$date", "$host" and
// "$auth" stand for what changes.
type sent struct {
	name, value string
	unsigned    bool
}

// exchange is what one program sends for one operation, and its judgement of the answer.
type exchange struct {
	program string
	method  string
	target  string
	headers []sent
	// accept tells whether the program takes the answer as a success by RDMA of n bytes.
	accept func(a rawAnswer, n int) bool
}

type rawAnswer struct {
	proto  string
	status int
	header textproto.MIMEHeader
	body   string
}

// minioPut is a PUT of the C++ SDK of MinIO, over cpp-httplib: headers in the order of their names, no
// keep-alive. It takes any 200 with an ETag for a success; a reply of 501, or none, sends it to HTTP.
func minioPut(target string) exchange {
	return exchange{"minio-cpp", "PUT", target, []sent{
		{"Accept", "*/*", true},
		{"Authorization", "$auth", true},
		{"Connection", "close", true},
		{"Content-Length", "0", false},
		{"Content-Type", "application/octet-stream", false},
		{"Host", "$host", false},
		{"User-Agent", "cpp-httplib/0.18.1", true},
		{"x-amz-content-sha256", "UNSIGNED-PAYLOAD", false},
		{"x-amz-date", "$date", false},
		{"x-amz-rdma-token", "$token", false},
	}, func(a rawAnswer, _ int) bool { return a.status == 200 && a.header.Get("ETag") != "" }}
}

// minioGet takes a reply of 200 or 206, whatever the status.
func minioGet(target string) exchange {
	return exchange{"minio-cpp", "GET", target, []sent{
		{"Accept", "*/*", true},
		{"Authorization", "$auth", true},
		{"Connection", "close", true},
		{"Host", "$host", false},
		{"User-Agent", "cpp-httplib/0.18.1", true},
		{"x-amz-content-sha256", "UNSIGNED-PAYLOAD", false},
		{"x-amz-date", "$date", false},
		{"x-amz-rdma-token", "$token", false},
	}, func(a rawAnswer, _ int) bool {
		reply := a.header.Get("x-amz-rdma-reply")
		return reply == "200" || reply == "206"
	}}
}

// nixlPut is a PUT of NIXL's generic engine: names in lower case, everything signed, a checksum asked for. Since it
// was released it wants the reply beside status and ETag.
func nixlPut(target string) exchange {
	return exchange{"nixl", "PUT", target, []sent{
		{"host", "$host", false},
		{"authorization", "$auth", true},
		{"content-length", "0", false},
		{"content-type", "application/octet-stream", false},
		{"x-amz-checksum-algorithm", "CRC64NVME", false},
		{"x-amz-content-sha256", "UNSIGNED-PAYLOAD", false},
		{"x-amz-date", "$date", false},
		{"x-amz-rdma-token", "$token", false},
	}, func(a rawAnswer, _ int) bool {
		return a.status == 200 && strings.Trim(a.header.Get("etag"), `"`) != "" && a.header.Get("x-amz-rdma-reply") == "200"
	}}
}

// nixlGet always names a range, and wants status, reply and count to agree.
func nixlGet(target string, off, n int) exchange {
	return exchange{"nixl", "GET", target, []sent{
		{"host", "$host", false},
		{"authorization", "$auth", true},
		{"range", fmt.Sprintf("bytes=%d-%d", off, off+n-1), false},
		{"x-amz-content-sha256", "UNSIGNED-PAYLOAD", false},
		{"x-amz-date", "$date", false},
		{"x-amz-rdma-token", "$token", false},
	}, func(a rawAnswer, n int) bool {
		reply, moved := a.header.Get("x-amz-rdma-reply"), a.header.Get("x-amz-rdma-bytes-transferred")
		count, err := strconv.ParseInt(moved, 10, 64)
		return (a.status == 200 && reply == "200" || a.status == 206 && reply == "206") && err == nil && count <= int64(n)
	}}
}

// dell is the engine of NIXL for ObjectScale, over the AWS SDK: another header, and the status says it all.
func dell(method, target, span string) exchange {
	lines := []sent{
		{"host", "$host", false},
		{"accept", "*/*", true},
		{"amz-sdk-invocation-id", "3C6C1A1E-53F5-4C1E-9D0E-7A3C5F4B1D11", false},
		{"amz-sdk-request", "attempt=1", false},
		{"authorization", "$auth", true},
	}
	if method == "PUT" {
		lines = append(lines, sent{"content-length", "0", false}, sent{"content-type", "binary/octet-stream", false})
	} else {
		lines = append(lines, sent{"range", span, false})
	}
	lines = append(lines, sent{"x-amz-content-sha256", hex.EncodeToString(sum(nil)), false},
		sent{"x-amz-date", "$date", false}, sent{"x-rdma-info", "$token", false})
	return exchange{"nixl, dell", method, target, lines, func(a rawAnswer, _ int) bool { return a.status/100 == 2 }}
}

// noobaa names itself, and counts what was moved in both directions.
func noobaa(method, target string) exchange {
	lines := []sent{{"Host", "$host", false}, {"Authorization", "$auth", true}}
	if method == "PUT" {
		lines = append(lines, sent{"Content-Length", "0", false})
	}
	lines = append(lines, sent{"x-amz-content-sha256", "UNSIGNED-PAYLOAD", false}, sent{"x-amz-date", "$date", false},
		sent{"x-amz-rdma-agent", "cuobj", false}, sent{"x-amz-rdma-token", "$token", false})
	return exchange{"noobaa", method, target, lines, func(a rawAnswer, n int) bool {
		reply, err := strconv.Atoi(a.header.Get("x-amz-rdma-reply"))
		moved, err2 := strconv.Atoi(a.header.Get("x-amz-rdma-bytes-transferred"))
		return err == nil && reply/100 == 2 && err2 == nil && moved == n
	}}
}

func sum(data []byte) []byte {
	s := sha256.Sum256(data)
	return s[:]
}

func mac(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return h.Sum(nil)
}

// compose returns the bytes of the request. Signature V4 is done as AWS describes it, for the query and the few headers
// that are here.
func (e *exchange) compose(host, token string, now time.Time) string {
	date := now.UTC().Format("20060102T150405Z")
	fill := strings.NewReplacer("$host", host, "$token", token, "$date", date)
	path, query, _ := strings.Cut(e.target, "?")
	var names, canonical []string
	payload := ""
	for _, h := range e.headers {
		name := strings.ToLower(h.name)
		if name == "x-amz-content-sha256" {
			payload = h.value
		}
		if !h.unsigned {
			names = append(names, name)
			canonical = append(canonical, name+":"+fill.Replace(h.value)+"\n")
		}
	}
	slices.Sort(names)
	slices.Sort(canonical)
	signed := strings.Join(names, ";")
	request := strings.Join([]string{e.method, path, query, strings.Join(canonical, ""), signed, payload}, "\n")
	scope := date[:8] + "/us-east-1/s3/aws4_request"
	toSign := "AWS4-HMAC-SHA256\n" + date + "\n" + scope + "\n" + hex.EncodeToString(sum([]byte(request)))
	key := []byte("AWS4secret")
	for _, part := range []string{date[:8], "us-east-1", "s3", "aws4_request"} {
		key = mac(key, part)
	}
	auth := "AWS4-HMAC-SHA256 Credential=ak/" + scope + ", SignedHeaders=" + signed + ", Signature=" +
		hex.EncodeToString(mac(key, toSign))
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\n", e.method, e.target)
	for _, h := range e.headers {
		fmt.Fprintf(&b, "%s: %s\r\n", h.name, strings.ReplaceAll(fill.Replace(h.value), "$auth", auth))
	}
	b.WriteString("\r\n")
	return b.String()
}

// run sends the bytes over a connection of its own and reads the answer.
func (e *exchange) run(t *testing.T, host, token string) rawAnswer {
	t.Helper()
	conn, err := net.Dial("tcp", host)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second)) // as long as they wait
	if _, err := io.WriteString(conn, e.compose(host, token, time.Now())); err != nil {
		t.Fatal(err)
	}
	in := textproto.NewReader(bufio.NewReader(conn))
	line, err := in.ReadLine()
	if err != nil {
		t.Fatalf("%s: %v", e.program, err)
	}
	var a rawAnswer
	fields := strings.SplitN(line, " ", 3)
	a.proto = fields[0]
	if a.status, err = strconv.Atoi(fields[1]); err != nil {
		t.Fatalf("%s: %q", e.program, line)
	}
	if a.header, err = in.ReadMIMEHeader(); err != nil {
		t.Fatal(err)
	}
	length, _ := strconv.ParseInt(a.header.Get("Content-Length"), 10, 64)
	body, _ := io.ReadAll(io.LimitReader(in.R, length))
	a.body = string(body)
	return a
}

// windows is memory of a device, with tokens for it that are good for one test.
type windows struct {
	region   verbs.Region
	endpoint verbs.Endpoint
	bindings []verbs.Binding
}

func newWindows(t *testing.T, n int) *windows {
	t.Helper()
	device := iwarp.Open(iwarp.Config{})
	t.Cleanup(func() { _ = device.Close() })
	region, err := device.Register(make([]byte, n))
	if err != nil {
		t.Fatal(err)
	}
	l, err := device.Listen(netip.MustParseAddrPort("127.0.0.1:0"), nil)
	if err != nil {
		t.Fatal(err)
	}
	return &windows{region: region, endpoint: l.Endpoint()}
}

func (w *windows) token(t *testing.T, n int) string {
	t.Helper()
	b, err := w.region.Bind(0, int64(n), verbs.RemoteRead|verbs.RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	w.bindings = append(w.bindings, b)
	token, err := b.Window(w.endpoint).Token()
	if err != nil {
		t.Fatal(err)
	}
	return token.String()
}

// close ends all windows: only then may the memory be looked at.
func (w *windows) close() {
	for _, b := range w.bindings {
		_ = b.Close()
	}
	w.bindings = nil
}

func TestPublishedExchanges(t *testing.T) {
	r := newRig(t, client.Config{Mode: client.ModeOff})
	host := strings.TrimPrefix(r.server.URL, "http://")
	const size = 200_000
	w, data := newWindows(t, size), random(size)
	mem := w.region.Bytes()
	puts := []func(string) exchange{minioPut, nixlPut,
		func(to string) exchange { return dell("PUT", to, "") }, func(to string) exchange { return noobaa("PUT", to) }}
	for i, put := range puts {
		key := fmt.Sprintf("/bucket/by-%d", i)
		copy(mem, data)
		e := put(key)
		a := e.run(t, host, w.token(t, size))
		w.close()
		if !e.accept(a, size) || a.body != "" || a.header.Get("Content-Length") != "0" {
			t.Errorf("%s: PUT: %+v; want a success without a body", e.program, a)
		}
		for _, e := range []exchange{minioGet(key), nixlGet(key, 0, size), dell("GET", key, "bytes=0-199999"), noobaa("GET", key)} {
			clear(mem)
			a := e.run(t, host, w.token(t, size))
			w.close()
			if !e.accept(a, size) || a.body != "" || a.header.Get("Content-Length") != "0" || !bytes.Equal(mem, data) {
				t.Errorf("%s: GET: %+v; want a success without a body, and the bytes in the window", e.program, a)
			}
		}
		clear(mem)
		part := nixlGet(key, 1000, 5000)
		a = part.run(t, host, w.token(t, 5000))
		w.close()
		if !part.accept(a, 5000) || a.header.Get("Content-Range") != "bytes 1000-5999/200000" ||
			!bytes.Equal(mem[:5000], data[1000:6000]) || mem[5000] != 0 {
			t.Errorf("nixl: ranged GET: %+v; want 206 and those bytes", a)
		}
	}
}

// TestPublishedDeclines: what can't be served is nobody's success, and stores nothing.
func TestPublishedDeclines(t *testing.T) {
	r := newRig(t, client.Config{Mode: client.ModeOff})
	host := strings.TrimPrefix(r.server.URL, "http://")
	elsewhere := "0102030405060708:01020304:01020304:0102:010203:1:0102030405060708090a0b0c0d0e0f10"
	old := elsewhere + ":0102030405060708:0000000001020304"
	for _, e := range []exchange{minioPut("/bucket/k"), nixlPut("/bucket/k"), dell("PUT", "/bucket/k", ""), noobaa("PUT", "/bucket/k")} {
		for token, status := range map[string]int{elsewhere: http.StatusNotImplemented, old: http.StatusBadRequest} {
			a := e.run(t, host, token)
			if e.accept(a, 0) || a.status != status || a.header.Get("ETag") != "" {
				t.Errorf("%s: PUT with a token of elsewhere: %+v; want %d, no ETag", e.program, a, status)
			}
			wantReply := ""
			if status == http.StatusNotImplemented && e.program != "nixl, dell" {
				wantReply = "501"
			}
			if got := a.header.Get("x-amz-rdma-reply"); got != wantReply {
				t.Errorf("%s: reply %q to a PUT with a token of elsewhere; want %q", e.program, got, wantReply)
			}
		}
	}
	if _, err := r.Head(t.Context(), "bucket", "k"); !client.NotFound(err) {
		t.Errorf("Head() = %v; want that nothing was stored", err)
	}
}
