package ibverbs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/millrace/millrace/verbs"
)

// listener accepts connections of one TCP port.
type listener struct {
	dev    *Device
	tcp    *net.TCPListener
	accept func(verbs.Conn)

	mu     sync.Mutex
	closed bool
	byAddr map[netip.Addr]int
	done   chan struct{}
	slots  chan struct{} // one for each handshake
}

// Listen accepts connections at addr, whose address must be one of the RDMA port, or unspecified. Port 0 takes a
// free one.
func (d *Device) Listen(addr netip.AddrPort, accept func(verbs.Conn)) (verbs.Listener, error) {
	if err := d.Err(); errors.Is(err, verbs.ErrClosed) {
		return nil, d.failed("listen", err)
	}
	if !addr.Addr().IsUnspecified() {
		if _, err := d.gidFor(addr.Addr()); err != nil {
			return nil, d.failed("listen", err)
		}
	}
	network := "tcp4"
	if addr.Addr().Is6() && !addr.Addr().Is4In6() {
		network = "tcp" // an unspecified IPv6 address takes IPv4 too
	}
	tcp, err := net.ListenTCP(network, net.TCPAddrFromAddrPort(addr))
	if err != nil {
		return nil, d.failed("listen", err)
	}
	l := &listener{
		dev: d, tcp: tcp, accept: accept, byAddr: map[netip.Addr]int{}, done: make(chan struct{}),
		slots: make(chan struct{}, d.cfg.MaxHandshakes),
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		_ = tcp.Close()
		return nil, d.failed("listen", verbs.ErrClosed)
	}
	d.listeners[l] = struct{}{}
	d.tasks.Go(l.run)
	return l, nil
}

// Endpoint is where peers dial.
func (l *listener) Endpoint() verbs.Endpoint {
	at := l.tcp.Addr().(*net.TCPAddr).AddrPort()
	return verbs.Endpoint{GID: at.Addr().WithZone("").As16(), QPN: uint32(at.Port()), LID: verbs.LIDRC}
}

// Close stops accepting. Connections go on.
func (l *listener) Close() error {
	l.mu.Lock()
	was := l.closed
	l.closed = true
	l.mu.Unlock()
	if !was {
		_ = l.tcp.Close()
		l.dev.mu.Lock()
		delete(l.dev.listeners, l)
		l.dev.mu.Unlock()
	}
	<-l.done
	return nil
}

func (l *listener) run() {
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
		l.dev.tasks.Go(func() { l.handshake(tcp, from) })
	}
}

func (l *listener) admit(from netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byAddr[from] >= l.dev.cfg.MaxConnsPerAddr || l.dev.reserve() != nil {
		return false
	}
	l.byAddr[from]++
	return true
}

func (l *listener) dismiss(from netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byAddr[from]--; l.byAddr[from] == 0 {
		delete(l.byAddr, from)
	}
}

func (l *listener) handshake(tcp *net.TCPConn, from netip.Addr) {
	d := l.dev
	_ = tcp.SetKeepAliveConfig(keepAlive())
	_ = tcp.SetDeadline(time.Now().Add(d.cfg.StartTimeout))
	stop := context.AfterFunc(d.life, func() { _ = tcp.Close() })
	c, err := l.respond(tcp, from)
	stop()
	<-l.slots
	if err != nil {
		l.dismiss(from)
		_ = tcp.Close()
		return
	}
	c.start(tcp)
	if l.accept != nil {
		l.accept(c)
	}
}

// respond answers a request, and waits until the peer is ready. What was booked for the connection is the
// connection's, or on error given back.
func (l *listener) respond(tcp *net.TCPConn, from netip.Addr) (*conn, error) {
	d := l.dev
	s, got, err := d.answer(tcp)
	if err != nil {
		d.unreserve()
		return nil, err
	}
	peer := verbs.Peer{Addr: netip.AddrPortFrom(from, tcp.RemoteAddr().(*net.TCPAddr).AddrPort().Port()), Private: got.data}
	c, err := s.connect(got.rc, d.agree(&got), peer, func() { l.dismiss(from) })
	if err != nil {
		refuse(tcp, err)
		_ = s.Close()
		return nil, err
	}
	if _, err = tcp.Write(d.frameOf(kindReply, s, nil).append(nil)); err == nil {
		_, err = readFrame(tcp, kindReady)
	}
	if err != nil {
		c.onEnd = func() { d.leave(c) } // the caller dismisses
		go c.run()
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

// answer reads a request and makes the queue pair for it.
func (d *Device) answer(tcp *net.TCPConn) (*setup, frame, error) {
	got, err := readFrame(tcp, kindRequest)
	if err != nil {
		return nil, got, err // who speaks another protocol gets no answer
	}
	// A GID that is not where the request came from would have this side send to a third party.
	peer := tcp.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().WithZone("").As16()
	if got.rc.GID != peer {
		err = fmt.Errorf("the GID is %s, but the request came from %s",
			netip.AddrFrom16(got.rc.GID).Unmap(), netip.AddrFrom16(peer).Unmap())
		refuse(tcp, err)
		return nil, got, err
	}
	gid, err := d.gidFor(tcp.LocalAddr().(*net.TCPAddr).AddrPort().Addr())
	if err == nil {
		var s *setup
		if s, err = d.prepare(gid, true); err == nil {
			return s, got, nil
		}
	}
	refuse(tcp, err)
	return nil, got, err
}

func refuse(tcp *net.TCPConn, why error) {
	text := why.Error()
	f := frame{kind: kindRefusal, data: []byte(text[:min(len(text), verbs.MaxPrivateBytes)])}
	_, _ = tcp.Write(f.append(nil))
}
