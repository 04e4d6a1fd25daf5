package client

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/millrace/millrace/s3/sigv4"
	"github.com/millrace/millrace/verbs"
)

// controlServer answers to tokens as if the bytes had been moved, and to the key "none" with an error. It counts
// connections.
func controlServer(t *testing.T, secure bool) (*httptest.Server, *Client, []byte, *atomic.Int64) {
	t.Helper()
	p := newPeer(t, func(p *peer, w http.ResponseWriter, r *http.Request, window verbs.Window) {
		if strings.HasSuffix(r.URL.Path, "/none") {
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, "<Error><Code>NoSuchKey</Code></Error>")
			return
		}
		if err := p.write(window, 100); err != nil {
			t.Error(err)
		}
		w.Header().Set(headerRDMAReply, "200")
		w.Header().Set(headerRDMABytes, "100")
	})
	server, connections := httptest.NewUnstartedServer(p), new(atomic.Int64)
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	if secure {
		server.StartTLS()
	} else {
		server.Start()
	}
	t.Cleanup(server.Close)
	config := Config{Endpoint: server.URL, Mode: ModeRequire, Credential: sigv4.Credential{AccessKey: "a", SecretKey: "s"}}
	if secure {
		config.TLS = server.Client().Transport.(*http.Transport).TLSClientConfig
	}
	c, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	mem := make([]byte, 100)
	if _, err := c.Register(mem); err != nil {
		t.Fatal(err)
	}
	return server, c, mem, connections
}

// TestControlConnections: one connection does for all requests, also behind errors, and a dead one is replaced.
func TestControlConnections(t *testing.T) {
	ctx := context.Background()
	for _, secure := range []bool{false, true} {
		server, c, mem, connections := controlServer(t, secure)
		get := func() {
			t.Helper()
			if _, err := c.GetBuffer(ctx, "b", "k", mem, GetOptions{}); err != nil {
				t.Errorf("TLS %v: GetBuffer() = %v", secure, err)
			}
			if _, err := c.GetBuffer(ctx, "b", "none", mem, GetOptions{}); Code(err) != "NoSuchKey" {
				t.Errorf("TLS %v: GetBuffer(none) = %v; want NoSuchKey", secure, err)
			}
		}
		for range 3 {
			get()
		}
		if n := connections.Load(); n != 1 {
			t.Errorf("TLS %v: %d connections; want 1", secure, n)
		}
		server.CloseClientConnections()
		get()
		if n := connections.Load(); n != 2 {
			t.Errorf("TLS %v: %d connections after the first was closed; want 2", secure, n)
		}
	}
}

func TestControlRefusesBadHeaders(t *testing.T) {
	_, c, mem, _ := controlServer(t, false)
	for name, value := range map[string]string{"a": "x\r\nX-Evil: 1", "b": "\x00", "a b": "x", "a:b": "x", "a\n": "x"} {
		_, err := c.Put(context.Background(), "b", "k", mem, PutOptions{Metadata: map[string]string{name: value}})
		if err == nil || !strings.Contains(err.Error(), "can't be sent") {
			t.Errorf("Put with metadata %q: %q = %v; want that it can't be sent", name, value, err)
		}
	}
}

func TestControlsDropOldConnections(t *testing.T) {
	var p controls
	a, b := net.Pipe()
	defer b.Close()
	p.put(&control{Conn: a})
	if p.take() == nil || p.take() != nil {
		t.Error("take() of one idle connection: want it, then none")
	}
	conn := &control{Conn: a}
	p.put(conn)
	conn.since = conn.since.Add(-2 * controlIdle)
	if p.take() != nil || len(p.idle) != 0 {
		t.Error("take() gave a connection that was idle for long")
	}
	if _, err := a.Write([]byte("x")); err == nil {
		t.Error("the old connection was not closed")
	}
}
