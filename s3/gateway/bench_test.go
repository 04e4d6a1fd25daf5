package gateway

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/s3/sigv4"
)

// sink is a ResponseWriter that costs next to nothing.
type sink struct {
	header http.Header
	status int
	bytes  int
}

func (s *sink) Header() http.Header { return s.header }

func (s *sink) WriteHeader(status int) { s.status = status }

func (s *sink) Write(p []byte) (int, error) {
	s.bytes += len(p)
	return len(p), nil
}

// serverRequest turns a client's signed request into what a server gets.
func serverRequest(b *testing.B, s *site, method, target, body, payload string) *http.Request {
	b.Helper()
	r := httptest.NewRequest(method, "http://server"+target, strings.NewReader(body))
	r.Header.Set("User-Agent", "bench")
	if payload == "" {
		digest := sha256.Sum256([]byte(body))
		payload = hex.EncodeToString(digest[:])
	}
	r.URL.Host, r.URL.Scheme = "", ""
	if _, err := s.signer.Sign(r, payload, time.Now()); err != nil {
		b.Fatal(err)
	}
	return r
}

// BenchmarkHandler measures a request inside the gateway: signature, dispatch and headers, with
// memstore and no network.
func BenchmarkHandler(b *testing.B) {
	s := newSite(b, nil)
	s.must("PUT", "/bucket", "")
	small := pattern(4096)
	s.must("PUT", "/bucket/key", small)
	g := s.server.Config.Handler
	for _, c := range []struct {
		name, method, body, payload string
		status                      int
	}{
		{"GET4K", "GET", "", "", 200},
		{"HEAD", "HEAD", "", "", 200},
		{"PUT4K", "PUT", small, sigv4.UnsignedPayload, 200},
		{"PUT4KSigned", "PUT", small, "", 200},
	} {
		b.Run(c.name, func(b *testing.B) {
			r := serverRequest(b, s, c.method, "/bucket/key", c.body, c.payload)
			b.ReportAllocs()
			for b.Loop() {
				w := &sink{header: make(http.Header, 16)}
				r.Body = readCloser{strings.NewReader(c.body)}
				g.ServeHTTP(w, r)
				if w.status != c.status {
					b.Fatalf("status %d; want %d", w.status, c.status)
				}
			}
		})
	}
}

type readCloser struct{ *strings.Reader }

func (readCloser) Close() error { return nil }

// BenchmarkServer measures a whole GET over loopback; the client's side is in it too.
func BenchmarkServer(b *testing.B) {
	s := newSite(b, nil)
	s.must("PUT", "/bucket", "")
	s.must("PUT", "/bucket/key", pattern(4096))
	r := s.request("GET", "/bucket/key", "")
	b.ReportAllocs()
	for b.Loop() {
		if a := s.send(r); a.status != 200 || len(a.body) != 4096 {
			b.Fatalf("%d, %d bytes", a.status, len(a.body))
		}
	}
}
