package server

import (
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// limitedListener has at most cap(slots) accepted connections open; further ones wait in the
// kernel's queue. Connections are handed on as they are, so that net/http keeps its short cuts for
// TCP; the http.Server gives slots back through its ConnState hook.
type limitedListener struct {
	net.Listener
	slots  chan struct{}
	once   sync.Once
	closed chan struct{}
}

func limitConnections(l net.Listener, n int) *limitedListener {
	return &limitedListener{Listener: l, slots: make(chan struct{}, n), closed: make(chan struct{})}
}

// Accept implements net.Listener.
func (l *limitedListener) Accept() (net.Conn, error) {
	select {
	case l.slots <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	conn, err := l.Listener.Accept()
	if err != nil {
		<-l.slots
	}
	return conn, err
}

// Close implements net.Listener.
func (l *limitedListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// state is the ConnState hook of the server that accepts from l.
func (l *limitedListener) state(_ net.Conn, s http.ConnState) {
	if s == http.StateClosed || s == http.StateHijacked {
		<-l.slots
	}
}

// requests counts the handlers that run, so that a stop can wait for them.
type requests struct {
	next    http.Handler
	running atomic.Int64
}

// ServeHTTP implements http.Handler.
func (r *requests) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.running.Add(1)
	defer r.running.Add(-1)
	r.next.ServeHTTP(w, req)
}

// wait tells whether all handlers have returned within the limit.
func (r *requests) wait(limit time.Duration) bool {
	const step = 5 * time.Millisecond
	for waited := time.Duration(0); r.running.Load() > 0; waited += step {
		if waited >= limit {
			return false
		}
		time.Sleep(step)
	}
	return true
}
