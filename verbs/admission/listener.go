package admission

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/millrace/millrace/verbs"
)

// Handshake makes a connection of a TCP connection that a peer has made, whose deadline is set. The connection has been
// booked: on error the handshake has given that back (Table.Cancel), else it has entered (Table.Enter), and dismiss must
// be called when it has ended.
type Handshake[C Conn] func(tcp *net.TCPConn, dismiss func()) (C, error)

// Listener accepts the TCP connections of one port.
type Listener[C Conn] struct {
	table  *Table[C]
	tcp    *net.TCPListener
	shake  Handshake[C]
	accept func(verbs.Conn)

	mu     sync.Mutex
	closed bool
	byAddr map[netip.Addr]int
	done   chan struct{}
	slots  chan struct{} // one for each handshake
}

// Listen accepts connections at addr. Port 0 takes a free one. accept, if it is not nil, is called with each connection, on
// a goroutine of its own.
func (t *Table[C]) Listen(addr netip.AddrPort, shake Handshake[C], accept func(verbs.Conn)) (*Listener[C], error) {
	network := "tcp4"
	if addr.Addr().Is6() && !addr.Addr().Is4In6() {
		network = "tcp" // an unspecified IPv6 address takes IPv4 too
	}
	tcp, err := net.ListenTCP(network, net.TCPAddrFromAddrPort(addr))
	if err != nil {
		return nil, err
	}
	l := &Listener[C]{
		table: t, tcp: tcp, shake: shake, accept: accept, byAddr: map[netip.Addr]int{}, done: make(chan struct{}),
		slots: make(chan struct{}, t.limits.Handshakes),
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if errors.Is(t.stopped, verbs.ErrClosed) {
		_ = tcp.Close()
		return nil, t.stopped
	}
	t.listeners[l] = struct{}{}
	t.tasks.Go(l.run)
	return l, nil
}

// Addr is where it listens.
func (l *Listener[C]) Addr() netip.AddrPort { return l.tcp.Addr().(*net.TCPAddr).AddrPort() }

// Close stops accepting, and waits for that. Connections go on.
func (l *Listener[C]) Close() error {
	l.mu.Lock()
	was := l.closed
	l.closed = true
	l.mu.Unlock()
	if !was {
		_ = l.tcp.Close()
		l.table.mu.Lock()
		delete(l.table.listeners, l)
		l.table.mu.Unlock()
	}
	<-l.done
	return nil
}

func (l *Listener[C]) run() {
	defer close(l.done)
	for {
		tcp, err := l.tcp.AcceptTCP()
		if err != nil {
			l.mu.Lock()
			closed := l.closed
			l.mu.Unlock()
			if closed || errors.Is(err, net.ErrClosed) {
				return
			}
			time.Sleep(10 * time.Millisecond) // out of files, or the like
			continue
		}
		from := tcp.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
		select {
		case l.slots <- struct{}{}:
		default: // as many handshakes as may be: this one is refused
			_ = tcp.Close()
			continue
		}
		if !l.admit(from) {
			<-l.slots
			_ = tcp.Close()
			continue
		}
		l.table.tasks.Go(func() { l.handshake(tcp, from) })
	}
}

// admit books a connection from an address.
func (l *Listener[C]) admit(from netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byAddr[from] >= l.table.limits.PerAddr || l.table.Reserve() != nil {
		return false
	}
	l.byAddr[from]++
	return true
}

func (l *Listener[C]) dismiss(from netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byAddr[from]--; l.byAddr[from] == 0 {
		delete(l.byAddr, from)
	}
}

func (l *Listener[C]) handshake(tcp *net.TCPConn, from netip.Addr) {
	_ = tcp.SetDeadline(time.Now().Add(l.table.limits.StartTimeout))
	stop := context.AfterFunc(l.table.life, func() { _ = tcp.Close() })
	c, err := l.shake(tcp, func() { l.dismiss(from) })
	stop()
	<-l.slots
	if err != nil {
		l.dismiss(from)
		_ = tcp.Close()
		return
	}
	if l.accept != nil {
		l.accept(c)
	}
}
