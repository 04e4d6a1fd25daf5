// Package libibverbstest is a machine with an RDMA device in memory, behind the calls of libibverbs: queue pairs that
// are connected by number, memory regions and windows with keys and rights, completions by channel, events. With it
// what is above the library is tested without hardware, and every fault of a device can be had at will.
//
// It is not a network: nothing is lost or reordered, and both ends are in one process. It does not check what a test
// can't get wrong unnoticed (protection domains, P_Keys, packet numbers).
//
// Invariant: bytes move, piece by piece, only while the lock of the machine is held; so whatever was revoked or
// destroyed is untouched from then on, as a device guarantees it.
package libibverbstest

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/millrace/millrace/verbs/fabric"
	lib "github.com/millrace/millrace/verbs/ibverbs/libibverbs"
)

// DeviceName is the name of the one device. Its port 1 has the GIDs of 127.0.0.1 and ::1.
const DeviceName = "sim0"

// Machine is the host of the device. Its fields may be set before it is used.
type Machine struct {
	Device lib.DeviceAttr
	Port   lib.PortAttr
	// LeakyWindows let peers reach all of a region through a window to a part of it.
	LeakyWindows bool
	// Posted is called with each list of work requests, and may refuse it from its n-th on, by an error.
	Posted func(wrs []lib.SendWR) (n int, err error)

	// NoFlush keeps queue pairs in error from giving back their work requests, Frozen all from doing anything.
	NoFlush, Frozen atomic.Bool
	// Registrations and Windows count those that were made, Objects those of any kind that there are.
	Registrations, Windows, Objects atomic.Int64

	mu     sync.Mutex
	moved  *sync.Cond // something may go on
	last   uintptr    // handle
	mrs    map[lib.MR]*region
	mws    map[lib.MW]*window
	qps    map[lib.QP]*queuePair
	cqs    map[lib.CQ]*completionQueue
	pipes  map[lib.Channel]*pipe
	events map[lib.Context]*eventQueue
	pds    map[lib.PD]lib.Context
	keys   uint32
}

type eventQueue struct {
	pipe *pipe
	list []lib.AsyncEvent
}

// New returns a machine whose device has ample limits.
func New() *Machine {
	m := &Machine{
		Device: lib.DeviceAttr{
			MaxQPWR: 1024, MaxSGE: 30, MaxSGERead: 30, MaxCQE: 4096, MaxMR: 1024, MaxQPRDAtom: 16, MaxQPInitRDAtom: 16,
			Capabilities: lib.CapMemoryWindow,
		},
		Port: lib.PortAttr{State: lib.PortActive, ActiveMTU: 5, MaxMsgSize: 1 << 30},
		mrs:  map[lib.MR]*region{}, mws: map[lib.MW]*window{}, qps: map[lib.QP]*queuePair{},
		cqs: map[lib.CQ]*completionQueue{}, pipes: map[lib.Channel]*pipe{}, events: map[lib.Context]*eventQueue{}, pds: map[lib.PD]lib.Context{},
	}
	m.moved = sync.NewCond(&m.mu)
	return m
}

// Fabric is what the kernel shows of the device.
func (m *Machine) Fabric() (*fabric.Fabric, error) {
	port := fabric.Port{Device: DeviceName, Number: 1, State: "ACTIVE", LinkLayer: fabric.Ethernet}
	for i, addr := range []string{"127.0.0.1", "::1"} {
		bytes := netip.MustParseAddr(addr).As16()
		port.GIDs = append(port.GIDs,
			fabric.GID{Index: 2 * i, Bytes: bytes, Type: fabric.GIDRoCEv1, Netdev: "lo"},
			fabric.GID{Index: 2*i + 1, Bytes: bytes, Type: fabric.GIDRoCEv2, Netdev: "lo"})
	}
	return &fabric.Fabric{Devices: []fabric.Device{{Name: DeviceName, Ports: []fabric.Port{port}}}}, nil
}

// Thaw ends NoFlush and Frozen.
func (m *Machine) Thaw() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.NoFlush.Store(false)
	m.Frozen.Store(false)
	m.moved.Broadcast()
}

// Event tells all who have the device open. Of a queue pair, see EventOf.
func (m *Machine) Event(t lib.EventType, port int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, q := range m.events {
		q.put(lib.AsyncEvent{Element: uintptr(port), Type: t})
	}
}

// EventOf tells of every queue pair that has work requests.
func (m *Machine) EventOf(t lib.EventType) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, qp := range m.qps {
		if len(qp.sends)+len(qp.recvs) > 0 {
			m.events[qp.context].put(lib.AsyncEvent{Element: uintptr(qp.handle), Type: t})
		}
	}
}

func (q *eventQueue) put(e lib.AsyncEvent) {
	if q != nil {
		q.list = append(q.list, e)
		q.pipe.wake()
	}
}

// SetPort changes the state of the port and tells it.
func (m *Machine) SetPort(state uint32) {
	m.mu.Lock()
	m.Port.State = state
	m.mu.Unlock()
	if state == lib.PortActive {
		m.Event(lib.EventPortActive, 1)
	} else {
		m.Event(lib.EventPortErr, 1)
	}
}

// handle returns a number that no other object has. The caller holds m.mu.
func (m *Machine) handle() uintptr {
	m.last++
	m.Objects.Add(1)
	return m.last
}

func fails(call string, errno syscall.Errno) error { return &lib.Error{Call: call, Errno: errno} }

// pipe is what a descriptor is waited for by: it holds a byte for each event.
type pipe struct {
	fds     [2]int
	in, out [1]byte
}

func newPipe() (*pipe, error) {
	p := &pipe{}
	return p, syscall.Pipe(p.fds[:])
}

func (p *pipe) wake() { _, _ = syscall.Write(p.fds[1], p.in[:]) }

// take takes a byte out, or fails as a read of the descriptor does.
func (p *pipe) take() error {
	_, err := syscall.Read(p.fds[0], p.out[:])
	return err
}

func (p *pipe) close() {
	_ = syscall.Close(p.fds[0])
	_ = syscall.Close(p.fds[1])
}

// Calls returns the library of the machine.
func (m *Machine) Calls() *lib.Calls {
	c := &lib.Calls{}
	m.deviceCalls(c)
	m.memoryCalls(c)
	m.completionCalls(c)
	m.queuePairCalls(c)
	return c
}

func (m *Machine) deviceCalls(c *lib.Calls) {
	c.Devices = func() ([]string, error) { return []string{DeviceName}, nil }
	c.OpenDevice = func(name string) (lib.Context, int, error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		p, err := newPipe()
		if err != nil || name != DeviceName {
			return 0, 0, fails("ibv_open_device", syscall.ENODEV)
		}
		ctx := lib.Context(m.handle())
		m.events[ctx] = &eventQueue{pipe: p}
		return ctx, p.fds[0], nil
	}
	c.CloseDevice = func(ctx lib.Context) error {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.events[ctx].pipe.close()
		delete(m.events, ctx)
		m.Objects.Add(-1)
		return nil
	}
	c.QueryDevice = func(_ lib.Context, a *lib.DeviceAttr) error { *a = m.Device; return nil }
	c.QueryPort = func(_ lib.Context, port uint8, a *lib.PortAttr) error {
		m.mu.Lock()
		defer m.mu.Unlock()
		if *a = m.Port; port != 1 {
			return fails("ibv_query_port", syscall.EINVAL)
		}
		return nil
	}
	c.GetAsyncEvent = func(ctx lib.Context, e *lib.AsyncEvent) error {
		m.mu.Lock()
		defer m.mu.Unlock()
		q := m.events[ctx]
		if err := q.pipe.take(); err != nil {
			return fails("ibv_get_async_event", err.(syscall.Errno))
		}
		*e, q.list = q.list[0], q.list[1:]
		return nil
	}
	c.AckAsyncEvent = func(*lib.AsyncEvent) {}
}
