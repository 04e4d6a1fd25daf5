// Package ibverbs is the provider of verbs over RDMA hardware, and over the kernel's soft-RoCE: reliable connections
// (RC) through libibverbs, which is loaded when a device is opened. A machine without the library gets ErrNoLibrary.
//
// It is not for InfiniBand with a subnet manager, nor for iWARP adapters: a connection is addressed by GID. It has no
// atomics, no shared receive queues, no unreliable transports.
//
// Invariant: a work request is completed when the device has said so or its queue pair is destroyed, never before;
// and whatever the device, the port or the peer does, everything that was posted completes.
package ibverbs

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/verbs"
	"github.com/millrace/millrace/verbs/admission"
	"github.com/millrace/millrace/verbs/fabric"
	lib "github.com/millrace/millrace/verbs/ibverbs/libibverbs"
	"github.com/millrace/millrace/verbs/mlx5dc"
	"github.com/millrace/millrace/verbs/mlx5dc/libmlx5"
	"github.com/millrace/millrace/verbs/regions"
)

// Provider is the name of this provider in results and metrics.
const Provider = "ibverbs"

// ErrNoLibrary: libibverbs is not on this machine. The text of an error with it is one line.
var ErrNoLibrary = lib.ErrNoLibrary

// Config chooses a device and holds its limits. Zero values mean the defaults.
type Config struct {
	// Device is the name of the device ("mlx5_0"), Port the number of its port, from 1; without them it is the first that
	// has the address and carries traffic.
	Device string
	Port   int
	// Address is what this side speaks as: the GID is the one of RoCE v2 with it. Without it, a connection uses the
	// one that the kernel's routes give, as an ordinary connection would.
	Address netip.Addr
	// MaxMessageBytes is the most of one work request: 1 GiB by default and at most, and no more than the port takes.
	MaxMessageBytes int64
	// MaxSegments, SendDepth and RecvDepth of a connection: 16, 128 and 64 by default, and no more than the device takes.
	MaxSegments, SendDepth, RecvDepth int
	// OutstandingReads is how many READs a side may have outstanding, in either direction: 16 by default, and no more
	// than both devices take.
	OutstandingReads int
	// MaxConns are the most connections of the device, 4096 by default; MaxConnsPerAddr those that were made from one
	// address, 256 by default; MaxHandshakes those that are being made from outside, 128 by default.
	MaxConns, MaxConnsPerAddr, MaxHandshakes int
	// MaxRegions and MaxBindings: 1024 and 65536 by default.
	MaxRegions, MaxBindings int
	// StartTimeout is for making a connection: 5 s by default. FlushTimeout is how long the device may take to give back
	// work requests of a connection that has ended, before its queue pair is destroyed under them: 2 s by default.
	// StallTimeout is how long none of a connection's work requests may complete, RECVs aside: 30 s by default. The device's
	// own retries take less, but not every driver ends them.
	StartTimeout, FlushTimeout, StallTimeout time.Duration
	// NoWindows registers memory for each binding even if the device has memory windows.
	NoWindows bool
	Transport Transport
	// DC is how targets of DC are reached too, which tokens name: only on devices of mlx5, left out on others. nil: not at all.
	// What it leaves open is as in Transport. Where it can't be had, Notice and DC tell.
	DC *mlx5dc.Config
}

// Transport are the numbers of the InfiniBand specification that a queue pair gets. Zero values mean the defaults.
type Transport struct {
	// TimeoutExponent: an answer is waited for 4.096 µs × 2^n; 14 (67 ms) by default.
	TimeoutExponent uint8
	// Retries is how often that is tried, RNRRetries how often when the peer has no RECV posted; 7 and 7 by default, and 7
	// RNR retries mean for ever.
	Retries, RNRRetries uint8
	// MinRNRTimer is the code of the time after which a peer tries again that found no RECV; 12 (0.64 ms) by default.
	MinRNRTimer uint8
	// HopLimit is 64 by default. TrafficClass goes into the IP header: DSCP × 4; 0 by default.
	HopLimit, TrafficClass uint8
}

func (c Config) withDefaults() Config {
	c.MaxMessageBytes = within(c.MaxMessageBytes, 1<<30, 1, 1<<30)
	c.MaxSegments = within(c.MaxSegments, 16, 1, 1024)
	c.SendDepth = within(c.SendDepth, 128, 1, 1<<15)
	c.RecvDepth = within(c.RecvDepth, 64, 1, 1<<15)
	c.OutstandingReads = within(c.OutstandingReads, 16, 1, 255)
	c.MaxConns = within(c.MaxConns, 4096, 1, 1<<20)
	c.MaxConnsPerAddr = within(c.MaxConnsPerAddr, 256, 1, 1<<20)
	c.MaxHandshakes = within(c.MaxHandshakes, 128, 1, 1<<16)
	c.MaxRegions = within(c.MaxRegions, 1024, 1, 1<<20)
	c.MaxBindings = within(c.MaxBindings, 1<<16, 1, 1<<24)
	c.StartTimeout = within(c.StartTimeout, 5*time.Second, time.Millisecond, time.Hour)
	c.FlushTimeout = within(c.FlushTimeout, 2*time.Second, time.Millisecond, time.Hour)
	c.StallTimeout = within(c.StallTimeout, 30*time.Second, time.Millisecond, time.Hour)
	t := &c.Transport
	t.TimeoutExponent = within(t.TimeoutExponent, 14, 1, 31)
	t.Retries = within(t.Retries, 7, 1, 7)
	t.RNRRetries = within(t.RNRRetries, 7, 1, 7)
	t.MinRNRTimer = within(t.MinRNRTimer, 12, 1, 31)
	t.HopLimit = within(t.HopLimit, 64, 1, 255)
	return c
}

func within[T int | int64 | uint8 | time.Duration](v, unset, least, most T) T {
	if v == 0 {
		return unset
	}
	return min(max(v, least), most)
}

// Device is one port of an RDMA device, opened.
type Device struct {
	cfg   Config
	calls *lib.Calls
	read  func() (*fabric.Fabric, error)
	mlx5  func() (*libmlx5.Calls, error)
	dc    *mlx5dc.Initiators // nil: no DC
	// dcFault is why there is none though it was wanted.
	dcFault error
	name    string
	isMLX5  bool
	port    uint8
	ctx     lib.Context
	pd      lib.PD
	info    verbs.DeviceInfo
	reads   uint8 // READs outstanding, in either direction
	inits   uint8 // READs that this side may have outstanding
	mtu     atomic.Uint32
	lid     atomic.Uint32 // 0 on Ethernet

	meter  verbs.Meter
	life   context.Context // ends when the device closes
	end    context.CancelFunc
	tasks  sync.WaitGroup // watching events and stalls
	events *lib.Poller
	gids   gidTable

	conns    *admission.Table[*conn]
	regions  *regions.Set[*region]
	bindings atomic.Int64
	windows  *windows

	mu     sync.Mutex
	closed bool
	fault  error // why the device or its port is of no use now
	dead   bool  // the device is gone for good
}

// Devices are the RDMA devices of this machine, as the kernel shows them; none on a machine without the library.
func Devices() ([]fabric.Device, error) {
	if _, err := lib.Load(); err != nil {
		return nil, err
	}
	f, err := fabric.ReadHost()
	if err != nil {
		return nil, err
	}
	return f.Devices, nil
}

// Open opens a device. Errors wrap ErrNoLibrary, fabric.ErrNoDevice, a *fabric.GIDError, or a *libibverbs.Error.
func Open(cfg Config) (*Device, error) {
	calls, err := lib.Load()
	if err != nil {
		return nil, &verbs.Error{Op: "open", Provider: Provider, Err: err}
	}
	return open(cfg, calls, fabric.ReadHost)
}

func open(cfg Config, calls *lib.Calls, read func() (*fabric.Fabric, error)) (*Device, error) {
	return openWith(cfg, calls, libmlx5.Load, read)
}

func openWith(
	cfg Config, calls *lib.Calls, mlx5 func() (*libmlx5.Calls, error), read func() (*fabric.Fabric, error),
) (*Device, error) {
	d := &Device{
		cfg: cfg.withDefaults(), calls: calls, mlx5: mlx5, read: read, regions: regions.NewSet[*region](),
	}
	d.conns = admission.NewTable[*conn](admission.Limits{
		Conns: d.cfg.MaxConns, PerAddr: d.cfg.MaxConnsPerAddr, Handshakes: d.cfg.MaxHandshakes, StartTimeout: d.cfg.StartTimeout,
	}, &d.meter)
	d.windows = &windows{dev: d}
	d.life, d.end = context.WithCancel(context.Background())
	if err := d.choose(); err != nil {
		return nil, d.failed("open", err)
	}
	if err := d.openDevice(); err != nil {
		_ = d.Close()
		return nil, d.failed("open", err)
	}
	d.info.Registers = d.cfg.NoWindows || !d.windows.hold()
	return d, nil
}

// choose finds the device and its port.
func (d *Device) choose() error {
	f, err := d.read()
	if err != nil {
		return err
	}
	if d.cfg.Device == "" {
		place, err := anyPlace(f, d.cfg.Address)
		if err != nil {
			return err
		}
		d.name, d.isMLX5, d.port = place.Device.Name, place.Device.MLX5(), uint8(place.Port.Number)
		d.gids.port = place.Port
		return nil
	}
	dev, ok := f.Device(d.cfg.Device)
	if !ok {
		return fmt.Errorf("%s: %w", d.cfg.Device, fabric.ErrNoDevice)
	}
	d.name, d.isMLX5 = dev.Name, dev.MLX5()
	for i := range dev.Ports {
		p := &dev.Ports[i]
		if d.cfg.Port == p.Number || d.cfg.Port == 0 && (d.port == 0 || p.Active()) {
			d.port = uint8(p.Number)
			d.gids.port = p
			if p.Active() {
				break
			}
		}
	}
	if d.port == 0 {
		return fmt.Errorf("%s has no port %d: %w", d.name, d.cfg.Port, fabric.ErrNoDevice)
	}
	return nil
}

func anyPlace(f *fabric.Fabric, addr netip.Addr) (fabric.Place, error) {
	if addr.IsValid() {
		return f.PlaceOf(addr)
	}
	place, err := f.Any(fabric.IPv4)
	if err != nil {
		if p, err6 := f.Any(fabric.IPv6); err6 == nil {
			return p, nil
		}
	}
	return place, err
}

func (d *Device) openDevice() error {
	var fd int
	var err error
	if d.ctx, fd, err = d.calls.OpenDevice(d.name); err != nil {
		return err
	}
	var dev lib.DeviceAttr
	var port lib.PortAttr
	if err := d.calls.QueryDevice(d.ctx, &dev); err != nil {
		return err
	}
	if err := d.calls.QueryPort(d.ctx, d.port, &port); err != nil {
		return err
	}
	if d.pd, err = d.calls.AllocPD(d.ctx); err != nil {
		return err
	}
	if d.events, err = lib.NewPoller(fd); err != nil {
		return err
	}
	d.limits(&dev, &port)
	d.openDC(&dev)
	d.tasks.Go(d.watchEvents)
	d.tasks.Go(d.watchStalls)
	return nil
}

// limits brings what was asked for down to what the device takes.
func (d *Device) limits(dev *lib.DeviceAttr, port *lib.PortAttr) {
	least := func(v int, limits ...int32) int {
		for _, l := range limits {
			if l > 0 { // 0: the driver doesn't say
				v = min(v, int(l))
			}
		}
		return v
	}
	d.info = verbs.DeviceInfo{
		Provider: Provider, Name: d.name, Moves: true, Dials: verbs.KindRC, LID: verbs.LIDRC,
		MaxMessageBytes: d.cfg.MaxMessageBytes,
		MaxSegments:     least(d.cfg.MaxSegments, dev.MaxSGE, dev.MaxSGERead),
		SendDepth:       least(d.cfg.SendDepth, dev.MaxQPWR, dev.MaxCQE/2),
		RecvDepth:       least(d.cfg.RecvDepth, dev.MaxQPWR, dev.MaxCQE/2),
	}
	if port.MaxMsgSize > 0 {
		d.info.MaxMessageBytes = min(d.info.MaxMessageBytes, int64(port.MaxMsgSize))
	}
	d.reads = uint8(least(d.cfg.OutstandingReads, dev.MaxQPRDAtom))
	d.inits = uint8(least(d.cfg.OutstandingReads, dev.MaxQPInitRDAtom))
	d.cfg.MaxRegions = least(d.cfg.MaxRegions, dev.MaxMR)
	d.portState(port)
	if dev.Capabilities&lib.CapMemoryWindow == 0 {
		d.cfg.NoWindows = true
	}
}

// Info describes the device.
func (d *Device) Info() verbs.DeviceInfo { return d.info }

// Counters returns what the device has done so far.
func (d *Device) Counters() verbs.Counters { return d.meter.Read(Provider) }

// ActiveMTUBytes is the InfiniBand MTU that the port has now.
func (d *Device) ActiveMTUBytes() int { return 128 << d.mtu.Load() }

// Err is nil while the device can be used, else why it can't now: the port is down, or the device is gone.
func (d *Device) Err() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return verbs.ErrClosed
	}
	return d.fault
}

func (d *Device) failed(op string, err error) error {
	return &verbs.Error{Op: op, Provider: Provider, Err: err}
}

// Close ends everything of the device, and waits for it; so it must not be called from a function that Listen was
// given.
func (d *Device) Close() error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil
	}
	d.closed = true
	d.mu.Unlock()
	registered := d.regions.Close()
	d.end()
	d.conns.Close()
	for _, c := range d.conns.All() {
		_ = c.Close()
	}
	if d.dc != nil {
		_ = d.dc.Close()
	}
	for _, r := range registered {
		_ = r.Deregister()
	}
	d.windows.close()
	if d.events != nil {
		d.events.Close()
	}
	d.conns.Wait()
	d.tasks.Wait()
	return d.closeDevice()
}

func (d *Device) closeDevice() error {
	var err error
	if d.pd != 0 {
		err = d.calls.DeallocPD(d.pd)
	}
	if d.ctx != 0 {
		if e := d.calls.CloseDevice(d.ctx); err == nil {
			err = e
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.dead { // the kernel has torn it all down before us
		return nil
	}
	return err
}
