package gateway

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/s3/checksum"
	"github.com/millrace/millrace/s3/chunked"
	"github.com/millrace/millrace/s3/sigv4"
	"github.com/millrace/millrace/s3/store"
	"github.com/millrace/millrace/s3/store/memstore"
	"github.com/millrace/millrace/s3/store/storetest"
	"github.com/millrace/millrace/s3/wire"
)

func TestAuthentication(t *testing.T) {
	s := newSite(t, nil)
	s.must("PUT", "/bucket", "")
	s.must("PUT", "/bucket/key", "x")
	for _, c := range []struct {
		name   string
		change func(*http.Request)
		status int
		code   string
	}{
		{"anonymous", func(r *http.Request) { r.Header.Del("Authorization") }, 403, "AccessDenied"},
		{"changed signature", func(r *http.Request) {
			r.Header.Set("Authorization", r.Header.Get("Authorization")[:len(r.Header.Get("Authorization"))-1]+"x")
		}, 403, "SignatureDoesNotMatch"},
		{"changed path", func(r *http.Request) { r.URL.Path = "/bucket/other" }, 403, "SignatureDoesNotMatch"},
		{"changed query", func(r *http.Request) { r.URL.RawQuery = "versionId=null" }, 403, "SignatureDoesNotMatch"},
		{"unknown key", func(r *http.Request) {
			r.Header.Set("Authorization", strings.Replace(r.Header.Get("Authorization"), "AKTEST", "AKNONE", 1))
		}, 403, "InvalidAccessKeyId"},
		{"old", func(r *http.Request) {
			_, _ = s.signer.Sign(r, sigv4.UnsignedPayload, time.Now().Add(-time.Hour))
		}, 403, "RequestTimeTooSkewed"},
		{"garbage", func(r *http.Request) { r.Header.Set("Authorization", "AWS4-HMAC-SHA256 x") },
			400, "AuthorizationHeaderMalformed"},
		{"version 2", func(r *http.Request) { r.Header.Set("Authorization", "AWS AK:sig") }, 400, "InvalidRequest"},
		{"not implemented, anonymous", func(r *http.Request) {
			r.URL.RawQuery = "torrent"
			r.Header.Del("Authorization")
		}, 403, "AccessDenied"},
	} {
		r := s.request("GET", "/bucket/key", "")
		c.change(r)
		if a := s.send(r); a.status != c.status || a.code() != c.code {
			t.Errorf("%s: %d %s; want %d %s\n%s", c.name, a.status, a.code(), c.status, c.code, a.body)
		}
	}
	r, err := http.NewRequest("GET", s.server.URL+"/bucket/key", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.signer.Presign(r, time.Minute, time.Now()); err != nil {
		t.Fatal(err)
	}
	if a := s.send(r); a.status != 200 || a.body != "x" {
		t.Errorf("presigned GET = %d %q; want 200 x", a.status, a.body)
	}
	denied := newSite(t, func(c *Config) {
		c.Authorise = func(context.Context, Principal, *wire.Request) error { return &wire.Error{Code: wire.AccessDenied} }
	})
	denied.want(403, "AccessDenied", "PUT", "/bucket", "")
}

// chunkedRequest makes an aws-chunked PUT; change may spoil its body.
func (s *site) chunkedRequest(
	kind sigv4.PayloadKind, payload, target, data string, change func([]byte) []byte,
) *http.Request {
	s.t.Helper()
	config := chunked.EncoderConfig{Kind: kind, DecodedBytes: int64(len(data)), ChunkBytes: 8 << 10}
	r, err := http.NewRequest("PUT", s.server.URL+target, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header.Set("X-Amz-Decoded-Content-Length", fmt.Sprint(len(data)))
	r.Header.Set("Content-Encoding", "aws-chunked")
	if kind != sigv4.PayloadStreamingSigned {
		config.Trailer = checksum.CRC32C
		r.Header.Set("X-Amz-Trailer", checksum.CRC32C.Header())
	}
	if config.Seed, err = s.signer.Sign(r, payload, time.Now()); err != nil {
		s.t.Fatal(err)
	}
	body, err := io.ReadAll(chunked.NewEncoder(strings.NewReader(data), config))
	if err != nil {
		s.t.Fatal(err)
	}
	if change != nil {
		body = change(body)
	}
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	return r
}

func TestChunkedBodies(t *testing.T) {
	s := newSite(t, nil)
	s.must("PUT", "/bucket", "")
	flip := func(b []byte) []byte { b[len(b)/2] ^= 1; return b }
	for _, c := range []struct {
		kind    sigv4.PayloadKind
		payload string
		change  func([]byte) []byte
		status  int
		code    string
	}{
		{sigv4.PayloadStreamingSigned, sigv4.StreamingSigned, nil, 200, ""},
		{sigv4.PayloadStreamingSignedTrailer, sigv4.StreamingSignedTrailer, nil, 200, ""},
		{sigv4.PayloadStreamingUnsignedTrailer, sigv4.StreamingUnsignedTrailer, nil, 200, ""},
		{sigv4.PayloadStreamingSigned, sigv4.StreamingSigned, flip, 403, "SignatureDoesNotMatch"},
		{sigv4.PayloadStreamingUnsignedTrailer, sigv4.StreamingUnsignedTrailer, flip, 400, "BadDigest"},
		{sigv4.PayloadStreamingSigned, sigv4.StreamingSigned, func(b []byte) []byte { return b[:len(b)-90] },
			400, "IncompleteBody"},
	} {
		for _, n := range []int{0, 1, 8 << 10, 100_000} {
			if n < 8<<10 && c.change != nil {
				continue
			}
			data, target := pattern(n), fmt.Sprintf("/bucket/%d-%d", c.kind, n)
			if c.change != nil {
				target += "-bad"
			}
			a := s.send(s.chunkedRequest(c.kind, c.payload, target, data, c.change))
			if a.status != c.status || a.code() != c.code {
				t.Errorf("%s, %d bytes: %d %s; want %d %s\n%s", c.payload, n, a.status, a.code(), c.status, c.code, a.body)
			}
			if c.status != 200 {
				s.want(404, "NoSuchKey", "GET", target, "")
				continue
			}
			got := s.must("GET", target, "", "x-amz-checksum-mode: ENABLED")
			equalBytes(t, target, got.body, data)
			crc := got.header.Get("x-amz-checksum-crc32c")
			if c.kind != sigv4.PayloadStreamingSigned && crc != sumOf(checksum.CRC32C, data) {
				t.Errorf("%s has the headers %v", target, got.header)
			}
		}
	}
	r := s.chunkedRequest(sigv4.PayloadStreamingSigned, sigv4.StreamingSigned, "/bucket/x", "x", nil)
	r.Header.Del("X-Amz-Decoded-Content-Length")
	if _, err := s.signer.Sign(r, sigv4.StreamingSigned, time.Now()); err != nil {
		t.Fatal(err)
	}
	if a := s.send(r); a.status != 411 || a.code() != "MissingContentLength" {
		t.Errorf("aws-chunked without decoded length = %d %s; want 411", a.status, a.code())
	}
}

func TestBadBodies(t *testing.T) {
	s := newSite(t, nil)
	s.must("PUT", "/bucket", "")
	r := s.request("PUT", "/bucket/key", "hello")
	r.Body, r.ContentLength = io.NopCloser(strings.NewReader("jello")), 5
	if a := s.send(r); a.status != 400 || a.code() != "XAmzContentSHA256Mismatch" {
		t.Errorf("other body than signed = %d %s", a.status, a.code())
	}
	r = s.request("PUT", "/bucket/key", "hello")
	r.Body, r.ContentLength = io.NopCloser(strings.NewReader("hello")), -1 // chunked transfer coding
	if a := s.send(r); a.status != 411 || a.code() != "MissingContentLength" {
		t.Errorf("no Content-Length = %d %s", a.status, a.code())
	}
	s.want(400, "MaxMessageLengthExceeded", "PUT", "/bucket?tagging", strings.Repeat("x", wire.MaxXMLBytes+1))
	s.want(400, "KeyTooLongError", "PUT", "/bucket/"+strings.Repeat("k", 1025), "x")
	s.want(404, "NoSuchKey", "GET", "/bucket/key", "")

	// What comes is less than what the head says, over a raw connection.
	for _, c := range []struct {
		length string
		status string
		code   string
	}{
		{"10", "400", "IncompleteBody"},
		{fmt.Sprint(store.MaxPutBytes + 1), "400", "EntityTooLarge"},
	} {
		r := s.request("PUT", "/bucket/key", "hello")
		got := s.raw(r, "Content-Length: "+c.length, "hello")
		if !strings.Contains(got, " "+c.status+" ") || !strings.Contains(got, "<Code>"+c.code+"</Code>") {
			t.Errorf("Content-Length %s, then 5 bytes = %.300q; want %s %s", c.length, got, c.status, c.code)
		}
		s.want(404, "NoSuchKey", "GET", "/bucket/key", "")
	}
	if got := s.raw(s.request("PUT", "/bucket/key", "x"), "Content-Length: -1", "x"); !strings.Contains(got, " 400 ") {
		t.Errorf("Content-Length -1 = %.200q; want 400", got)
	}
	got := s.raw(s.request("GET", "/bucket/key", ""), "X-Long: "+strings.Repeat("x", 2<<20), "")
	if !strings.Contains(got, " 431 ") {
		t.Errorf("a head of 2 MiB = %.200q; want 431", got)
	}
}

// raw sends a signed request by hand, with another header and body, ends the sending side, and
// returns what comes back.
func (s *site) raw(r *http.Request, header, body string) string {
	s.t.Helper()
	conn, err := net.Dial("tcp", s.server.Listener.Addr().String())
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_, _ = io.WriteString(conn, rawHead(r)+header+"\r\n\r\n"+body)
	_ = conn.(*net.TCPConn).CloseWrite()
	got, _ := io.ReadAll(conn)
	return string(got)
}

func rawHead(r *http.Request) string {
	head := r.Method + " " + r.URL.RequestURI() + " HTTP/1.1\r\nHost: " + r.URL.Host + "\r\n"
	for name, values := range r.Header {
		head += name + ": " + values[0] + "\r\n"
	}
	return head
}

// TestContinue checks that a client which waits for a 100 Continue is told of errors first.
func TestContinue(t *testing.T) {
	s := newSite(t, nil)
	s.must("PUT", "/bucket", "")
	spoil := func(r *http.Request) { r.Header.Set("Authorization", r.Header.Get("Authorization")+"0") }
	for _, c := range []struct {
		target string
		change func(*http.Request)
		want   string
	}{
		{"/bucket/key", nil, "HTTP/1.1 100 Continue"},
		{"/nowhere/key", nil, "HTTP/1.1 404 Not Found"},
		{"/bucket/key", spoil, "HTTP/1.1 4"},
	} {
		r := s.request("PUT", c.target, "hello")
		if c.change != nil {
			c.change(r)
		}
		conn, err := net.Dial("tcp", s.server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(conn, rawHead(r)+"Content-Length: 5\r\nExpect: 100-continue\r\n\r\n")
		reader := bufio.NewReader(conn)
		line, err := reader.ReadString('\n')
		if err != nil || !strings.HasPrefix(line, c.want) {
			t.Errorf("PUT %s with Expect: %q, %v; want %s", c.target, line, err, c.want)
		}
		if strings.Contains(c.want, "100") {
			_, _ = io.WriteString(conn, "hello")
			_, _ = reader.ReadString('\n')
			if line, err = reader.ReadString('\n'); !strings.HasPrefix(line, "HTTP/1.1 200") {
				t.Errorf("after the body: %q, %v; want 200", line, err)
			}
		}
		_ = conn.Close()
	}
}

func TestStalledClients(t *testing.T) {
	const stall = 100 * time.Millisecond
	s := newSite(t, func(c *Config) { c.Limits.Stall = stall })
	s.must("PUT", "/bucket", "")
	conn, err := net.Dial("tcp", s.server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_, _ = io.WriteString(conn, rawHead(s.request("PUT", "/bucket/key", "hello"))+"Content-Length: 5\r\n\r\nhel")
	got, _ := io.ReadAll(conn)
	if !strings.Contains(string(got), "<Code>RequestTimeout</Code>") {
		t.Errorf("a stalled PUT gets %.300q; want RequestTimeout", got)
	}
	s.want(404, "NoSuchKey", "GET", "/bucket/key", "")

	// A client that does not read is left, and holds nothing.
	s.must("PUT", "/bucket/large", pattern(32<<20))
	conn2, err := net.Dial("tcp", s.server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn2.Close() }()
	_, _ = io.WriteString(conn2, rawHead(s.request("GET", "/bucket/large", ""))+"\r\n")
	for range 200 {
		s.mu.Lock()
		n := len(s.events)
		last := s.events[n-1]
		s.mu.Unlock()
		if last.Op == wire.GetObject && last.BytesOut < 32<<20 && last.BytesOut > 0 {
			if last.Code != clientGone {
				t.Errorf("a client that does not read counts as %s; want %s", last.Code, clientGone)
			}
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Error("a client that does not read is still being served")
}

func TestStoreErrors(t *testing.T) {
	f := &failingStore{Store: memstore.New(), after: -1}
	s := newSite(t, func(c *Config) { c.Store = f })
	s.must("PUT", "/bucket", "")
	s.must("PUT", "/bucket/key", pattern(1<<20))
	f.after = 0
	s.want(500, "InternalError", "GET", "/bucket/key", "")
	f.after = 300_000
	if a := s.do("GET", "/bucket/key", ""); a.err == nil {
		t.Errorf("GET that breaks off = %d, %d bytes, no error; want one", a.status, len(a.body))
	}
	for _, c := range []struct {
		err    error
		status int
		code   string
	}{
		{store.ErrOverloaded, 503, "SlowDown"}, {store.ErrUnavailable, 503, "ServiceUnavailable"},
		{store.ErrFull, 507, "StorageFull"}, {store.ErrDamaged, 500, "InternalError"},
		{errors.New("secret detail"), 500, "InternalError"}, {store.ErrNoSuchBucket, 404, "NoSuchBucket"},
		{io.ErrUnexpectedEOF, 500, "InternalError"}, // not the client's
	} {
		f.err = fmt.Errorf("put: %w", c.err)
		a := s.want(c.status, c.code, "PUT", "/bucket/other", "x")
		if strings.Contains(a.body, "secret detail") {
			t.Errorf("the answer gives away %q", a.body)
		}
	}
}

func TestTooManyRequests(t *testing.T) {
	s := newSite(t, func(c *Config) { c.Limits.Requests = 1 })
	s.must("PUT", "/bucket", "")
	r := s.request("PUT", "/bucket/key", "hello")
	conn, err := net.Dial("tcp", s.server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_, _ = io.WriteString(conn, rawHead(r)+"Content-Length: 5\r\nExpect: 100-continue\r\n\r\n")
	reader := bufio.NewReader(conn)
	if _, err := reader.ReadString('\n'); err != nil { // the PUT is in its handler now
		t.Fatal(err)
	}
	a := s.want(503, "SlowDown", "GET", "/bucket", "")
	if a.header.Get("Retry-After") == "" {
		t.Error("SlowDown without Retry-After")
	}
	_, _ = io.WriteString(conn, "hello")
	_, _ = reader.ReadString('\n')
	if line, _ := reader.ReadString('\n'); !strings.HasPrefix(line, "HTTP/1.1 200") {
		t.Errorf("the first request gets %q; want 200", line)
	}
}

// TestNastyKeys stores, lists and deletes keys that a careless front would mangle.
func TestNastyKeys(t *testing.T) {
	s := newSite(t, nil)
	s.must("PUT", "/bucket", "")
	keys := storetest.NastyKeys()
	target := func(key string) string { return "/bucket/" + string(wire.AppendURLEncoded(nil, key)) }
	for _, key := range keys {
		s.must("PUT", target(key), key)
	}
	for _, key := range keys {
		if got := s.must("GET", target(key), ""); got.body != key {
			t.Errorf("GET of %.40q = %.40q", key, got.body)
		}
	}
	list := s.must("GET", "/bucket?list-type=2&encoding-type=url", "").body
	plain := s.must("GET", "/bucket?list-type=2", "").body
	for _, key := range keys {
		if !strings.Contains(list, "<Key>"+string(wire.AppendURLEncoded(nil, key))+"</Key>") {
			t.Errorf("%.40q is not in the URL-encoded listing", key)
		}
		x := wire.NewXML("a")
		x.Text("Key", key)
		if _, want, _ := strings.Cut(string(x.Bytes()), "/\">"); !strings.Contains(plain, want) {
			t.Errorf("%.40q is not in the plain listing", key)
		}
	}
	x := wire.NewXML("Delete")
	for _, key := range keys {
		x.Open("Object")
		x.Text("Key", key)
		x.Close("Object")
	}
	x.Close("Delete")
	body := string(x.Bytes())
	got := s.must("POST", "/bucket?delete", body, "Content-MD5: "+md5Base64(body))
	if n := strings.Count(got.body, "<Deleted>"); n != len(keys) {
		t.Errorf("DeleteObjects deleted %d of %d keys: %.500s", n, len(keys), got.body)
	}
	if left := s.must("GET", "/bucket?list-type=2", "").body; strings.Contains(left, "<Key>") {
		t.Errorf("left after DeleteObjects: %.500s", left)
	}
}

func TestEvents(t *testing.T) {
	s := newSite(t, nil)
	s.must("PUT", "/bucket", "")
	s.must("PUT", "/bucket/key", "hello")
	s.must("GET", "/bucket/key", "")
	s.do("GET", "/bucket/none", "")
	s.server.Close() // events come after the answers
	want := []Event{
		{Op: wire.CreateBucket, Status: 200}, {Op: wire.PutObject, Status: 200, BytesIn: 5},
		{Op: wire.GetObject, Status: 200, BytesOut: 5}, {Op: wire.GetObject, Status: 404, Code: wire.NoSuchKey},
	}
	if len(s.events) != len(want) {
		t.Fatalf("events = %+v", s.events)
	}
	for i, e := range s.events {
		if e.Duration <= 0 || e.Transport != TransportHTTP {
			t.Errorf("event %+v has no duration or transport", e)
		}
		if e.Code != "" {
			e.BytesOut = 0
		}
		e.Duration, e.Transport = 0, ""
		if e != want[i] {
			t.Errorf("event %d = %+v; want %+v", i, e, want[i])
		}
	}
}
