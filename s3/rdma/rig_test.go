package rdma_test

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/s3/gateway"
	"github.com/millrace/millrace/s3/rdma"
	"github.com/millrace/millrace/s3/sigv4"
	"github.com/millrace/millrace/s3/store"
	"github.com/millrace/millrace/s3/store/memstore"
	"github.com/millrace/millrace/verbs"
	"github.com/millrace/millrace/verbs/iwarp"
)

const region = "us-east-1"

// rig is a gateway with RDMA behind a real HTTP server.
type rig struct {
	t         *testing.T
	server    *httptest.Server
	transport *rdma.Transport
	device    *iwarp.Device
	pairs     verbs.RCDevice // with options.pairs
	keys      map[string]string

	mu     sync.Mutex
	events []gateway.Event
}

// Observe implements gateway.Observer.
func (r *rig) Observe(e gateway.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

// last is what the gateway told of the last request.
func (r *rig) last() gateway.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.events[len(r.events)-1]
}

// count is how many requests are over.
func (r *rig) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.events)
}

type options struct {
	store   store.Store
	rdma    rdma.Config
	gateway func(*gateway.Config)
	pairs   bool // the device has reliable connections whose addresses others exchange
}

func newRig(t *testing.T, o options) *rig {
	t.Helper()
	r := &rig{t: t, keys: map[string]string{"AK": "secret", "OTHER": "secret2"}}
	r.device = iwarp.Open(iwarp.Config{})
	t.Cleanup(func() { _ = r.device.Close() })
	o.rdma.Device = r.device
	if o.pairs {
		r.pairs = pairDevice(t)
		o.rdma.Device, o.rdma.Allow = r.pairs, pairNetworks(t)
		o.rdma.Memory = make([]byte, 16<<20)
	}
	var err error
	if r.transport, err = rdma.New(o.rdma); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.transport.Close(); err != nil {
			t.Errorf("Close() = %v", err)
		}
	})
	if o.store == nil {
		o.store = memstore.New()
	}
	c := gateway.Config{
		Store: o.store, Accounts: gateway.OneAccount{ID: "owner-id", DisplayName: "owner"}, Region: region,
		Verifier: &sigv4.Verifier{Region: region, Lookup: func(_ context.Context, key string) (sigv4.Credential, error) {
			secret, ok := r.keys[key]
			if !ok {
				return sigv4.Credential{}, sigv4.ErrUnknownKey
			}
			return sigv4.Credential{AccessKey: key, SecretKey: secret}, nil
		}},
		RDMA: r.transport, Observer: r, Limits: gateway.Limits{Stall: 10 * time.Second},
	}
	if o.gateway != nil {
		o.gateway(&c)
	}
	r.server = httptest.NewServer(gateway.New(c))
	t.Cleanup(r.server.Close)
	r.must("PUT", "/bucket", "")
	return r
}

type answer struct {
	status int
	header http.Header
	body   string
}

// code is the error code in the body.
func (a answer) code() string {
	_, rest, _ := strings.Cut(a.body, "<Code>")
	code, _, _ := strings.Cut(rest, "</Code>")
	return code
}

func (a answer) message() string {
	_, rest, _ := strings.Cut(a.body, "<Message>")
	m, _, _ := strings.Cut(rest, "</Message>")
	return m
}

// request makes a request that is signed after the headers, lines of name: value, are set.
func (r *rig) request(method, target, body string, headers ...string) *http.Request {
	return r.requestBy("AK", method, target, body, headers...)
}

func (r *rig) requestBy(key, method, target, body string, headers ...string) *http.Request {
	r.t.Helper()
	req, err := http.NewRequest(method, r.server.URL+target, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	if body == "" {
		req.Body = http.NoBody
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Add(name, value)
	}
	r.sign(req, key, sigv4.UnsignedPayload)
	return req
}

func (r *rig) sign(req *http.Request, key, payload string) {
	r.t.Helper()
	signer := sigv4.Signer{Credential: sigv4.Credential{AccessKey: key, SecretKey: r.keys[key]}, Region: region}
	if _, err := signer.Sign(req, payload, time.Now()); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) send(req *http.Request) answer {
	r.t.Helper()
	resp, err := r.server.Client().Do(req)
	if err != nil {
		r.t.Fatalf("%s %s: %v", req.Method, req.URL.Path, err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, string(body)}
}

func (r *rig) do(method, target, body string, headers ...string) answer {
	r.t.Helper()
	return r.send(r.request(method, target, body, headers...))
}

func (r *rig) must(method, target, body string, headers ...string) answer {
	r.t.Helper()
	a := r.do(method, target, body, headers...)
	if a.status >= 300 {
		r.t.Fatalf("%s %s = %d %s", method, target, a.status, a.body)
	}
	return a
}

// host is a client's side of RDMA: a device, with memory that windows are bound in.
type host struct {
	t      *testing.T
	device *iwarp.Device
	region verbs.Region
	at     verbs.Endpoint
	open   []verbs.Binding
}

func newHost(t *testing.T, sizeBytes int, c iwarp.Config) *host {
	t.Helper()
	h := &host{t: t, device: iwarp.Open(c)}
	t.Cleanup(func() { _ = h.device.Close() })
	var err error
	if h.region, err = h.device.Register(make([]byte, sizeBytes)); err != nil {
		t.Fatal(err)
	}
	l, err := h.device.Listen(netip.MustParseAddrPort("127.0.0.1:0"), nil)
	if err != nil {
		t.Fatal(err)
	}
	h.at = l.Endpoint()
	return h
}

// window binds the first n bytes, until memory is called, and returns the token of the window.
func (h *host) window(n int64) string {
	h.t.Helper()
	token, _ := h.bind(n)
	return token
}

func (h *host) bind(n int64) (string, verbs.Binding) {
	h.t.Helper()
	b, err := h.region.Bind(0, n, verbs.RemoteRead|verbs.RemoteWrite)
	if err != nil {
		h.t.Fatal(err)
	}
	t, err := b.Window(h.at).Token()
	if err != nil {
		h.t.Fatal(err)
	}
	h.open = append(h.open, b)
	return t.String(), b
}

// memory closes all windows, so that the memory is the host's alone, and returns it.
func (h *host) memory() []byte {
	for _, b := range h.open {
		_ = b.Close()
	}
	h.open = nil
	return h.region.Bytes()
}

// noise returns n random bytes, the same ones for a seed.
func noise(n int, seed uint64) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	_, _ = r.Read(b)
	return b
}

func same(t *testing.T, what string, got, want []byte) {
	t.Helper()
	if !bytes.Equal(got, want) {
		t.Errorf("%s: %d bytes differ from the %d expected", what, len(got), len(want))
	}
}
