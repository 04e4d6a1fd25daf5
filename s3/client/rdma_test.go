package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/millrace/millrace/s3/client"
	"github.com/millrace/millrace/s3/gateway"
	"github.com/millrace/millrace/s3/rdma"
	"github.com/millrace/millrace/s3/sigv4"
	"github.com/millrace/millrace/s3/store/memstore"
	"github.com/millrace/millrace/verbs"
	"github.com/millrace/millrace/verbs/iwarp"
)

// rig is our own S3 front with RDMA, and a client of it.
type rig struct {
	*client.Client
	server *httptest.Server
	device verbs.Device // of the server
	listen string       // where it takes sessions
	tokens atomic.Int64 // requests with a token
}

func newRig(t testing.TB, config client.Config) *rig {
	t.Helper()
	r := &rig{device: iwarp.Open(iwarp.Config{})}
	t.Cleanup(func() { _ = r.device.Close() })
	transport, err := rdma.New(rdma.Config{Device: r.device, Listen: netip.MustParseAddrPort("127.0.0.1:0")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = transport.Close() })
	ep := transport.Endpoint()
	r.listen = netip.AddrPortFrom(ep.Addr(), uint16(ep.QPN)).String()
	credential := sigv4.Credential{AccessKey: "ak", SecretKey: "secret"}
	front := gateway.New(gateway.Config{Store: memstore.New(), Accounts: account{}, Region: "us-east-1", RDMA: transport,
		Verifier: &sigv4.Verifier{Region: "us-east-1",
			Lookup: func(context.Context, string) (sigv4.Credential, error) { return credential, nil }}})
	r.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Header.Get("X-Amz-Rdma-Token") != "" {
			r.tokens.Add(1)
		}
		front.ServeHTTP(w, req)
	}))
	t.Cleanup(r.server.Close)
	config.Credential = credential
	r.Client = r.dial(t, config)
	if err := r.CreateBucket(context.Background(), "bucket"); err != nil {
		t.Fatal(err)
	}
	return r
}

// dial returns a further client of the server.
func (r *rig) dial(t testing.TB, config client.Config) *client.Client {
	t.Helper()
	config.Endpoint = r.server.URL
	config.Credential = sigv4.Credential{AccessKey: "ak", SecretKey: "secret"}
	if config.RDMAConnect == "listen" {
		config.RDMAConnect = r.listen
	}
	c, err := client.New(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// registered returns n bytes of registered memory.
func registered(t testing.TB, c *client.Client, n int) []byte {
	t.Helper()
	mem := make([]byte, n)
	m, err := c.Register(mem)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return mem
}

func viaRDMA(t client.Transfer, n int) bool {
	return t == client.Transfer{Transport: client.TransportRDMA, Provider: "soft", RDMABytes: int64(n)}
}

func TestRDMABuffers(t *testing.T) {
	ctx := context.Background()
	for _, connect := range []string{"", "listen"} {
		r := newRig(t, client.Config{Mode: client.ModeRequire, RDMAConnect: connect})
		mem, moved := registered(t, r.Client, 7<<20), 0
		for _, size := range []int{0, 1, 5000, 300_001, 3 << 20} {
			src, dst := mem[3:3+size], mem[4<<20:]
			copy(src, random(size))
			put, err := r.Put(ctx, "bucket", "k", src, client.PutOptions{})
			if err != nil || !viaRDMA(put.Transfer, size) || !put.ChecksumVerified || put.ETag == "" {
				t.Fatalf("connect %q: Put of %d bytes = %+v, %v; want it by RDMA, verified", connect, size, put, err)
			}
			got, err := r.GetBuffer(ctx, "bucket", "k", dst, client.GetOptions{})
			if err != nil || !viaRDMA(got.Transfer, size) || !got.Verified || got.Bytes != int64(size) ||
				got.Info.SizeBytes != int64(size) || got.Info.ETag != put.ETag || !bytes.Equal(dst[:size], src) {
				t.Fatalf("connect %q: GetBuffer of %d bytes = %+v, %v; want it by RDMA, verified", connect, size, got, err)
			}
			moved += size
		}
		want := client.Witness{Provider: "soft", WriteOps: 5, WriteBytes: int64(moved), ReadOps: 5, ReadBytes: int64(moved)}
		if got := r.Witness(); got != want {
			t.Errorf("Witness() = %+v; want %+v", got, want)
		}
		ours, theirs := r.Device().Counters().Served, r.device.Counters().Initiated
		if ours.WriteBytes != uint64(moved) || ours.ReadBytes != uint64(moved) || theirs.WriteBytes != uint64(moved) ||
			theirs.ReadBytes != uint64(moved) {
			t.Errorf("served %+v, the server initiated %+v; want %d bytes each way", ours, theirs, moved)
		}
	}
}

func TestRDMARange(t *testing.T) {
	ctx := context.Background()
	r := newRig(t, client.Config{Mode: client.ModeRequire})
	mem, data := registered(t, r.Client, 100_000), random(100_000)
	copy(mem, data)
	put, err := r.Put(ctx, "bucket", "k", mem, client.PutOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range []client.GetOptions{
		{Offset: 10, Length: 5000}, {Length: 100_000}, {Length: 1}, {Offset: 99_990, Length: 500}, {Offset: 60_000},
		{Offset: 1, Length: 2, IfMatch: put.ETag},
	} {
		clear(mem)
		end := 100_000
		if o.Length > 0 {
			end = min(end, int(o.Offset+o.Length))
		}
		want := data[o.Offset:end]
		got, err := r.GetBuffer(ctx, "bucket", "k", mem, o)
		if err != nil || !viaRDMA(got.Transfer, len(want)) || got.Info.SizeBytes != 100_000 || !bytes.Equal(mem[:got.Bytes], want) {
			t.Errorf("GetBuffer(%+v) = %+v, %v; want %d bytes of 100000", o, got, err, len(want))
		}
	}
	for _, tc := range []struct {
		o    client.GetOptions
		key  string
		want string
	}{
		{client.GetOptions{}, "none", "NoSuchKey"},
		{client.GetOptions{IfMatch: "another"}, "k", "PreconditionFailed"},
		{client.GetOptions{Offset: 100_000}, "k", "InvalidRange"},
	} {
		if _, err := r.GetBuffer(ctx, "bucket", tc.key, mem, tc.o); client.Code(err) != tc.want {
			t.Errorf("GetBuffer(%q, %+v) = %v; want %s", tc.key, tc.o, err, tc.want)
		}
	}
	if _, err := r.GetBuffer(ctx, "bucket", "k", mem[:10], client.GetOptions{Length: 11}); !errors.Is(err, client.ErrTooSmall) {
		t.Errorf("GetBuffer of 11 bytes into 10 = %v; want ErrTooSmall", err)
	}
	if _, err := r.GetBuffer(ctx, "bucket", "k", mem[:10], client.GetOptions{}); !errors.Is(err, client.ErrNoRDMA) {
		t.Errorf("GetBuffer of 100000 bytes into 10 = %v; want ErrNoRDMA", err)
	}
}

// file is memory as an io.WriterAt.
type file []byte

func (f file) WriteAt(p []byte, off int64) (int, error) { return copy(f[off:], p), nil }

func TestRDMAStreams(t *testing.T) {
	ctx := context.Background()
	for _, mode := range []client.Mode{client.ModeRequire, client.ModeAuto} {
		r := newRig(t, client.Config{Mode: mode})
		for _, size := range []int{0, 100, 16<<20 + 5} {
			data, parts := random(size), 0
			if size > 16<<20 {
				parts = (size + 16<<20 - 1) / (16 << 20)
			}
			put, err := r.Upload(ctx, "bucket", "k", bytes.NewReader(data), client.UploadOptions{Parallel: 2})
			if err != nil || !viaRDMA(put.Transfer, size) || !put.ChecksumVerified || put.Parts != parts {
				t.Fatalf("Upload of %d bytes = %+v, %v; want it by RDMA in %d parts", size, put, err, parts)
			}
			var b bytes.Buffer
			got, err := r.Get(ctx, "bucket", "k", &b, client.GetOptions{})
			if err != nil || !viaRDMA(got.Transfer, size) || !got.Verified || !bytes.Equal(b.Bytes(), data) {
				t.Fatalf("Get of %d bytes = %+v, %v, %d bytes; want it by RDMA, verified", size, got, err, b.Len())
			}
			to := make(file, size)
			var progress atomic.Int64
			got, err = r.Download(ctx, "bucket", "k", to, client.DownloadOptions{PartBytes: 5 << 20, Parallel: 3,
				Progress: func(n int64) { progress.Add(n) }})
			if err != nil || !viaRDMA(got.Transfer, size) || !got.Verified || !bytes.Equal(to, data) || progress.Load() != int64(size) {
				t.Fatalf("Download of %d bytes = %+v, %v; want it by RDMA, verified", size, got, err)
			}
		}
		if w := r.Witness(); w.Fallbacks != 0 {
			t.Errorf("mode %s: %d requests fell back to HTTP", mode, w.Fallbacks)
		}
	}
}

func TestRDMAWholeBuffers(t *testing.T) {
	ctx := context.Background()
	r := newRig(t, client.Config{Mode: client.ModeRequire})
	const size = 17 << 20
	mem := registered(t, r.Client, 2*size)
	src, dst := mem[:size], mem[size:]
	copy(src, random(size))
	put, err := r.UploadBuffer(ctx, "bucket", "k", src, client.UploadOptions{PartBytes: 5 << 20, Parallel: 2})
	if err != nil || !viaRDMA(put.Transfer, size) || !put.ChecksumVerified || put.Parts != 4 {
		t.Fatalf("UploadBuffer = %+v, %v; want 4 parts by RDMA", put, err)
	}
	got, err := r.DownloadBuffer(ctx, "bucket", "k", dst, client.DownloadOptions{PartBytes: 5 << 20, Parallel: 2})
	if err != nil || !viaRDMA(got.Transfer, size) || !got.Verified || !bytes.Equal(src, dst) {
		t.Fatalf("DownloadBuffer = %+v, %v; want it by RDMA", got, err)
	}
	if _, err := r.DownloadBuffer(ctx, "bucket", "k", dst[1:], client.DownloadOptions{}); !errors.Is(err, client.ErrTooSmall) {
		t.Errorf("DownloadBuffer into one byte less = %v; want ErrTooSmall", err)
	}
	off := r.dial(t, client.Config{Mode: client.ModeOff})
	clear(dst)
	got, err = off.DownloadBuffer(ctx, "bucket", "k", dst, client.DownloadOptions{})
	if err != nil || got.Transport != client.TransportHTTP || !got.Verified || !bytes.Equal(src, dst) {
		t.Errorf("DownloadBuffer without RDMA = %+v, %v; want it by HTTP", got, err)
	}
}

// TestRDMAFallsBack: bytes that can't go by RDMA go by HTTP, with the reason; or not at all, if it is required.
func TestRDMAFallsBack(t *testing.T) {
	ctx := context.Background()
	r := newRig(t, client.Config{Mode: client.ModeOff})
	without, _ := serve(t)
	if _, err := without.Put(ctx, "bucket", "k", nil, client.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	unreachable, err := client.OpenDevice(client.DeviceConfig{Verbs: deaf{iwarp.Open(iwarp.Config{})}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unreachable.Close() })
	for _, tc := range []struct {
		name, want string
		register   bool
		open       func(mode client.Mode) *client.Client
	}{
		{"not registered", "the memory is not registered", false, func(m client.Mode) *client.Client {
			return r.dial(t, client.Config{Mode: m})
		}},
		{"not dialled", "unreachable", true, func(m client.Mode) *client.Client {
			return r.dial(t, client.Config{Mode: m, Device: unreachable})
		}},
		{"no such session", "dial", true, func(m client.Mode) *client.Client {
			return r.dial(t, client.Config{Mode: m, RDMAConnect: "127.0.0.1:1"})
		}},
	} {
		data := random(1000)
		for _, mode := range []client.Mode{client.ModeAuto, client.ModeRequire} {
			c := tc.open(mode)
			mem := make([]byte, 1000)
			if tc.register {
				mem = registered(t, c, 1000)
			}
			copy(mem, data)
			put, err := c.Put(ctx, "bucket", "k", mem, client.PutOptions{})
			if mode == client.ModeRequire {
				if !errors.Is(err, client.ErrNoRDMA) || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("%s: Put() = %v; want ErrNoRDMA, with %q", tc.name, err, tc.want)
				}
				continue
			}
			if err != nil || put.Transport != client.TransportHTTP || !strings.Contains(put.Reason, tc.want) {
				t.Errorf("%s: Put() = %+v, %v; want HTTP because of %q", tc.name, put, err, tc.want)
			}
			clear(mem)
			got, err := c.GetBuffer(ctx, "bucket", "k", mem, client.GetOptions{})
			if err != nil || got.Transport != client.TransportHTTP || !strings.Contains(got.Reason, tc.want) ||
				!got.Verified || !bytes.Equal(mem, data) {
				t.Errorf("%s: GetBuffer() = %+v, %v; want HTTP because of %q", tc.name, got, err, tc.want)
			}
			if w := c.Witness(); w.Fallbacks != 2 || w.ReadOps+w.WriteOps != 0 {
				t.Errorf("%s: Witness() = %+v; want 2 fallbacks", tc.name, w)
			}
		}
	}
}

// deaf is a device whose listeners are where nobody listens.
type deaf struct{ verbs.Device }

func (d deaf) Listen(addr netip.AddrPort, _ func(verbs.Conn)) (verbs.Listener, error) {
	return nowhere{addr.Addr()}, nil
}

type nowhere struct{ at netip.Addr }

func (n nowhere) Endpoint() verbs.Endpoint { return verbs.EndpointAt(netip.AddrPortFrom(n.at, 1)) }
func (nowhere) Close() error               { return nil }

// TestRDMAOff: a server without RDMA is asked once, not for every part.
func TestRDMAOff(t *testing.T) {
	ctx := context.Background()
	_, s := serve(t)
	var tokens atomic.Int64
	credential := sigv4.Credential{AccessKey: "ak", SecretKey: "secret"}
	front := gateway.New(gateway.Config{Store: s, Accounts: account{}, Region: "us-east-1",
		Verifier: &sigv4.Verifier{Region: "us-east-1",
			Lookup: func(context.Context, string) (sigv4.Credential, error) { return credential, nil }}})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if len(req.Header.Get("X-Amz-Rdma-Token")) > 1 {
			tokens.Add(1)
		}
		front.ServeHTTP(w, req)
	}))
	t.Cleanup(server.Close)
	c, err := client.New(client.Config{Endpoint: server.URL, Credential: credential})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	data := random(12 << 20)
	put, err := c.Upload(ctx, "bucket", "k", bytes.NewReader(data), client.UploadOptions{PartBytes: 5 << 20, Parallel: 1})
	if err != nil || put.Transport != client.TransportHTTP || !strings.Contains(put.Reason, "RDMANotSupported") {
		t.Fatalf("Upload() = %+v, %v; want HTTP, since RDMA is declined", put, err)
	}
	var b bytes.Buffer
	got, err := c.Get(ctx, "bucket", "k", &b, client.GetOptions{})
	if err != nil || got.Transport != client.TransportHTTP || got.Reason != put.Reason || !got.Verified || !bytes.Equal(b.Bytes(), data) {
		t.Errorf("Get() = %+v, %v; want HTTP, for the same reason", got, err)
	}
	if n := tokens.Load(); n != 1 {
		t.Errorf("%d requests had a token; want 1", n)
	}
	must, err := client.New(client.Config{Endpoint: server.URL, Credential: credential, Mode: client.ModeRequire})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(must.Close)
	_, err = must.Upload(ctx, "bucket", "k", bytes.NewReader(data[:9]), client.UploadOptions{})
	if !errors.Is(err, client.ErrNoRDMA) {
		t.Errorf("Upload() = %v; want ErrNoRDMA", err)
	}
}

func BenchmarkRDMAGet(b *testing.B) {
	for _, mode := range []client.Mode{client.ModeOff, client.ModeRequire} {
		for _, size := range []int{4 << 10, 1 << 20, 16 << 20} {
			b.Run(fmt.Sprintf("%s/%d", mode, size), func(b *testing.B) {
				r := newRig(b, client.Config{Mode: mode})
				mem := registered(b, r.Client, size)
				if _, err := r.Put(context.Background(), "bucket", "k", mem, client.PutOptions{}); err != nil {
					b.Fatal(err)
				}
				b.ReportAllocs()
				b.SetBytes(int64(size))
				for b.Loop() {
					if _, err := r.GetBuffer(context.Background(), "bucket", "k", mem, client.GetOptions{NoVerify: true}); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
