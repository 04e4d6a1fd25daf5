package rdma_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/s3/gateway"
	"github.com/millrace/millrace/s3/rdma"
	"github.com/millrace/millrace/s3/sigv4"
	"github.com/millrace/millrace/verbs"
	"github.com/millrace/millrace/verbs/iwarp"
)

// TestUnsigned: a token that is not among the signed headers was perhaps not put there by who signed.
func TestUnsigned(t *testing.T) {
	r := newRig(t, options{})
	r.must("PUT", "/bucket/o", "data")
	h := newHost(t, 4, iwarp.Config{})
	for _, header := range []string{"x-amz-rdma-token", "x-rdma-info"} {
		for _, method := range []string{"GET", "PUT"} {
			req := r.request(method, "/bucket/o", "")
			req.Header.Set(header, h.window(4))
			a := r.send(req)
			expect(t, method+" with unsigned "+header, a, 403, "", "AccessDenied")
			if !strings.Contains(a.body, "<HeadersNotSigned>"+header+"</HeadersNotSigned>") {
				t.Errorf("%s with unsigned %s: %s", method, header, a.body)
			}
			signer := sigv4.Signer{Credential: sigv4.Credential{AccessKey: "AK", SecretKey: "secret"}, Region: region}
			req, _ = http.NewRequest(method, r.server.URL+"/bucket/o", http.NoBody)
			if err := signer.Presign(req, time.Minute, time.Now()); err != nil {
				t.Fatal(err)
			}
			req.Header.Set(header, h.window(4))
			expect(t, "presigned "+method+" with unsigned "+header, r.send(req), 403, "", "AccessDenied")
		}
	}
	if got := r.must("GET", "/bucket/o", ""); got.body != "data" || string(h.memory()) != "\x00\x00\x00\x00" {
		t.Errorf("object %q, memory %q", got.body, h.memory())
	}
}

// TestReplay: a token whose window is closed reaches no memory any more.
func TestReplay(t *testing.T) {
	r := newRig(t, options{})
	h := newHost(t, 100_000, iwarp.Config{})
	data := noise(100_000, 6)
	copy(h.memory(), data)
	token, b := h.bind(100_000)
	put := r.request("PUT", "/bucket/o", "", tokenHeader+token)
	get := r.request("GET", "/bucket/o", "", tokenHeader+token)
	expect(t, "PUT", r.send(put.Clone(context.Background())), 200, "200", "")
	expect(t, "GET", r.send(get.Clone(context.Background())), 200, "200", "")
	expect(t, "GET again, as long as the window is open", r.send(get.Clone(context.Background())), 200, "200", "")
	_ = b.Close()
	clear(h.memory())
	expect(t, "GET replayed", r.send(get.Clone(context.Background())), 500, "500", "RDMATransferFailed")
	expect(t, "PUT replayed", r.send(put.Clone(context.Background())), 500, "500", "RDMATransferFailed")
	if strings.Trim(string(h.memory()), "\x00") != "" {
		t.Error("a replayed GET has written into memory")
	}
	if got := r.must("GET", "/bucket/o", ""); got.body != string(data) {
		t.Error("a replayed PUT has changed the object")
	}
	// The connection was lost to that; the next transfer makes a new one.
	expect(t, "GET with a fresh window", r.do("GET", "/bucket/o", "", tokenHeader+h.window(100_000)), 200, "200", "")
	same(t, "GET", h.memory(), data)
}

// TestDyingClient: a client that dies, or is silent, in mid-transfer gets its failure in time, holds nothing,
// and harms no other.
func TestDyingClient(t *testing.T) {
	const size = 8 << 20
	r := newRig(t, options{gateway: func(c *gateway.Config) { c.Limits.RDMA = time.Second }})
	data := noise(size, 7)
	r.must("PUT", "/bucket/o", string(data))
	other := newHost(t, size, iwarp.Config{})
	for _, cut := range []bool{true, false} {
		for _, method := range []string{"GET", "PUT"} {
			name := fmt.Sprintf("%s, cut %v", method, cut)
			limit := int64(1 << 20)
			if method == "PUT" {
				limit = 100 // of the server's READs
			}
			h := newHost(t, size, iwarp.Config{})
			newProxy(t, h, limit, cut)
			start := time.Now()
			a := r.do(method, "/bucket/"+map[string]string{"GET": "o", "PUT": "p"}[method], "", tokenHeader+h.window(size))
			expect(t, name, a, 500, "500", "RDMATransferFailed")
			if took := time.Since(start); !cut && took < 900*time.Millisecond || took > 15*time.Second {
				t.Errorf("%s took %v", name, took)
			}
			expect(t, "another client's GET", r.do("GET", "/bucket/o", "", tokenHeader+other.window(size)), 200, "200", "")
			if a := r.do("GET", "/bucket/p", ""); a.status != 404 {
				t.Errorf("%s has left an object: %d", name, a.status)
			}
		}
	}
	same(t, "another client's GET", other.memory(), data)
	waitFor(t, "one connection", func() bool { return r.device.Counters().Live == 1 })
}

// waitFor waits until something is so that will be so soon.
func waitFor(t *testing.T, what string, is func() bool) {
	t.Helper()
	for start := time.Now(); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Since(start) > 10*time.Second {
			t.Fatalf("still no %s", what)
		}
	}
}

// TestGivenUp: when the HTTP request is given up, the transfer ends, and nothing is written any more. The
// connection is kept for others where the client still answers.
func TestGivenUp(t *testing.T) {
	const size = 8 << 20
	r := newRig(t, options{})
	r.must("PUT", "/bucket/o", string(noise(size, 8)))
	h := newHost(t, size, iwarp.Config{})
	p := newProxy(t, h, 1<<20, false)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-p.held
		cancel()
	}()
	req := r.request("GET", "/bucket/o", "", tokenHeader+h.window(size)).WithContext(ctx)
	if _, err := r.server.Client().Do(req); !errors.Is(err, context.Canceled) {
		t.Fatalf("GET = %v; want it to be given up", err)
	}
	waitFor(t, "end", func() bool { return r.count() == 3 && r.device.Counters().Live == 0 })
	if e := r.last(); e.Status != 499 || e.Transport != gateway.TransportRDMA {
		t.Errorf("event %+v; want status 499", e)
	}
}

// TestManyTokens: far more requests than may be served, with tokens of a port that accepts and says nothing.
func TestManyTokens(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	r := newRig(t, options{
		rdma:    rdma.Config{MaxTransfers: 4, WaitLimit: 10 * time.Millisecond},
		gateway: func(c *gateway.Config) { c.Limits.RDMA = time.Second },
	})
	r.must("PUT", "/bucket/o", "data")
	good := newHost(t, 4, iwarp.Config{})
	r.must("GET", "/bucket/o", "", tokenHeader+good.window(4))
	h := newHost(t, 4, iwarp.Config{})
	h.at = verbs.EndpointAt(silent.Addr().(*net.TCPAddr).AddrPort())
	token := h.window(4)
	before := runtime.NumGoroutine()
	counts := map[string]int{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			for range 10 {
				a := r.do("PUT", "/bucket/o", "", tokenHeader+token)
				mu.Lock()
				counts[fmt.Sprint(a.status, " ", a.code())]++
				mu.Unlock()
			}
		})
	}
	// Those who have a connection are served meanwhile.
	for range 5 {
		expect(t, "GET of another", r.do("GET", "/bucket/o", "", tokenHeader+good.window(4)), 200, "200", "")
	}
	wg.Wait()
	t.Log(counts)
	if counts["501 RDMANotSupported"]+counts["503 SlowDown"] != 1000 {
		t.Errorf("answers %v; want RDMANotSupported and SlowDown only", counts)
	}
	waitFor(t, "end of all", func() bool {
		r.server.Client().CloseIdleConnections()
		return r.device.Counters().Live == 1 && runtime.NumGoroutine() <= before+10
	})
	expect(t, "GET after all", r.do("GET", "/bucket/o", "", tokenHeader+good.window(4)), 200, "200", "")
	if got := r.must("GET", "/bucket/o", ""); got.body != "data" {
		t.Errorf("the object is %q", got.body)
	}
}

// TestBusy: requests wait for a turn, and then are told to come later.
func TestBusy(t *testing.T) {
	r := newRig(t, options{rdma: rdma.Config{MaxTransfers: 1, WaitLimit: 20 * time.Millisecond}})
	r.must("PUT", "/bucket/o", string(noise(4<<20, 9)))
	slow := newHost(t, 4<<20, iwarp.Config{})
	p := newProxy(t, slow, 1<<20, false)
	token := slow.window(4 << 20)
	var wg sync.WaitGroup
	wg.Go(func() {
		req := r.request("GET", "/bucket/o", "", tokenHeader+token)
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(300*time.Millisecond, cancel)
		_, _ = r.server.Client().Do(req.WithContext(ctx))
	})
	<-p.held
	h := newHost(t, 4<<20, iwarp.Config{})
	a := r.do("GET", "/bucket/o", "", tokenHeader+h.window(4<<20))
	expect(t, "GET while another has its turn", a, 503, "", "SlowDown")
	wg.Wait()
	waitFor(t, "turn", func() bool {
		return r.do("GET", "/bucket/o", "", tokenHeader+h.window(4<<20)).status == 200
	})
}

// session makes a session with the server's listener.
func (h *host) session(to verbs.Endpoint) verbs.Session {
	h.t.Helper()
	s := verbs.Session(noise(16, uint64(to.QPN)+uint64(h.at.QPN)))
	if _, err := h.device.Dial(context.Background(), to, s.Private()); err != nil {
		h.t.Fatal(err)
	}
	h.at = s.Endpoint()
	return s
}

// TestSession: a window is reached through the connection that the client made, by the access key that used
// it first.
func TestSession(t *testing.T) {
	r := newRig(t, options{rdma: rdma.Config{Listen: netip.MustParseAddrPort("127.0.0.1:0")}})
	data := noise(3<<20, 10)
	h := newHost(t, len(data), iwarp.Config{})
	copy(h.memory(), data)
	h.session(r.transport.Endpoint())
	token := h.window(int64(len(data)))
	expect(t, "PUT", r.do("PUT", "/bucket/o", "", tokenHeader+token), 200, "200", "")
	clear(h.memory())
	token = h.window(int64(len(data)))
	a := r.send(r.requestBy("OTHER", "GET", "/bucket/o", "", tokenHeader+token))
	expect(t, "GET by another access key", a, 501, "501", "RDMANotSupported")
	if r.last().Declined != rdma.DeclinedSession || strings.Trim(string(h.memory()), "\x00") != "" {
		t.Errorf("GET by another access key: event %+v", r.last())
	}
	token = h.window(int64(len(data)))
	expect(t, "GET", r.do("GET", "/bucket/o", "", tokenHeader+token), 200, "200", "")
	same(t, "GET", h.memory(), data)
	if n := r.device.Counters().Connections; n != 1 {
		t.Errorf("%d connections were made; want 1", n)
	}
	_ = h.device.Close()
	waitFor(t, "end of the session", func() bool {
		return r.do("GET", "/bucket/o", "", tokenHeader+token).status == 501
	})
}

// TestSessionOfAnotherHost: knowing a session's name is not enough.
func TestSessionOfAnotherHost(t *testing.T) {
	r := newRig(t, options{rdma: rdma.Config{Listen: netip.MustParseAddrPort("127.0.0.1:0")}})
	r.must("PUT", "/bucket/o", "data")
	h := newHost(t, 4, iwarp.Config{})
	h.session(r.transport.Endpoint())
	r.server.Client().Transport.(*http.Transport).DialContext = (&net.Dialer{
		LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)},
	}).DialContext
	r.server.Client().CloseIdleConnections()
	a := r.do("GET", "/bucket/o", "", tokenHeader+h.window(4))
	expect(t, "GET from another host", a, 501, "501", "RDMANotSupported")
	if r.last().Declined != rdma.DeclinedSession {
		t.Errorf("event %+v", r.last())
	}
}
