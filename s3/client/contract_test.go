package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/verbs"
	"github.com/millrace/millrace/verbs/iwarp"
	"github.com/millrace/millrace/verbs/token"
)

// peer answers to tokens as a test wants, and to requests without one like any server.
type peer struct {
	t      *testing.T
	device verbs.Device
	mem    []byte
	answer func(p *peer, w http.ResponseWriter, r *http.Request, window verbs.Window)

	mu     sync.Mutex
	tokens []string
	stored []byte
}

func newPeer(
	t *testing.T, answer func(p *peer, w http.ResponseWriter, r *http.Request, window verbs.Window),
) *peer {
	p := &peer{t: t, device: iwarp.Open(iwarp.Config{}), mem: bytes.Repeat([]byte{'x'}, 100), answer: answer}
	t.Cleanup(func() { _ = p.device.Close() })
	if _, err := p.device.Register(p.mem); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *peer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch text := r.Header.Get(headerRDMAToken); {
	case text == "?":
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, "<Error><Code>InvalidRDMAToken</Code></Error>")
	case text != "":
		p.mu.Lock()
		p.tokens = append(p.tokens, text)
		p.mu.Unlock()
		parsed, err := token.Parse(text)
		if err != nil || !strings.Contains(r.Header.Get("Authorization"), "x-amz-rdma-token") {
			p.t.Errorf("token %q, %v, signed by %q", text, err, r.Header.Get("Authorization"))
		}
		if hash := r.Header.Get("X-Amz-Content-Sha256"); hash != "UNSIGNED-PAYLOAD" || r.ContentLength != 0 {
			p.t.Errorf("request with a token: x-amz-content-sha256 %q, %d bytes of body", hash, r.ContentLength)
		}
		p.answer(p, w, r, verbs.WindowOf(parsed))
	case r.Method == http.MethodPut:
		p.stored, _ = io.ReadAll(r.Body)
		w.Header().Set("Etag", `"http"`)
	default:
		w.Header().Set("Etag", `"http"`)
		_, _ = w.Write(p.mem)
	}
}

// write writes n bytes into the window.
func (p *peer) write(window verbs.Window, n int) error {
	conn, err := p.device.Dial(context.Background(), window.Endpoint, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	return verbs.NewRequester(p.device.Info(), 1).Write(context.Background(), conn, window, 0, [][]byte{p.mem[:n]}, false)
}

// clientOf returns a client of the peer, and 100 bytes of registered memory.
func (p *peer) clientOf(mode Mode) (*Client, []byte) {
	c := against(p.t, p.ServeHTTP)
	c.path.mode = mode
	mem := make([]byte, 100)
	if _, err := c.Register(mem); err != nil {
		p.t.Fatal(err)
	}
	return c, mem
}

// TestRDMAContract: only an answer that is right in everything is a success.
func TestRDMAContract(t *testing.T) {
	type headers map[string]string
	good := headers{"reply": "200", "moved": "100", "etag": `"e"`}
	with := func(name, value string) headers {
		h := headers{name: value}
		for k, v := range good {
			if _, ok := h[k]; !ok {
				h[k] = v
			}
		}
		return h
	}
	for _, tc := range []struct {
		name   string
		status int
		h      headers
		body   string
		put    string // the error, or "" for success
		get    string
		tries  int
	}{
		{name: "good", status: 200, h: good, tries: 1},
		{name: "no ETag", status: 200, h: with("etag", ""), put: `ETag ""`, tries: 2},
		{name: "no reply", status: 200, h: with("reply", ""), put: "did not answer", get: "did not answer", tries: 1},
		{name: "declined", status: 200, h: with("reply", "501"), put: "declined", get: "declined", tries: 1},
		{name: "another reply", status: 200, h: with("reply", "206"), put: `reply "206"`, get: `reply "206"`, tries: 2},
		{name: "another status", status: 206, h: with("reply", "206"), put: "status 206", get: "status 206", tries: 2},
		{name: "no bytes", status: 200, h: with("moved", ""), put: `transferred ""`, get: `transferred ""`, tries: 2},
		{name: "more bytes", status: 200, h: with("moved", "101"), put: `"101"`, get: `"101"`, tries: 2},
		{name: "fewer bytes", status: 200, h: with("moved", "99"), put: "99 bytes of 100", tries: 2},
		{name: "body", status: 200, h: good, body: "x", put: "has a body", get: "has a body", tries: 2},
		{name: "failed", status: 500, h: good, put: "HTTP500", get: "HTTP500", tries: 2},
		{name: "not implemented", status: 501, h: headers{}, put: "HTTP501", get: "HTTP501", tries: 1},
	} {
		for _, mode := range []Mode{ModeRequire, ModeAuto} {
			p := newPeer(t, func(p *peer, w http.ResponseWriter, r *http.Request, _ verbs.Window) {
				for name, key := range map[string]string{"reply": headerRDMAReply, "moved": headerRDMABytes, "etag": "Etag"} {
					if v := tc.h[name]; v != "" {
						w.Header().Set(key, v)
					}
				}
				w.WriteHeader(tc.status)
				fmt.Fprint(w, tc.body)
			})
			c, mem := p.clientOf(mode)
			put, putErr := c.Put(context.Background(), "b", "k", mem, PutOptions{NoChecksum: true})
			p.expect(tc.name+": Put", mode, put.Transfer, putErr, tc.put, tc.tries)
			if fell := tc.put != "" && mode == ModeAuto; fell && (put.ETag != "http" || len(p.stored) != 100) {
				t.Errorf("%s: Put() = %+v and %d bytes; want 100 by HTTP", tc.name, put, len(p.stored))
			}
			c, mem = p.clientOf(mode)
			tries := tc.tries
			if tc.get == "" {
				tries = 1
			}
			got, getErr := c.GetBuffer(context.Background(), "b", "k", mem, GetOptions{})
			p.expect(tc.name+": GetBuffer", mode, got.Transfer, getErr, tc.get, tries)
			if fell := tc.get != "" && mode == ModeAuto; fell && (got.Info.ETag != "http" || !bytes.Equal(mem, p.mem)) {
				t.Errorf("%s: GetBuffer() = %+v; want 100 bytes by HTTP", tc.name, got)
			}
		}
	}
}

// expect judges a call, and wants so many tokens, all of them different.
func (p *peer) expect(name string, mode Mode, got Transfer, err error, want string, tries int) {
	p.t.Helper()
	switch {
	case want == "":
		if err != nil || got.Transport != TransportRDMA {
			p.t.Errorf("%s, %s = %+v, %v; want RDMA", name, mode, got, err)
		}
	case mode == ModeRequire:
		if !errors.Is(err, ErrNoRDMA) || !strings.Contains(err.Error(), want) {
			p.t.Errorf("%s, %s = %v; want ErrNoRDMA with %q", name, mode, err, want)
		}
	case err != nil || got.Transport != TransportHTTP || !strings.Contains(got.Reason, want):
		p.t.Errorf("%s, %s = %+v, %v; want HTTP because of %q", name, mode, got, err, want)
	}
	seen := map[string]bool{}
	for _, token := range p.tokens {
		seen[token] = true
	}
	if len(seen) != tries || len(p.tokens) != tries {
		p.t.Errorf("%s, %s: %d tokens, %d different ones; want %d", name, mode, len(p.tokens), len(seen), tries)
	}
	p.tokens = nil
}

// TestRDMARangeContract: the bytes moved must be those of the range.
func TestRDMARangeContract(t *testing.T) {
	for _, tc := range []struct {
		status             int
		reply, moved, span string
		ok                 bool
	}{
		{206, "206", "20", "bytes 10-29/100", true},
		{206, "206", "20", "bytes 10-29/30", true},
		{206, "206", "15", "bytes 10-24/25", true}, // the object ends there
		{200, "200", "20", "bytes 10-29/100", false},
		{206, "200", "20", "bytes 10-29/100", false},
		{206, "206", "19", "bytes 10-29/100", false},
		{206, "206", "19", "bytes 10-28/100", false},
		{206, "206", "20", "bytes 11-30/100", false},
		{206, "206", "20", "", false},
	} {
		p := newPeer(t, func(p *peer, w http.ResponseWriter, _ *http.Request, _ verbs.Window) {
			for k, v := range map[string]string{headerRDMAReply: tc.reply, headerRDMABytes: tc.moved, "Content-Range": tc.span} {
				w.Header().Set(k, v)
			}
			w.WriteHeader(tc.status)
		})
		c, mem := p.clientOf(ModeRequire)
		got, err := c.GetBuffer(context.Background(), "b", "k", mem, GetOptions{Offset: 10, Length: 20})
		if (err == nil) != tc.ok {
			t.Errorf("%+v: GetBuffer() = %+v, %v; want success %v", tc, got, err, tc.ok)
		}
	}
}

// TestRDMAIgnored: a server that has never heard of tokens is not made to store an empty object.
func TestRDMAIgnored(t *testing.T) {
	for _, mode := range []Mode{ModeAuto, ModeRequire} {
		var empty, whole int
		c := against(t, func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			switch {
			case r.URL.Query().Has("uploadId"):
				w.WriteHeader(http.StatusNotFound)
				fmt.Fprint(w, "<Error><Code>NoSuchUpload</Code></Error>")
				return
			case len(body) == 0:
				empty++
			default:
				whole++
			}
			w.Header().Set("Etag", `"e"`)
		})
		c.path.mode = mode
		mem := make([]byte, 100)
		if _, err := c.Register(mem); err != nil {
			t.Fatal(err)
		}
		_, err := c.Put(context.Background(), "b", "k", mem, PutOptions{})
		if mode == ModeRequire && !errors.Is(err, ErrNoRDMA) || mode == ModeAuto && err != nil {
			t.Errorf("%s: Put() = %v", mode, err)
		}
		if want := map[Mode]int{ModeAuto: 1}[mode]; empty != 0 || whole != want {
			t.Errorf("%s: %d empty and %d whole objects; want 0 and %d", mode, empty, whole, want)
		}
	}
}

// TestRDMACancel: when a call that was cancelled has returned, the server can't reach the memory any more.
func TestRDMACancel(t *testing.T) {
	asked, goOn, done := make(chan struct{}), make(chan struct{}), make(chan error)
	p := newPeer(t, func(p *peer, _ http.ResponseWriter, _ *http.Request, window verbs.Window) {
		if err := p.write(window, 1); err != nil {
			t.Errorf("write while the call is there: %v", err)
		}
		close(asked)
		<-goOn
		done <- p.write(window, 100)
	})
	c, mem := p.clientOf(ModeAuto)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-asked
		cancel()
	}()
	if _, err := c.GetBuffer(ctx, "b", "k", mem, GetOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("GetBuffer() = %v; want Canceled", err)
	}
	clear(mem)
	close(goOn)
	if err := <-done; !errors.Is(err, verbs.ErrAccess) {
		t.Errorf("write after the call = %v; want ErrAccess", err)
	}
	if !bytes.Equal(mem, make([]byte, 100)) {
		t.Error("the memory was written to after the call")
	}
}

// TestRDMARevokesAfterSuccess: a token is good for one request.
func TestRDMARevokesAfterSuccess(t *testing.T) {
	var last verbs.Window
	p := newPeer(t, func(p *peer, w http.ResponseWriter, _ *http.Request, window verbs.Window) {
		last = window
		if err := p.write(window, 100); err != nil {
			t.Error(err)
		}
		w.Header().Set(headerRDMAReply, "200")
		w.Header().Set(headerRDMABytes, "100")
	})
	c, mem := p.clientOf(ModeRequire)
	if _, err := c.GetBuffer(context.Background(), "b", "k", mem, GetOptions{}); err != nil || !bytes.Equal(mem, p.mem) {
		t.Fatalf("GetBuffer() = %v; want the bytes", err)
	}
	clear(mem)
	if err := p.write(last, 100); !errors.Is(err, verbs.ErrAccess) || mem[0] != 0 {
		t.Errorf("write with the old token = %v; want ErrAccess", err)
	}
}

func TestPool(t *testing.T) {
	p, err := newPool(4 * poolUnit)
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	var bufs [][]byte
	for range 4 {
		buf, err := p.take(ctx, poolUnit)
		if err != nil {
			t.Fatal(err)
		}
		bufs = append(bufs, buf)
	}
	if p.try(1) != nil {
		t.Error("try(1) of a full pool gave a buffer")
	}
	if _, err := p.take(ctx, 5*poolUnit); err == nil {
		t.Error("take of more than the pool: no error")
	}
	short, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	if _, err := p.take(short, 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("take from a full pool = %v; want DeadlineExceeded", err)
	}
	got := make(chan []byte)
	go func() {
		buf, _ := p.take(ctx, 2*poolUnit-7)
		got <- buf
	}()
	for _, i := range []int{0, 2, 1, 3} { // no two neighbours are free before 1 is back
		p.give(bufs[i])
	}
	if buf := <-got; len(buf) != 2*poolUnit-7 {
		t.Errorf("take gave %d bytes", len(buf))
	} else {
		p.give(buf)
	}
	if len(p.free) != 1 || p.free[0] != (extent{0, 4 * poolUnit}) {
		t.Errorf("free = %v; want all in one", p.free)
	}
	p.close()
	if _, err := p.take(ctx, 1); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("take from a closed pool = %v; want ErrClosed", err)
	}
}

func FuzzContentRange(f *testing.F) {
	f.Add("bytes 0-9/10")
	f.Add("bytes 5-4/10")
	f.Fuzz(func(t *testing.T, text string) {
		first, last, total, ok := parseContentRange(text)
		if ok && (first < 0 || last < first || total <= last) {
			t.Errorf("parseContentRange(%q) = %d-%d/%d", text, first, last, total)
		}
	})
}

// TestRDMABytesAreAwaited: where the server leaves the fence to the client, its answer is not the end, and a call that is
// given up gives the memory back.
func TestRDMABytesAreAwaited(t *testing.T) {
	for _, late := range []bool{true, false} {
		p := newPeer(t, func(p *peer, w http.ResponseWriter, r *http.Request, window verbs.Window) {
			if r.Header.Get(headerRDMAFence) != "client" || !strings.Contains(r.Header.Get("Authorization"), "x-millrace-rdma-fence") {
				t.Errorf("GET with %v; want the fence offered, and signed", r.Header)
			}
			send := func() { time.Sleep(20 * time.Millisecond); _ = p.write(window, 100) }
			if late {
				go send()
			}
			w.Header()["Etag"] = []string{`"e"`}
			w.Header().Set(headerRDMAReply, "200")
			w.Header().Set(headerRDMABytes, "100")
			w.Header().Set(headerRDMAFence, "client")
		})
		c, mem := p.clientOf(ModeRequire)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		got, err := c.GetBuffer(ctx, "b", "k", mem, GetOptions{})
		cancel()
		switch {
		case late && (err != nil || !bytes.Equal(mem, p.mem) || got.RDMABytes != 100):
			t.Errorf("GetBuffer() = %+v, %v before the bytes were there", got, err)
		case !late && !errors.Is(err, context.DeadlineExceeded):
			t.Errorf("GetBuffer() of bytes that don't come = %+v, %v; want it given up", got, err)
		}
	}
}
