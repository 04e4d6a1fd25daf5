package ibverbs

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/millrace/millrace/verbs"
	"github.com/millrace/millrace/verbs/fabric"
	"github.com/millrace/millrace/verbs/mlx5dc"
)

// Dial connects to a listener of this provider: the two sides tell each other their queue pairs by a TCP connection, which
// then stays open for as long as the queue pairs are connected. Where there is DC, an endpoint with neither mark is a DC target.
func (d *Device) Dial(ctx context.Context, to verbs.Endpoint, private []byte) (verbs.Conn, error) {
	if d.dc != nil && mlx5dc.Reaches(to) {
		return d.dialDC(ctx, to, private)
	}
	c, err := d.dial(ctx, to, private)
	if err != nil {
		return nil, &verbs.Error{Op: "dial", Provider: Provider, Peer: to.String(), Err: err}
	}
	return c, nil
}

func (d *Device) dial(ctx context.Context, to verbs.Endpoint, private []byte) (*conn, error) {
	switch {
	case len(private) > verbs.MaxPrivateBytes:
		return nil, fmt.Errorf("%d bytes of private data: %w", len(private), verbs.ErrTooLarge)
	case to.LID != verbs.LIDRC && !to.Session:
		return nil, fmt.Errorf("LID %#x is not the mark of this provider: %w", to.LID, verbs.ErrUnreachable)
	}
	at, err := to.AddrPort()
	if err != nil {
		return nil, err
	}
	if err := d.conns.Reserve(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, d.cfg.StartTimeout)
	defer cancel()
	tcp, gid, err := d.dialTCP(ctx, at)
	if err != nil {
		d.conns.Cancel()
		return nil, fmt.Errorf("%w: %w", verbs.ErrUnreachable, err)
	}
	s, err := d.prepare(gid, true)
	if err != nil {
		d.conns.Cancel()
		_ = tcp.Close()
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = tcp.SetDeadline(time.Unix(1, 0)) })
	c, err := d.initiate(tcp, s, to, private)
	if !stop() && err == nil {
		err = ctx.Err()
		c.start(tcp)
		_ = c.Close()
		return nil, fmt.Errorf("%w: %w", verbs.ErrUnreachable, err)
	}
	if err != nil {
		_ = s.Close()
		_ = tcp.Close()
		return nil, fmt.Errorf("%w: %w", verbs.ErrUnreachable, err)
	}
	c.start(tcp)
	return c, nil
}

// dialTCP connects from the address of the GID that the queue pair will have, so that the peer can check it.
func (d *Device) dialTCP(ctx context.Context, to netip.AddrPort) (*net.TCPConn, fabric.GID, error) {
	gid, err := d.gidTowards(to.Addr())
	if err != nil {
		return nil, gid, err
	}
	from := gid.Addr()
	if from.IsLinkLocalUnicast() && from.Is6() {
		from = from.WithZone(gid.Netdev)
		to = netip.AddrPortFrom(to.Addr().WithZone(gid.Netdev), to.Port())
	}
	dialer := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0)), KeepAliveConfig: keepAlive()}
	nc, err := dialer.DialContext(ctx, "tcp", to.String())
	if err != nil {
		return nil, gid, err
	}
	return nc.(*net.TCPConn), gid, nil
}

func keepAlive() net.KeepAliveConfig {
	return net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}
}

func (d *Device) initiate(tcp *net.TCPConn, s *setup, to verbs.Endpoint, private []byte) (*conn, error) {
	ask := d.frameOf(kindRequest, s, private)
	if _, err := tcp.Write(ask.append(nil)); err != nil {
		return nil, err
	}
	got, err := readFrame(tcp, kindReply)
	if err != nil {
		return nil, err
	}
	if got.rc.GID != to.GID {
		return nil, fmt.Errorf("peer has queue pairs at %s", netip.AddrFrom16(got.rc.GID).Unmap())
	}
	addr := netip.AddrPortFrom(to.Addr(), uint16(to.QPN))
	c, err := s.connect(got.rc, d.agree(&got), verbs.Peer{Addr: addr, Private: got.data}, func() {})
	if err != nil {
		return nil, err
	}
	ready := frame{kind: kindReady, rc: s.local}
	// If that fails, the connection finds out by itself.
	_, _ = tcp.Write(ready.append(nil))
	return c, nil
}

func (d *Device) frameOf(kind frameKind, s *setup, data []byte) *frame {
	return &frame{kind: kind, rc: s.local, mtu: uint8(d.mtu.Load()), inits: d.inits, reads: d.reads, data: data}
}

// start starts a connection whose life is that of a TCP connection.
func (c *conn) start(tcp *net.TCPConn) {
	_ = tcp.SetDeadline(time.Time{})
	c.tcp = tcp
	go c.run()
	go c.watchPeer()
}
