package ibverbs

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/millrace/millrace/verbs"
	"github.com/millrace/millrace/verbs/admission"
)

// listener accepts connections of one TCP port.
type listener struct {
	*admission.Listener[*conn]
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
	l, err := d.conns.Listen(addr, d.admit, accept)
	if err != nil {
		return nil, d.failed("listen", err)
	}
	return listener{l}, nil
}

// Endpoint is where peers dial.
func (l listener) Endpoint() verbs.Endpoint {
	ep := verbs.EndpointAt(l.Addr())
	ep.LID = verbs.LIDRC
	return ep
}

// admit makes a connection of a TCP connection that was accepted.
func (d *Device) admit(tcp *net.TCPConn, dismiss func()) (*conn, error) {
	_ = tcp.SetKeepAliveConfig(keepAlive())
	c, err := d.respond(tcp, dismiss)
	if err != nil {
		return nil, err
	}
	c.start(tcp)
	return c, nil
}

// respond answers a request, and waits until the peer is ready. What was booked for the connection is the
// connection's, or on error given back.
func (d *Device) respond(tcp *net.TCPConn, dismiss func()) (*conn, error) {
	s, got, err := d.answer(tcp)
	if err != nil {
		d.conns.Cancel()
		return nil, err
	}
	from := tcp.RemoteAddr().(*net.TCPAddr).AddrPort()
	peer := verbs.Peer{Addr: netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), Private: got.data}
	c, err := s.connect(got.rc, d.agree(&got), peer, dismiss)
	if err != nil {
		refuse(tcp, err)
		_ = s.Close()
		return nil, err
	}
	if _, err = tcp.Write(d.frameOf(kindReply, s, nil).append(nil)); err == nil {
		_, err = readFrame(tcp, kindReady)
	}
	if err != nil {
		c.onEnd = func() { d.conns.Leave(c) } // the caller dismisses
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
