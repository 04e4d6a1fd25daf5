package rdma_test

import (
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"

	"github.com/millrace/millrace/verbs"
)

// proxy stands between the server and a host, and lets a number of bytes through towards the host.
type proxy struct {
	listener net.Listener
	to       string
	limit    int64
	cut      bool          // close the connections after that, instead of holding everything up
	held     chan struct{} // closed when the limit is reached

	mu    sync.Mutex
	conns []net.Conn
	once  sync.Once
}

// newProxy returns a proxy, and makes the host's tokens name it.
func newProxy(t *testing.T, h *host, limit int64, cut bool) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	to := netip.AddrPortFrom(h.at.Addr(), uint16(h.at.QPN)).String()
	p := &proxy{listener: l, to: to, limit: limit, cut: cut, held: make(chan struct{})}
	h.at = verbs.EndpointAt(l.Addr().(*net.TCPAddr).AddrPort())
	go p.run()
	t.Cleanup(p.close)
	return p
}

func (p *proxy) run() {
	for {
		in, err := p.listener.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", p.to)
		if err != nil {
			in.Close()
			continue
		}
		p.mu.Lock()
		p.conns = append(p.conns, in, out)
		p.mu.Unlock()
		go func() {
			_, _ = io.CopyN(out, in, p.limit)
			p.once.Do(func() { close(p.held) })
			if p.cut {
				in.Close()
				out.Close()
			}
		}()
		go func() {
			_, _ = io.Copy(in, out)
			in.Close()
		}()
	}
}

// close ends everything.
func (p *proxy) close() {
	p.listener.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		c.Close()
	}
}
