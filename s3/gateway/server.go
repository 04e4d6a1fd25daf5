package gateway

import (
	"container/list"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

// The limits of the HTTP server that NewServer makes.
const (
	// HeaderTimeout is how long a client may take for the head of a request.
	HeaderTimeout = 15 * time.Second
	// IdleTimeout is how long a connection may wait for its next request.
	IdleTimeout = 2 * time.Minute
	// MaxHeaderBytes bounds the head of a request. net/http answers 431 to a longer one.
	MaxHeaderBytes = 32 << 10
	// DefaultStall is a sane Limits.Stall.
	DefaultStall = 30 * time.Second
	// DefaultConnections is a sane limit for NewServer.
	DefaultConnections = 8192
)

// Server is an HTTP server with limits on what clients may hold.
type Server struct {
	*http.Server
	connections *connections
}

// NewServer returns a server that has at most maxConnections open (0: DefaultConnections). When it
// needs room for a new one, it closes the one that has been idle longest.
func NewServer(h http.Handler, maxConnections int, log *slog.Logger) *Server {
	if maxConnections <= 0 {
		maxConnections = DefaultConnections
	}
	c := &connections{limit: maxConnections, open: map[net.Conn]*list.Element{}}
	c.room.L = &c.mu
	s := &http.Server{
		Handler: h, ReadHeaderTimeout: HeaderTimeout, IdleTimeout: IdleTimeout, MaxHeaderBytes: MaxHeaderBytes,
		ConnState: c.changed,
	}
	if log != nil {
		s.ErrorLog = slog.NewLogLogger(log.Handler(), slog.LevelDebug)
	}
	return &Server{Server: s, connections: c}
}

// Serve serves the connections that l accepts, as http.Server.Serve does.
func (s *Server) Serve(l net.Listener) error { return s.Server.Serve(s.limit(l)) }

// ServeTLS is Serve with TLS, as http.Server.ServeTLS.
func (s *Server) ServeTLS(l net.Listener, certFile, keyFile string) error {
	return s.Server.ServeTLS(s.limit(l), certFile, keyFile)
}

func (s *Server) limit(l net.Listener) net.Listener {
	return &limitedListener{Listener: l, connections: s.connections}
}

// connections knows the open connections of a server, and which of them are idle.
type connections struct {
	limit int

	mu     sync.Mutex
	room   sync.Cond                  // there may be room for another connection
	open   map[net.Conn]*list.Element // nil: not idle
	idle   list.List                  // of net.Conn, the longest idle first
	closed bool                       // no more are accepted
}

// changed is http.Server.ConnState. A connection that has sent nothing yet counts as idle.
func (c *connections) changed(conn net.Conn, state http.ConnState) {
	if t, ok := conn.(interface{ NetConn() net.Conn }); ok { // TLS
		conn = t.NetConn()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	element, known := c.open[conn]
	if !known {
		return
	}
	switch state {
	case http.StateNew, http.StateIdle:
		if element == nil {
			c.open[conn] = c.idle.PushBack(conn)
			c.room.Signal()
		}
	case http.StateActive:
		if element != nil {
			c.idle.Remove(element)
			c.open[conn] = nil
		}
	case http.StateClosed, http.StateHijacked:
		c.drop(conn)
	}
}

// drop forgets a connection. The mutex is held.
func (c *connections) drop(conn net.Conn) {
	if element := c.open[conn]; element != nil {
		c.idle.Remove(element)
	}
	delete(c.open, conn)
	c.room.Signal()
}

// wait returns once there is room for a connection, having made it if need be.
func (c *connections) wait() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.open) >= c.limit && !c.closed {
		if oldest := c.idle.Front(); oldest != nil {
			conn := oldest.Value.(net.Conn)
			c.drop(conn)
			_ = conn.Close() // its reader sees that
			continue
		}
		c.room.Wait()
	}
}

type limitedListener struct {
	net.Listener
	connections *connections
}

// Accept waits for a connection, and then for room for it.
func (l *limitedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.connections.wait()
	l.connections.mu.Lock()
	l.connections.open[conn] = nil
	l.connections.mu.Unlock()
	return conn, nil
}

// Close stops accepting.
func (l *limitedListener) Close() error {
	l.connections.mu.Lock()
	l.connections.closed = true
	l.connections.room.Broadcast()
	l.connections.mu.Unlock()
	return l.Listener.Close()
}
