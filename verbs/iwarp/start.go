package iwarp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/millrace/millrace/verbs"
	"github.com/millrace/millrace/verbs/admission"
	"github.com/millrace/millrace/verbs/iwarp/crc32c"
)

// link is what two sides agreed on when they made a connection.
type link struct {
	crc     bool
	ord     int  // READs that this side may have outstanding
	speak   bool // this side may send at once
	private []byte
}

// Dial makes a connection to the TCP port QPN at the address GID. The LID is not looked at.
func (d *Device) Dial(ctx context.Context, to verbs.Endpoint, private []byte) (verbs.Conn, error) {
	c, err := d.dial(ctx, to, private)
	if err != nil {
		return nil, &verbs.Error{Op: "dial", Provider: Provider, Peer: to.String(), Err: err}
	}
	return c, nil
}

func (d *Device) dial(ctx context.Context, to verbs.Endpoint, private []byte) (*conn, error) {
	at, err := to.AddrPort()
	if err != nil {
		return nil, err
	}
	if len(private) > verbs.MaxPrivateBytes {
		return nil, fmt.Errorf("%d bytes of private data: %w", len(private), verbs.ErrTooLarge)
	}
	if err := d.conns.Reserve(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, d.cfg.StartTimeout)
	defer cancel()
	var dialer net.Dialer
	dialer.KeepAlive = -1 // set with the buffers
	nc, err := dialer.DialContext(ctx, "tcp", at.String())
	if err != nil {
		d.conns.Cancel()
		return nil, fmt.Errorf("%w: %w", verbs.ErrUnreachable, err)
	}
	tcp := nc.(*net.TCPConn)
	d.setBuffers(tcp)
	stop := context.AfterFunc(ctx, func() { _ = tcp.SetDeadline(time.Unix(1, 0)) })
	l, err := d.initiate(tcp, private)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		d.conns.Cancel()
		_ = tcp.Close()
		return nil, fmt.Errorf("%w: %w", verbs.ErrUnreachable, err)
	}
	c, err := d.start(tcp, l, func() {})
	if err != nil {
		_ = tcp.Close()
	}
	return c, err
}

// initiate sends a request and reads the reply. What follows at once is a WRITE of no bytes: the peer may
// not send before it has something from here (RFC 5044 §7.1.2, RFC 6581 §4.2).
func (d *Device) initiate(tcp *net.TCPConn, private []byte) (link, error) {
	ask := startFrame{
		crc: !d.cfg.NoCRC, revision: 2, enhanced: true, peer: true, write: true,
		ird: uint16(d.cfg.InboundReads), ord: uint16(d.cfg.OutboundReads), private: private,
	}
	if _, err := tcp.Write(ask.append(nil)); err != nil {
		return link{}, err
	}
	got, err := readStart(tcp, true)
	switch {
	case err != nil:
		return link{}, err
	case got.reject:
		return link{}, errors.New("peer rejects the connection")
	case got.markers:
		return link{}, fmt.Errorf("%w: markers wanted", errStart)
	}
	l := link{crc: ask.crc || got.crc, ord: d.outboundReads(got), speak: true, private: got.private}
	ready := appendTagged(nil, opWrite, true, 0, 0, 0)
	_, err = tcp.Write(sealed(ready, l.crc))
	return l, err
}

// outboundReads is how many READs the sender of a frame takes at once from here. One that doesn't say so (revision 1) is
// asked for one: what is above its limit would end the connection.
func (d *Device) outboundReads(got startFrame) int {
	if !got.enhanced {
		return 1
	}
	return min(d.cfg.OutboundReads, int(got.ird))
}

// sealed adds padding and CRC to an FPDU.
func sealed(b []byte, crc bool) []byte {
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	if !crc {
		return append(b, 0, 0, 0, 0)
	}
	sum := crc32c.Update(0, b)
	return append(b, byte(sum), byte(sum>>8), byte(sum>>16), byte(sum>>24))
}

// respond reads a request and answers it.
func (d *Device) respond(tcp *net.TCPConn) (link, error) {
	got, err := readStart(tcp, false)
	if err != nil {
		return link{}, err
	}
	answer := startFrame{
		reply: true, crc: !d.cfg.NoCRC || got.crc, revision: got.revision, enhanced: got.enhanced,
		peer: got.peer, write: got.write, read: got.read && !got.write, reject: got.markers,
		ird: uint16(d.cfg.InboundReads), ord: uint16(d.cfg.OutboundReads),
	}
	l := link{crc: answer.crc, ord: d.outboundReads(got), private: got.private}
	answer.ord = uint16(l.ord)
	if _, err := tcp.Write(answer.append(nil)); err != nil {
		return link{}, err
	}
	if answer.reject {
		return link{}, fmt.Errorf("%w: markers wanted", errStart)
	}
	return l, nil
}

// listener accepts connections of one port.
type listener struct {
	*admission.Listener[*conn]
}

// Listen accepts connections at addr. Port 0 takes a free one.
func (d *Device) Listen(addr netip.AddrPort, accept func(verbs.Conn)) (verbs.Listener, error) {
	l, err := d.conns.Listen(addr, d.admit, accept)
	if err != nil {
		return nil, d.fault("listen", err)
	}
	return listener{l}, nil
}

// Endpoint is where peers dial.
func (l listener) Endpoint() verbs.Endpoint { return verbs.EndpointAt(l.Addr()) }

// admit makes a connection of one that was accepted.
func (d *Device) admit(tcp *net.TCPConn, dismiss func()) (*conn, error) {
	d.setBuffers(tcp)
	agreed, err := d.respond(tcp)
	if err != nil {
		d.conns.Cancel()
		return nil, err
	}
	return d.start(tcp, agreed, dismiss)
}
