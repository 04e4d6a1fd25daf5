package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/millrace/millrace/verbs"
	"github.com/millrace/millrace/verbs/ibverbs"
	"github.com/millrace/millrace/verbs/iwarp"
)

// DeviceConfig says how a Device is opened. The zero value is hardware where there is any, else the soft provider.
type DeviceConfig struct {
	// Verbs is an open device, which Close closes; nil opens one of Provider.
	Verbs verbs.Device
	// Provider is ProviderSoft, ProviderHardware, or "" for hardware where there is an RDMA device with an active port, else
	// soft.
	Provider string
	// NoCRC lets the soft provider leave out the CRC of its frames where the server offers that too.
	NoCRC bool
	// PoolBytes is the registered memory for calls that read or write a stream; 0 is DefaultPoolBytes. With
	// the soft provider the system gives it when it is first used.
	PoolBytes int64
}

// DefaultPoolBytes is enough for MaxParallel parts of DefaultPartBytes.
const DefaultPoolBytes = MaxParallel * DefaultPartBytes

// The values of DeviceConfig.Provider.
const (
	ProviderSoft     = iwarp.Provider
	ProviderHardware = ibverbs.Provider
)

// openVerbs opens the device that the configuration asks for.
func (c DeviceConfig) openVerbs() (verbs.Device, error) {
	if c.Verbs != nil {
		return c.Verbs, nil
	}
	switch c.Provider {
	case "", ProviderHardware:
		dev, err := ibverbs.Open(ibverbs.Config{})
		if err == nil {
			return dev, nil
		}
		if c.Provider != "" {
			return nil, err
		}
	case ProviderSoft:
	default:
		return nil, fmt.Errorf("RDMA provider %q: want %s or %s", c.Provider, ProviderSoft, ProviderHardware)
	}
	return iwarp.Open(iwarp.Config{NoCRC: c.NoCRC}), nil
}

// Device is the RDMA device of a process: opened once, shared by clients. It owns the registered memory; all
// that a transfer adds is a binding. Its methods may be called from many goroutines.
type Device struct {
	verbs    verbs.Device
	provider string
	pool     *pool
	memories atomic.Pointer[[]*Memory] // sorted by address, replaced on change

	mu        sync.Mutex
	closed    bool
	listeners map[netip.Addr]verbs.Endpoint
	sessions  map[string]*session
}

// OpenDevice opens a device and registers its pool.
func OpenDevice(c DeviceConfig) (*Device, error) {
	if c.PoolBytes < 0 {
		return nil, fmt.Errorf("pool of %d bytes", c.PoolBytes)
	}
	v, err := c.openVerbs()
	if err != nil {
		return nil, err
	}
	d := &Device{verbs: v, provider: v.Info().Provider, listeners: map[netip.Addr]verbs.Endpoint{},
		sessions: map[string]*session{}}
	d.memories.Store(&[]*Memory{})
	size := c.PoolBytes
	if size == 0 {
		size = DefaultPoolBytes
	}
	p, err := newPool(size)
	if err == nil {
		d.pool = p
		_, err = d.Register(p.mem)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open RDMA device: %w", err), v.Close())
	}
	return d, nil
}

// Provider is the name of the provider, as results carry it.
func (d *Device) Provider() string { return d.provider }

// Counters are what the device itself has seen: Served is what servers did with its windows.
func (d *Device) Counters() verbs.Counters { return d.verbs.Counters() }

// Close ends all connections. Transfers in progress fail, and no server touches any memory any more.
func (d *Device) Close() error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil
	}
	d.closed = true
	d.mu.Unlock()
	err := d.verbs.Close()
	d.pool.close()
	return err
}

// Memory is memory of the caller that windows can be bound to.
type Memory struct {
	device *Device // nil where there is no RDMA
	mem    []byte
	region verbs.Region
}

// Register makes mem usable for transfers, as a whole or in parts. It is costly on hardware: done once for a
// buffer that is used often. mem may not overlap other registered memory, and must stay until Close.
func (d *Device) Register(mem []byte) (*Memory, error) {
	region, err := d.verbs.Register(mem)
	if err != nil {
		return nil, err
	}
	m := &Memory{device: d, mem: mem, region: region}
	d.mu.Lock()
	defer d.mu.Unlock()
	old := *d.memories.Load()
	at, _ := slices.BinarySearchFunc(old, m, byAddress)
	list := slices.Insert(slices.Clone(old), at, m)
	d.memories.Store(&list)
	return m, nil
}

// Close ends the registration. Transfers with the memory that are in progress fail.
func (m *Memory) Close() error {
	d := m.device
	if d == nil {
		return nil
	}
	d.mu.Lock()
	list := slices.DeleteFunc(slices.Clone(*d.memories.Load()), func(o *Memory) bool { return o == m })
	d.memories.Store(&list)
	d.mu.Unlock()
	return m.region.Deregister()
}

func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

func byAddress(a, b *Memory) int {
	switch x, y := addressOf(a.mem), addressOf(b.mem); {
	case x < y:
		return -1
	case x > y:
		return 1
	}
	return 0
}

// find returns the registered memory that holds all of b, and where b is in it; or nil. No bytes are everywhere.
func (d *Device) find(b []byte) (*Memory, int64) {
	list, a := *d.memories.Load(), addressOf(b)
	if len(b) == 0 && len(list) > 0 {
		return list[0], 0
	}
	lo, hi := 0, len(list)
	for lo < hi { // the first that starts behind a
		if mid := (lo + hi) / 2; addressOf(list[mid].mem) <= a {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo == 0 {
		return nil, 0
	}
	m := list[lo-1]
	if off := a - addressOf(m.mem); off+uintptr(len(b)) <= uintptr(len(m.mem)) {
		return m, int64(off)
	}
	return nil, 0
}

// listen returns the endpoint at which servers dial this device by the address.
func (d *Device) listen(at netip.Addr) (verbs.Endpoint, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return verbs.Endpoint{}, verbs.ErrClosed
	}
	if ep, ok := d.listeners[at]; ok {
		return ep, nil
	}
	l, err := d.verbs.Listen(netip.AddrPortFrom(at, 0), nil)
	if err != nil {
		return verbs.Endpoint{}, err
	}
	d.listeners[at] = l.Endpoint() // until the device closes
	return l.Endpoint(), nil
}

// session returns the session with the server that listens at address, "host:port".
func (d *Device) session(ctx context.Context, address string) (*session, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s := d.sessions[address]; s != nil {
		return s, nil
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	number, err := net.DefaultResolver.LookupPort(ctx, "tcp", port)
	if err != nil {
		return nil, err
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	server := verbs.EndpointAt(netip.AddrPortFrom(addrs[0].Unmap(), uint16(number)))
	server.LID = d.verbs.Info().LID
	s, err := newSession(d.verbs, server)
	if err == nil {
		d.sessions[address] = s
	}
	return s, err
}
