// Package iwarp is the soft provider of verbs: RDMA without RDMA hardware, in user space, as iWARP does it
// over TCP (RDMAP, RFC 5040; DDP, RFC 5041; MPA, RFC 5044 and 6581; immediate data, RFC 7306). Received
// payload is read from the socket straight into the memory it is for, and sent by writev from where it lies.
//
// It is not hardware RDMA and never calls itself so: the kernel copies every byte once on each side, and the
// CPU computes the CRCs. It has no markers, no atomics, and no shared receive queues.
//
// Invariant: memory is touched for a peer only while the lock of its binding is held, by calls of the
// kernel that do not wait; so a revoked binding is out of reach when Close returns. Whatever a peer sends, it
// gets what its bindings allow, within limits of time and count, or loses its connection.
package iwarp

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/millrace/millrace/verbs"
	"github.com/millrace/millrace/verbs/admission"
	"github.com/millrace/millrace/verbs/regions"
)

// Provider is the name of this provider in results and metrics.
const Provider = "soft"

// Config holds the limits of a device. Zero values mean the defaults.
type Config struct {
	// NoCRC offers to leave out CRCs. They are left out only where the peer offers it too.
	NoCRC bool
	// MaxPayloadBytes is the most payload in one FPDU that is sent: 64 KiB less 16 bytes by default and at most.
	MaxPayloadBytes int
	// MaxMessageBytes is the most of one work request, 1 GiB by default and 2 GiB at most.
	MaxMessageBytes int64
	// InboundReads is how many READs a peer may have outstanding (IRD), OutboundReads how many this side has
	// at most (ORD); each 32 by default. A peer that doesn't say how many it takes is asked for one.
	InboundReads, OutboundReads int
	// SendDepth and RecvDepth are the most work requests of a connection; 1024 and 256 by default.
	SendDepth, RecvDepth int
	// MaxConns are the most connections of the device, 4096 by default; MaxConnsPerAddr those that were made
	// from one address, 256 by default; MaxHandshakes those that are being made from outside, 128 by default.
	MaxConns, MaxConnsPerAddr, MaxHandshakes int
	// MaxRegions and MaxBindings: 1024 and 65536 by default.
	MaxRegions, MaxBindings int
	// StartTimeout is for making a connection: 5 s by default. StallTimeout is how long a peer may leave an
	// FPDU unfinished, a READ unanswered or sent bytes untaken: 30 s by default. IdleTimeout is how long a
	// connection that a peer made may do nothing: 5 minutes by default.
	StartTimeout, StallTimeout, IdleTimeout time.Duration
	// SendBufferBytes and ReceiveBufferBytes fix the sizes of the socket's buffers; 0 leaves them to the kernel.
	SendBufferBytes, ReceiveBufferBytes int
}

func (c Config) withDefaults() Config {
	c.MaxPayloadBytes = within(c.MaxPayloadBytes, maxPayload, 64, maxPayload)
	c.MaxMessageBytes = within(c.MaxMessageBytes, 1<<30, 1, 1<<31)
	c.InboundReads = within(c.InboundReads, 32, 1, 1024)
	c.OutboundReads = within(c.OutboundReads, 32, 1, 1024)
	c.SendDepth = within(c.SendDepth, 1024, 1, 1<<16)
	c.RecvDepth = within(c.RecvDepth, 256, 1, 1<<16)
	c.MaxConns = within(c.MaxConns, 4096, 1, 1<<20)
	c.MaxConnsPerAddr = within(c.MaxConnsPerAddr, 256, 1, 1<<20)
	c.MaxHandshakes = within(c.MaxHandshakes, 128, 1, 1<<16)
	c.MaxRegions = within(c.MaxRegions, 1024, 1, 1<<20)
	c.MaxBindings = within(c.MaxBindings, 1<<16, 1, 1<<24)
	c.StartTimeout = within(c.StartTimeout, 5*time.Second, time.Millisecond, time.Hour)
	c.StallTimeout = within(c.StallTimeout, 30*time.Second, time.Millisecond, time.Hour)
	c.IdleTimeout = within(c.IdleTimeout, 5*time.Minute, time.Millisecond, 24*time.Hour)
	return c
}

func within[T int | int64 | time.Duration](v, unset, least, most T) T {
	if v == 0 {
		return unset
	}
	return min(max(v, least), most)
}

// Device is the one device of the provider: the host's TCP.
type Device struct {
	cfg   Config
	meter verbs.Meter
	life  context.Context // ends when the device closes
	end   context.CancelFunc
	tasks sync.WaitGroup // watchdog

	conns    *admission.Table[*conn]
	regions  *regions.Set[*region]
	bindMu   sync.RWMutex
	bindings map[uint32]*binding
}

// Open returns a device with the limits of cfg.
func Open(cfg Config) *Device {
	d := &Device{cfg: cfg.withDefaults(), regions: regions.NewSet[*region](), bindings: map[uint32]*binding{}}
	d.conns = admission.NewTable[*conn](admission.Limits{
		Conns: d.cfg.MaxConns, PerAddr: d.cfg.MaxConnsPerAddr, Handshakes: d.cfg.MaxHandshakes, StartTimeout: d.cfg.StartTimeout,
	}, &d.meter)
	d.life, d.end = context.WithCancel(context.Background())
	d.tasks.Go(d.watch)
	return d
}

// Info describes the device.
func (d *Device) Info() verbs.DeviceInfo {
	return verbs.DeviceInfo{
		Provider: Provider, Name: "tcp", Dials: verbs.KindSoft | verbs.KindHardware, LID: verbs.LIDSoft, Moves: true, FenceCosts: true, MaxMessageBytes: d.cfg.MaxMessageBytes,
		MaxSegments: maxSegments, SendDepth: d.cfg.SendDepth, RecvDepth: d.cfg.RecvDepth,
	}
}

// maxSegments bounds the slices of a work request: enough for a window of 64 KiB blocks.
const maxSegments = 1024

// Counters returns what the device has done so far.
func (d *Device) Counters() verbs.Counters { return d.meter.Read(Provider) }

// Close ends everything of the device, and waits for it; so it must not be called from a function that
// Listen was given.
func (d *Device) Close() error {
	if !d.conns.Close() {
		return nil
	}
	registered := d.regions.Close()
	d.end()
	for _, c := range d.conns.All() {
		_ = c.Close()
	}
	for _, r := range registered {
		_ = r.Deregister()
	}
	d.conns.Wait()
	d.tasks.Wait()
	return nil
}

func (d *Device) fault(op string, err error) error {
	return &verbs.Error{Op: op, Provider: Provider, Err: err}
}

// watch looks at all connections now and then and ends those whose peer makes no progress.
func (d *Device) watch() {
	every := min(d.cfg.StallTimeout, d.cfg.IdleTimeout) / 8
	tick := time.NewTicker(max(every, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-d.life.Done():
			return
		case now := <-tick.C:
			for _, c := range d.conns.All() {
				if c.stalled(now) {
					c.fail(fmt.Errorf("no progress: %w", verbs.ErrPeer))
				}
			}
		}
	}
}

func (d *Device) setBuffers(tcp *net.TCPConn) {
	if d.cfg.SendBufferBytes > 0 {
		_ = tcp.SetWriteBuffer(d.cfg.SendBufferBytes)
	}
	if d.cfg.ReceiveBufferBytes > 0 {
		_ = tcp.SetReadBuffer(d.cfg.ReceiveBufferBytes)
	}
	_ = tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 10 * time.Second, Count: 3})
}
