package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/appliance/config"
	"github.com/millrace/millrace/s3/sigv4"
	"github.com/millrace/millrace/verbs"
	"github.com/millrace/millrace/verbs/iwarp"
)

// gpuHost is a client of RDMA, with memory for one window.
type gpuHost struct {
	t      *testing.T
	region verbs.Region
	at     verbs.Endpoint
}

func newGPUHost(t *testing.T, sizeBytes int) *gpuHost {
	t.Helper()
	d := iwarp.Open(iwarp.Config{})
	t.Cleanup(func() { _ = d.Close() })
	region, err := d.Register(make([]byte, sizeBytes))
	if err != nil {
		t.Fatal(err)
	}
	l, err := d.Listen(netip.MustParseAddrPort("127.0.0.1:0"), nil)
	if err != nil {
		t.Fatal(err)
	}
	return &gpuHost{t, region, l.Endpoint()}
}

// do sends a request with the token of a window on the first n bytes, which is closed with the answer.
func (h *gpuHost) do(ctx context.Context, r *running, method, path string, n int) (*http.Response, error) {
	h.t.Helper()
	b, err := h.region.Bind(0, int64(n), verbs.RemoteRead|verbs.RemoteWrite)
	if err != nil {
		h.t.Fatal(err)
	}
	defer b.Close()
	token, err := b.Window(h.at).Token()
	if err != nil {
		h.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(ctx, method, r.s3+path, http.NoBody)
	if err != nil {
		h.t.Fatal(err)
	}
	req.Header.Set("x-amz-rdma-token", token.String())
	signer := sigv4.Signer{Credential: testCredential, Region: "us-east-1"}
	if _, err := signer.Sign(req, sigv4.UnsignedPayload, time.Now()); err != nil {
		h.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err == nil {
		_, err = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
	return resp, err
}

// must is do of a request that has to succeed by RDMA.
func (h *gpuHost) must(r *running, method, path string, n int) {
	h.t.Helper()
	resp, err := h.do(context.Background(), r, method, path, n)
	if err != nil || resp.StatusCode != 200 || resp.Header.Get("x-amz-rdma-bytes-transferred") != strconv.Itoa(n) {
		h.t.Fatalf("%s %s by RDMA = %v, %v", method, path, resp, err)
	}
}

// metric reads one metric of the server.
func (r *running) metric(name string) float64 {
	r.t.Helper()
	status, text := r.get("/metrics")
	match := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(name) + ` (\S+)$`).FindStringSubmatch(text)
	if status != 200 || match == nil {
		r.t.Fatalf("metrics: status %d, no %s", status, name)
	}
	v, err := strconv.ParseFloat(match[1], 64)
	if err != nil {
		r.t.Fatal(err)
	}
	return v
}

const (
	metricWritten = `millrace_rdma_bytes_total{direction="write",provider="soft"}`
	metricRead    = `millrace_rdma_bytes_total{direction="read",provider="soft"}`
	metricWrites  = `millrace_rdma_operations_total{direction="write",provider="soft"}`
	metricBounced = `millrace_rdma_copied_bytes_total{by="bounce",provider="soft"}`
	metricCopied  = `millrace_rdma_copied_bytes_total{by="device",provider="soft"}`
)

// delta tells by how much metrics grow in the course of f.
func (r *running) delta(f func(), names ...string) map[string]float64 {
	r.t.Helper()
	got := map[string]float64{}
	for _, n := range names {
		got[n] = -r.metric(n)
	}
	f()
	for _, n := range names {
		got[n] += r.metric(n)
	}
	return got
}

// startOnDrives starts a server on six small drives in dir.
func startOnDrives(t *testing.T, dir string, change func(*config.Config)) *running {
	t.Helper()
	return startWith(t, openEngine, func(c *config.Config) {
		c.Dir, c.Drives, c.DriveSize, c.Scheme = dir, 6, 64*config.MiB, "4+2"
		if change != nil {
			change(c)
		}
	}, testEnvironment)
}

func random(n int, seed uint64) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(seed)}).Read(b)
	return b
}

// TestRDMAOnDrives: the bytes of large objects go between drives and windows without being copied here; those
// of small ones, and of degraded ones, arrive as well; and all of it is counted.
func TestRDMAOnDrives(t *testing.T) {
	dir := t.TempDir()
	r := startOnDrives(t, dir, nil)
	ctx := context.Background()
	if err := r.client(testCredential).CreateBucket(ctx, "bucket"); err != nil {
		t.Fatal(err)
	}
	const large, small = 9<<20 + 12345, 10_000
	h := newGPUHost(t, large)
	data := random(large, 1)
	copy(h.region.Bytes(), data)
	got := r.delta(func() { h.must(r, "PUT", "/bucket/large", large) }, metricRead, metricBounced, metricWritten)
	if got[metricRead] != large || got[metricBounced] != 0 || got[metricWritten] != 0 {
		t.Errorf("PUT of %d bytes counts %v", large, got)
	}
	got = r.delta(func() { h.must(r, "PUT", "/bucket/small", small) }, metricRead, metricBounced)
	if got[metricRead] != small || got[metricBounced] != small {
		t.Errorf("PUT of %d bytes counts %v; want all of them copied", small, got)
	}
	clear(h.region.Bytes())
	got = r.delta(func() { h.must(r, "GET", "/bucket/large", large) },
		metricWritten, metricWrites, metricBounced, metricCopied)
	if got[metricWritten] != large || got[metricBounced] != 0 || got[metricCopied] != 0 || got[metricWrites] < large>>20 {
		t.Errorf("GET of %d bytes counts %v; want none copied", large, got)
	}
	if !bytes.Equal(h.region.Bytes(), data) {
		t.Error("GET by RDMA: other bytes")
	}
	clear(h.region.Bytes())
	h.must(r, "GET", "/bucket/small", small)
	if !bytes.Equal(h.region.Bytes()[:small], data[:small]) {
		t.Error("GET of a small object by RDMA: other bytes")
	}
	if used := r.metric("millrace_arena_used_bytes"); used != 0 {
		t.Errorf("%v bytes of the arena in use after all; want 0", used)
	}
	if n := r.metric(`millrace_s3_requests_total{code="200",op="GetObject",transport="rdma"}`); n != 2 {
		t.Errorf("%v GetObject by rdma; want 2", n)
	}
	if n := r.metric(`millrace_s3_bytes_total{direction="in",transport="rdma"}`); n != large+small {
		t.Errorf("%v bytes in by rdma; want %d", n, large+small)
	}
	var read []string // drives with data of the large object, not only parity
	for slot := range 6 {
		if name := fmt.Sprintf("%02d", slot); r.metric(`millrace_drive_read_bytes_total{drive="`+name+`"}`) > 0 {
			read = append(read, name)
		}
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	testDegraded(t, dir, h, data, read[:2])
}

// testDegraded reads the object with two drives away.
func testDegraded(t *testing.T, dir string, h *gpuHost, data []byte, away []string) {
	t.Helper()
	for _, slot := range away {
		if err := os.Rename(filepath.Join(dir, "drives", slot), filepath.Join(dir, slot)); err != nil {
			t.Fatal(err)
		}
	}
	r := startOnDrives(t, dir, nil)
	clear(h.region.Bytes())
	got := r.delta(func() { h.must(r, "GET", "/bucket/large", len(data)) }, metricBounced, "millrace_degraded_reads_total")
	if got[metricBounced] != 0 || got["millrace_degraded_reads_total"] == 0 {
		t.Errorf("degraded GET counts %v; want degraded reads, and nothing copied", got)
	}
	if !bytes.Equal(h.region.Bytes(), data) {
		t.Error("degraded GET by RDMA: other bytes")
	}
}

// TestRDMAGivenUp: requests that are given up at any moment leave nothing behind in the arena.
func TestRDMAGivenUp(t *testing.T) {
	r := startOnDrives(t, t.TempDir(), func(c *config.Config) { c.ArenaSize = 16 * config.MiB })
	if err := r.client(testCredential).CreateBucket(context.Background(), "bucket"); err != nil {
		t.Fatal(err)
	}
	const size = 5 << 20
	h := newGPUHost(t, size)
	data := random(size, 2)
	copy(h.region.Bytes(), data)
	h.must(r, "PUT", "/bucket/o", size)
	for i := range 20 {
		method := []string{"GET", "PUT"}[i%2]
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(i)*time.Millisecond)
		resp, err := h.do(ctx, r, method, "/bucket/o", size)
		cancel()
		if err != nil && !errors.Is(err, context.DeadlineExceeded) || err == nil && resp.StatusCode != 200 {
			t.Errorf("%s = %v, %v", method, resp, err)
		}
	}
	for start := time.Now(); r.metric("millrace_arena_used_bytes") > 0; time.Sleep(10 * time.Millisecond) {
		if time.Since(start) > 10*time.Second {
			t.Fatal("the arena is still in use")
		}
	}
	h.must(r, "GET", "/bucket/o", size)
	if !bytes.Equal(h.region.Bytes(), data) {
		t.Error("GET by RDMA: other bytes")
	}
}

// TestRDMAModes: what the ready line says, and what tokens get.
func TestRDMAModes(t *testing.T) {
	for _, tc := range []struct {
		mode, listen, ready string
	}{
		{"auto", "", "rdma=soft\n"},
		{"soft", "127.0.0.1:0", "rdma=soft rdma-listen=127.0.0.1:"},
		{"off", "", "rdma=off\n"},
		{"null", "", "rdma=null(moves-no-bytes)\n"},
	} {
		r := startWith(t, openMemory, func(c *config.Config) { c.RDMA, c.RDMAListen = tc.mode, tc.listen }, testEnvironment)
		if !strings.Contains(r.out.String(), tc.ready) {
			t.Errorf("rdma %s: output %q; want %q", tc.mode, r.out, tc.ready)
		}
		if loud := strings.Contains(r.log.String(), "moves no bytes"); loud != (tc.mode == "null") {
			t.Errorf("rdma %s: the log warns: %v", tc.mode, loud)
		}
		resp, err := newGPUHost(t, 1).do(context.Background(), r, "PUT", "/bucket/o", 1)
		if err != nil || resp.StatusCode != 404 {
			t.Errorf("rdma %s: PUT into no bucket = %v, %v; want 404", tc.mode, resp, err)
		}
		if err := r.client(testCredential).CreateBucket(context.Background(), "bucket"); err != nil {
			t.Fatal(err)
		}
		want := 200
		if tc.mode == "off" {
			want = 501
		}
		resp, err = newGPUHost(t, 1).do(context.Background(), r, "PUT", "/bucket/o", 1)
		if err != nil || resp.StatusCode != want {
			t.Errorf("rdma %s: PUT = %v, %v; want %d", tc.mode, resp, err, want)
		}
		if declined := r.metric(`millrace_rdma_declined_total{reason="off"}`); declined != 0 != (tc.mode == "off") {
			t.Errorf("rdma %s: %v requests declined", tc.mode, declined)
		}
	}
}

// TestVerbsWithoutHardware: a server that must have RDMA hardware does not start without it, and makes no drives.
func TestVerbsWithoutHardware(t *testing.T) {
	if found, _ := filepath.Glob("/sys/class/infiniband/*"); len(found) > 0 {
		t.Skip("there is an RDMA device")
	}
	c := config.Default()
	c.Dir, c.RDMA = filepath.Join(t.TempDir(), "d"), config.RDMAVerbs
	c.Listen, c.MgmtListen = "127.0.0.1:0", "127.0.0.1:0"
	err := Run(t.Context(), c, Options{Stdout: io.Discard, Logger: slog.New(slog.DiscardHandler), Getenv: func(string) string { return "" }})
	if err == nil || !strings.Contains(err.Error(), "open RDMA") {
		t.Errorf("Run with rdma=verbs = %v; want an error of RDMA", err)
	}
	if _, err := os.Stat(filepath.Join(c.Dir, "drives")); err == nil {
		t.Error("drives were made")
	}
}
