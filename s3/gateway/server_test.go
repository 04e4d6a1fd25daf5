package gateway

import (
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// TestConnectionLimit opens more connections than there may be: the idle ones make room, the busy
// ones don't.
func TestConnectionLimit(t *testing.T) {
	release := make(chan struct{})
	inHandler := make(chan struct{}, 10)
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			inHandler <- struct{}{}
			<-release
		}
		w.WriteHeader(http.StatusNoContent)
	})
	const limit = 3
	server := NewServer(h, limit, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	dial := func(request string) net.Conn {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		_, _ = io.WriteString(conn, request)
		return conn
	}
	answered := func(conn net.Conn, wait time.Duration) bool {
		_ = conn.SetReadDeadline(time.Now().Add(wait))
		var one [1]byte
		n, _ := conn.Read(one[:])
		return n == 1
	}
	const quick, slow = "GET / HTTP/1.1\r\nHost: h\r\n\r\n", "GET /slow HTTP/1.1\r\nHost: h\r\n\r\n"
	for range 20 { // connections that send nothing
		dial("")
	}
	for range 10 {
		if !answered(dial(quick), 5*time.Second) {
			t.Fatal("no answer while idle connections fill the server")
		}
	}
	for range limit {
		dial(slow)
		<-inHandler
	}
	waiting := dial(quick)
	if answered(waiting, 100*time.Millisecond) {
		t.Error("an answer while busy connections fill the server")
	}
	close(release)
	if !answered(waiting, 5*time.Second) {
		t.Error("no answer after the busy connections were done")
	}
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-served; err != http.ErrServerClosed {
		t.Errorf("Serve = %v; want ErrServerClosed", err)
	}
	server.connections.mu.Lock()
	defer server.connections.mu.Unlock()
	if n := server.connections.idle.Len(); n > limit {
		t.Errorf("%d idle connections are remembered; want at most %d", n, limit)
	}
}

// TestCloseWhileFull closes a server whose listener waits for room.
func TestCloseWhileFull(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	entered := make(chan struct{}, 1)
	server := NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		entered <- struct{}{}
		<-release
	}), 1, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	for range 2 {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
	}
	<-entered
	_ = server.Close()
	select {
	case <-served:
	case <-time.After(5 * time.Second):
		t.Fatal("Serve does not return after Close")
	}
}
