package ibverbs

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"net/netip"
	"sync"

	"github.com/millrace/millrace/verbs"
	"github.com/millrace/millrace/verbs/fabric"
	lib "github.com/millrace/millrace/verbs/ibverbs/libibverbs"
)

// setup is a queue pair in state INIT, before its peer is known.
type setup struct {
	dev     *Device
	gid     fabric.GID
	local   verbs.RCAddress
	counted bool // booked as a connection that is being made

	mu   sync.Mutex
	qp   lib.QP // 0 once it is used or dropped
	done *lib.Completions
}

// path is what two sides agree on beside their addresses.
type path struct {
	mtu          uint8 // enum ibv_mtu: 1 is 256 bytes, 5 is 4096
	inits, reads uint8 // READs outstanding: of this side, and of the peer
}

// PrepareRC makes a queue pair for a connection whose addresses others exchange.
func (d *Device) PrepareRC(peer netip.Addr) (verbs.RCSetup, error) {
	if err := d.conns.Reserve(); err != nil {
		return nil, d.failed("prepare", err)
	}
	gid, err := d.gidTowards(peer)
	if err == nil {
		var s *setup
		if s, err = d.prepare(gid, true); err == nil {
			return s, nil
		}
	}
	d.conns.Cancel()
	return nil, d.failed("prepare", err)
}

func (d *Device) prepare(gid fabric.GID, counted bool) (*setup, error) {
	s := &setup{dev: d, gid: gid, counted: counted}
	var err error
	if s.done, err = lib.NewCompletions(d.calls, d.ctx, d.info.SendDepth+d.info.RecvDepth, 16); err != nil {
		return nil, err
	}
	init := &lib.QPInitAttr{
		SendCQ: s.done.CQ(), RecvCQ: s.done.CQ(), QPType: lib.QPTypeRC,
		Cap: lib.QPCap{
			MaxSendWR: uint32(d.info.SendDepth), MaxRecvWR: uint32(d.info.RecvDepth),
			MaxSendSGE: uint32(d.info.MaxSegments), MaxRecvSGE: uint32(d.info.MaxSegments),
		},
	}
	var number uint32
	if s.qp, number, err = d.calls.CreateQP(d.pd, init); err != nil {
		_ = s.done.Destroy()
		return nil, err
	}
	err = d.calls.ModifyQP(s.qp, &lib.QPAttr{
		QPState: lib.StateInit, PortNum: d.port, QPAccessFlags: lib.AccessRemoteRead | lib.AccessRemoteWrite,
	}, lib.MaskState|lib.MaskPKeyIndex|lib.MaskPort|lib.MaskAccessFlags)
	if err != nil {
		s.destroy()
		return nil, err
	}
	s.local = verbs.RCAddress{QPN: number, PSN: randomPSN(), GID: gid.Bytes, Port: d.port, LID: uint16(d.lid.Load())}
	return s, nil
}

// randomPSN is never 0, which some protocols take for none.
func randomPSN() uint32 {
	var b [4]byte
	_, _ = rand.Read(b[:])
	return binary.BigEndian.Uint32(b[:])%(1<<24-1) + 1
}

func (s *setup) destroy() {
	_ = s.dev.calls.DestroyQP(s.qp)
	_ = s.done.Destroy()
	s.qp = 0
}

// Local is what the peer must be told.
func (s *setup) Local() verbs.RCAddress { return s.local }

// Close drops a queue pair that was not connected.
func (s *setup) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.qp == 0 {
		return nil
	}
	s.destroy()
	if s.counted {
		s.dev.conns.Cancel()
	}
	return nil
}

// Connect makes the connection. The peer's MTU and limits are not known: what is agreed on is what every device takes, one
// READ at a time in the direction of the peer, and the MTU of this port.
func (s *setup) Connect(ctx context.Context, remote verbs.RCAddress) (verbs.Conn, error) {
	err := ctx.Err()
	if err == nil {
		var c *conn
		addr := netip.AddrFrom16(remote.GID).Unmap()
		p := path{mtu: uint8(s.dev.mtu.Load()), inits: 1, reads: s.dev.reads}
		if c, err = s.connect(remote, p, verbs.Peer{Addr: netip.AddrPortFrom(addr, 0)}, func() {}); err == nil {
			go c.run()
			return c, nil
		}
	}
	_ = s.Close()
	return nil, s.dev.failed("connect", err)
}

// connect brings the queue pair to life. On error the setup is as before, and must be closed. The caller starts the
// connection's run.
func (s *setup) connect(remote verbs.RCAddress, p path, peer verbs.Peer, onEnd func()) (*conn, error) {
	d := s.dev
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.qp == 0 {
		return nil, fmt.Errorf("connected or closed before: %w", verbs.ErrClosed)
	}
	if err := checkAddress(remote); err != nil {
		return nil, err
	}
	if err := s.ready(remote, p); err != nil {
		return nil, err
	}
	c, err := d.newConn(s.qp, s.done)
	if err != nil {
		return nil, err
	}
	c.peer, c.onEnd = peer, onEnd
	if s.counted {
		if err := d.conns.Enter(c); err != nil {
			s.counted = false // no longer booked
			c.free()
			return nil, err
		}
		c.onEnd = func() { d.conns.Leave(c); onEnd() }
	} else {
		c.meter = &verbs.Meter{}
	}
	s.qp = 0
	return c, nil
}

func checkAddress(a verbs.RCAddress) error {
	addr := netip.AddrFrom16(a.GID).Unmap()
	switch {
	case a.QPN < 2 || a.QPN >= 1<<24: // 0 and 1 are for management
		return fmt.Errorf("%w: queue pair number %#x", verbs.ErrUnreachable, a.QPN)
	case a.PSN >= 1<<24:
		return fmt.Errorf("%w: packet sequence number %#x", verbs.ErrUnreachable, a.PSN)
	case addr.IsUnspecified() || addr.IsMulticast():
		return fmt.Errorf("%w: %s is not the address of a host", verbs.ErrUnreachable, addr)
	}
	return nil
}

// ready takes the queue pair to the state ready to receive, then to ready to send.
func (s *setup) ready(remote verbs.RCAddress, p path) error {
	d, t := s.dev, &s.dev.cfg.Transport
	attr := &lib.QPAttr{
		QPState: lib.StateRTR, PathMTU: uint32(p.mtu), DestQPNum: remote.QPN, RQPSN: remote.PSN,
		MaxDestRDAtomic: p.reads, MinRNRTimer: t.MinRNRTimer,
		AH: lib.AHAttr{
			GRH: lib.GlobalRoute{
				DGID: remote.GID, SGIDIndex: uint8(s.gid.Index), HopLimit: t.HopLimit, TrafficClass: t.TrafficClass,
			},
			DLID: remote.LID, IsGlobal: 1, PortNum: d.port,
		},
	}
	mask := uint32(lib.MaskState | lib.MaskAV | lib.MaskPathMTU | lib.MaskDestQPN | lib.MaskRQPSN | lib.MaskMaxDestRDAtomic |
		lib.MaskMinRNRTimer)
	if err := d.calls.ModifyQP(s.qp, attr, mask); err != nil {
		return fmt.Errorf("%w: to RTR: %w", verbs.ErrUnreachable, err)
	}
	attr = &lib.QPAttr{
		QPState: lib.StateRTS, SQPSN: s.local.PSN, Timeout: t.TimeoutExponent, RetryCnt: t.Retries,
		RNRRetry: t.RNRRetries, MaxRDAtomic: p.inits,
	}
	mask = lib.MaskState | lib.MaskTimeout | lib.MaskRetryCnt | lib.MaskRNRRetry | lib.MaskSQPSN | lib.MaskMaxRDAtomic
	if err := d.calls.ModifyQP(s.qp, attr, mask); err != nil {
		return fmt.Errorf("%w: to RTS: %w", verbs.ErrUnreachable, err)
	}
	return nil
}
