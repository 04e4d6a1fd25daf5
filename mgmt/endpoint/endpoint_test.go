package endpoint

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func serve(t *testing.T, c Config) (client *http.Client, base string) {
	t.Helper()
	var err error
	if c.Certificate, err = Certificate("", time.Now()); err != nil {
		t.Fatal(err)
	}
	c.Logger = slog.New(slog.DiscardHandler)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := New(c)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	roots := x509.NewCertPool()
	roots.AddCert(c.Certificate.Leaf)
	client = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
	t.Cleanup(func() {
		client.CloseIdleConnections()
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("Serve() = %v; want ErrServerClosed", err)
		}
	})
	return client, "https://" + l.Addr().String()
}

func get(t *testing.T, client *http.Client, url string) (int, string) {
	t.Helper()
	resp, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func TestServe(t *testing.T) {
	health := Health{Status: Degraded, Drives: map[string]int{"in": 5, "missing": 1}, Scheme: "4+2", Version: "v1"}
	client, base := serve(t, Config{
		Health:  func() Health { return health },
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "x 1\n") }),
	})
	status, body := get(t, client, base+"/healthz")
	var got Health
	if err := json.Unmarshal([]byte(body), &got); err != nil || status != 200 {
		t.Fatalf("GET /healthz = %d %q, %v", status, body, err)
	}
	if diff := cmp.Diff(health, got); diff != "" {
		t.Errorf("health (-want +got):\n%s", diff)
	}
	if status, body := get(t, client, base+"/metrics"); status != 200 || body != "x 1\n" {
		t.Errorf("GET /metrics = %d %q; want 200", status, body)
	}
	if status, _ := get(t, client, base+"/debug/pprof/"); status != 404 {
		t.Errorf("GET /debug/pprof/ = %d; want 404 unless asked for", status)
	}
	for _, s := range []Status{Unavailable, Stopping} {
		health.Status = s
		if status, _ := get(t, client, base+"/healthz"); status != 503 {
			t.Errorf("GET /healthz when %s = %d; want 503", s, status)
		}
	}
}

func TestPprof(t *testing.T) {
	client, base := serve(t, Config{Pprof: true, Health: func() Health { return Health{} }, Metrics: http.NotFoundHandler()})
	if status, body := get(t, client, base+"/debug/pprof/goroutine?debug=1"); status != 200 ||
		!strings.Contains(body, "goroutine profile") {
		t.Errorf("GET /debug/pprof/goroutine = %d; want a profile", status)
	}
}

func TestCertificateIsKept(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	first, err := Certificate(dir, now)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(dir, keyFile))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("key file: %v, %v; want mode 0600", info.Mode(), err)
	}
	second, err := Certificate(dir, now)
	if err != nil || !second.Leaf.Equal(first.Leaf) {
		t.Errorf("second Certificate: %v; want the first one again", err)
	}
	late, err := Certificate(dir, now.AddDate(certYears, 0, -10))
	if err != nil || late.Leaf.Equal(first.Leaf) {
		t.Errorf("Certificate shortly before its end: %v; want a new one", err)
	}
	if err := os.WriteFile(filepath.Join(dir, certFile), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Certificate(dir, now); err == nil {
		t.Error("Certificate with a broken file: no error")
	}
}

func TestLimit(t *testing.T) {
	started, release := make(chan bool), make(chan bool)
	client, base := serve(t, Config{
		Health: func() Health { return Health{} },
		Metrics: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			started <- true
			<-release
		}),
	})
	errs := make(chan error, maxRequests)
	for range maxRequests {
		go func() {
			resp, err := client.Get(base + "/metrics")
			if err == nil {
				resp.Body.Close()
			}
			errs <- err
		}()
		<-started
	}
	if status, _ := get(t, client, base+"/healthz"); status != 503 {
		t.Errorf("request %d at the same time: status %d; want 503", maxRequests+1, status)
	}
	close(release)
	for range maxRequests {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}
