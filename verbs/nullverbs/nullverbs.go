// Package nullverbs is a provider of verbs that completes work requests without moving a byte. With it one
// measures what a server costs by itself: the rest is what a NIC would do.
//
// It is no transport. What is "read" through it keeps the content that the memory had, and nothing arrives
// anywhere; so it must never be chosen by default, nor without saying so.
//
// Invariant: DeviceInfo.Moves is false and the provider's name is "null" wherever a result could come from.
package nullverbs

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/millrace/millrace/verbs"
)

// Provider is the name of this provider in results and metrics.
const Provider = "null"

// Device pretends. It checks no keys and no ranges: there is no memory behind them.
type Device struct {
	meter  verbs.Meter
	closed atomic.Bool
	keys   atomic.Uint32

	mu    sync.Mutex
	conns map[*conn]struct{}
}

// Open returns a device.
func Open() *Device { return &Device{conns: map[*conn]struct{}{}} }

const depth = 1 << 16

// Info describes the device.
func (d *Device) Info() verbs.DeviceInfo {
	return verbs.DeviceInfo{
		Provider: Provider, Name: "null", Dials: verbs.KindSoft | verbs.KindRC | verbs.KindHardware, LID: verbs.LIDSoft, MaxMessageBytes: 1 << 30, MaxSegments: 1024, SendDepth: depth, RecvDepth: depth,
	}
}

// Register takes note of mem.
func (d *Device) Register(mem []byte) (verbs.Region, error) {
	if d.closed.Load() {
		return nil, verbs.ErrClosed
	}
	return &region{dev: d, mem: mem}, nil
}

// Listen listens to nothing.
func (d *Device) Listen(addr netip.AddrPort, _ func(verbs.Conn)) (verbs.Listener, error) {
	if d.closed.Load() {
		return nil, verbs.ErrClosed
	}
	return listener{verbs.EndpointAt(addr)}, nil
}

// Dial succeeds, whoever is there.
func (d *Device) Dial(_ context.Context, to verbs.Endpoint, _ []byte) (verbs.Conn, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed.Load() {
		return nil, verbs.ErrClosed
	}
	c := &conn{dev: d, done: make(chan struct{})}
	if !to.Session {
		c.peer.Addr = netip.AddrPortFrom(to.Addr(), uint16(to.QPN))
	}
	d.conns[c] = struct{}{}
	d.meter.Connections.Add(1)
	d.meter.Live.Add(1)
	return c, nil
}

// Counters count what would have been moved.
func (d *Device) Counters() verbs.Counters { return d.meter.Read(Provider) }

// Close ends all connections.
func (d *Device) Close() error {
	d.mu.Lock()
	d.closed.Store(true)
	var conns []*conn
	for c := range d.conns {
		conns = append(conns, c)
	}
	d.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
	}
	return nil
}

type listener struct{ ep verbs.Endpoint }

func (l listener) Endpoint() verbs.Endpoint { return l.ep }
func (listener) Close() error               { return nil }

type region struct {
	dev *Device
	mem []byte
}

func (r *region) Bytes() []byte { return r.mem }

func (r *region) Bind(off, n int64, _ verbs.Access) (verbs.Binding, error) {
	if size := int64(len(r.mem)); off < 0 || n < 0 || off > size || n > size-off {
		return nil, verbs.ErrRange
	}
	return binding{verbs.Window{RKey: r.dev.keys.Add(1), SizeBytes: n}}, nil
}

func (*region) Deregister() error { return nil }

type binding struct{ w verbs.Window }

func (b binding) Window(ep verbs.Endpoint) verbs.Window {
	b.w.Endpoint = ep
	return b.w
}

func (binding) Close() error { return nil }

type conn struct {
	dev  *Device
	peer verbs.Peer
	done chan struct{}
	end  sync.Once
}

// Post completes everything at once, but takes no RECV: there is nobody who could send.
func (c *conn) Post(wr *verbs.WorkRequest, q *verbs.Queue) error {
	if err := c.Err(); err != nil {
		return err
	}
	if wr.Op == verbs.OpRecv {
		return verbs.ErrQueueFull
	}
	if !q.Reserve() {
		return verbs.ErrQueueFull
	}
	var n int64
	for _, b := range wr.Local {
		n += int64(len(b))
	}
	c.dev.meter.Initiated.Add(wr.Op, n)
	q.Complete(verbs.Completion{ID: wr.ID, Op: wr.Op, Bytes: n})
	return nil
}

func (c *conn) Peer() verbs.Peer      { return c.peer }
func (c *conn) Done() <-chan struct{} { return c.done }

func (c *conn) Err() error {
	select {
	case <-c.done:
		return verbs.ErrClosed
	default:
		return nil
	}
}

func (c *conn) Close() error {
	c.end.Do(func() {
		c.dev.mu.Lock()
		delete(c.dev.conns, c)
		c.dev.mu.Unlock()
		c.dev.meter.Live.Add(-1)
		close(c.done)
	})
	return nil
}
