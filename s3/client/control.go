package client

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// controls keeps the connections for requests whose bytes go by RDMA. Such a request and its answer are a
// few hundred bytes, so one goroutine writes the one and reads the other: that costs half of what http.Transport
// does, which is made for bodies and has three goroutines at work.
type controls struct {
	mu   sync.Mutex
	idle []*control // the one used last is at the end
}

const (
	maxIdleControls = 256
	controlIdle     = 60 * time.Second
	controlBuffer   = 4 << 10
)

// control is one such connection.
type control struct {
	net.Conn
	in    *bufio.Reader
	out   []byte
	since time.Time // idle
}

// take returns an idle connection, or nil.
func (p *controls) take() *control {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.idle)
	if n == 0 {
		return nil
	}
	conn := p.idle[n-1]
	if time.Since(conn.since) > controlIdle { // and so are all before it
		p.drop()
		return nil
	}
	p.idle[n-1] = nil
	p.idle = p.idle[:n-1]
	return conn
}

func (p *controls) put(conn *control) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.idle) == maxIdleControls {
		_ = conn.Close()
		return
	}
	conn.since = time.Now()
	p.idle = append(p.idle, conn)
}

// drop closes all idle connections. The caller holds p.mu.
func (p *controls) drop() {
	for _, conn := range p.idle {
		_ = conn.Close()
	}
	p.idle = nil
}

func (p *controls) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop()
}

// errStale marks an idle connection that turned out to be dead before anything of an answer had come.
var errStale = errors.New("idle connection is dead")

// roundTrip sends a request that has no body. The body of the answer must be closed.
func (c *Client) roundTrip(req *http.Request) (*http.Response, error) {
	ctx := req.Context()
	for {
		conn := c.controls.take()
		reused := conn != nil
		if !reused {
			var err error
			if conn, err = c.newControl(ctx); err != nil {
				return nil, err
			}
		}
		resp, err := conn.exchange(ctx, req, &c.controls)
		if err == nil {
			return resp, nil
		}
		_ = conn.Close()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if !reused || !errors.Is(err, errStale) {
			return nil, err
		}
	}
}

func (c *Client) newControl(ctx context.Context) (*control, error) {
	conn, err := c.dial(ctx, "tcp", c.address())
	if err == nil && c.base.Scheme == "https" {
		config := &tls.Config{MinVersion: tls.VersionTLS12}
		if c.tls != nil {
			config = c.tls.Clone()
		}
		if config.ServerName == "" {
			config.ServerName = c.base.Hostname()
		}
		secure := tls.Client(conn, config)
		shake, cancel := context.WithTimeout(ctx, tlsTimeout)
		defer cancel()
		if err = secure.HandshakeContext(shake); err != nil {
			_ = conn.Close()
		}
		conn = secure
	}
	if err != nil {
		return nil, err
	}
	return &control{Conn: conn, in: bufio.NewReaderSize(conn, controlBuffer)}, nil
}

// address is "host:port" of the endpoint.
func (c *Client) address() string {
	if c.base.Port() == "" {
		return net.JoinHostPort(c.base.Hostname(), c.base.Scheme) // "http" and "https" are names of ports
	}
	return c.base.Host
}

// exchange writes the request and reads the header of the answer.
func (conn *control) exchange(ctx context.Context, req *http.Request, home *controls) (*http.Response, error) {
	if err := conn.compose(req); err != nil {
		return nil, err
	}
	stop := func() bool { return true }
	if ctx.Done() != nil {
		stop = context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	}
	_, err := conn.Write(conn.out)
	if err == nil {
		_, err = conn.in.Peek(1)
	}
	if err != nil {
		stop()
		return nil, fmt.Errorf("%w: %w", errStale, err)
	}
	var resp *http.Response
	for resp == nil || resp.StatusCode/100 == 1 {
		if resp, err = http.ReadResponse(conn.in, req); err != nil {
			stop()
			return nil, err
		}
	}
	resp.Body = &controlBody{body: resp.Body, conn: conn, home: home, stop: stop, last: resp.Close}
	return resp, nil
}

// compose puts the request into conn.out.
func (conn *control) compose(req *http.Request) error {
	b := append(conn.out[:0], req.Method...)
	b = append(b, ' ')
	b = append(b, req.URL.RequestURI()...)
	b = append(b, " HTTP/1.1\r\nHost: "...)
	b = append(b, req.Host...)
	if req.Method != http.MethodGet {
		b = append(b, "\r\nContent-Length: 0"...)
	}
	for name, values := range req.Header {
		for _, value := range values {
			if !fieldText(name, true) || !fieldText(value, false) {
				return fmt.Errorf("header %q: %q can't be sent", name, value)
			}
			b = append(b, "\r\n"...)
			b = append(b, name...)
			b = append(b, ": "...)
			b = append(b, value...)
		}
	}
	conn.out = append(b, "\r\n\r\n"...)
	return nil
}

// fieldText tells whether text can be the name, or the value, of a header (RFC 9110 §5).
func fieldText(text string, name bool) bool {
	for i := range len(text) {
		switch ch := text[i]; {
		case ch < ' ' && ch != '\t' || ch == 0x7f:
			return false
		case name && (ch <= ' ' || ch >= 0x80 || ch == ':'):
			return false
		}
	}
	return !name || text != ""
}

// controlBody is the body of an answer. Its end frees the connection for the next request.
type controlBody struct {
	body io.ReadCloser
	conn *control
	home *controls
	stop func() bool
	last bool // the connection ends with this answer
	end  bool
}

// Read implements io.Reader.
func (b *controlBody) Read(p []byte) (int, error) {
	n, err := b.body.Read(p)
	b.end = b.end || err == io.EOF
	return n, err
}

// Close implements io.Closer.
func (b *controlBody) Close() error {
	if b.conn == nil {
		return nil
	}
	conn := b.conn
	b.conn = nil
	if idle := b.stop(); !idle || !b.end || b.last || conn.in.Buffered() > 0 {
		return conn.Close()
	}
	b.home.put(conn)
	return nil
}
