// Package verbs is the seam between those who move bytes by RDMA and what moves them: devices, registered
// memory, windows of a peer's memory, connections, work requests and their completions, counters. Providers
// implement it: verbs/iwarp over TCP, in user space; others over the hardware of the machine.
//
// It is not a network library: it knows neither S3 nor HTTP, and how two sides agree on a window is not its
// matter. The side that posts WRITE and READ is active; the side that owns the window does nothing but bind
// it, and learns of the end by other means.
//
// Invariant: when a work request has completed, with or without an error, its local memory is no longer
// touched; when a Binding is closed or a Region deregistered, no peer's bytes reach its memory and none of
// its bytes leave, whatever work requests are in flight. Nothing is registered and nothing is allocated for
// an operation.
package verbs

import (
	"context"
	"net/netip"
)

// Access says what peers may do with memory that is bound to a window.
type Access uint8

// Rights of peers. A binding with no rights is refused.
const (
	RemoteRead Access = 1 << iota
	RemoteWrite
	// Scratch, with RemoteWrite, says that the owner doesn't mind what is in the memory behind the bytes that peers have
	// written so far. A provider may then put bytes there for a moment, or leave them.
	Scratch
)

// Opcode is the kind of a work request.
type Opcode uint8

// The kinds of work requests.
const (
	OpWrite    Opcode = iota + 1 // RDMA WRITE: local memory into the peer's window
	OpWriteImm                   // WRITE, then an immediate value that consumes a RECV of the peer
	OpRead                       // RDMA READ: the peer's window into local memory
	OpSend                       // a message that goes into the peer's next RECV
	OpRecv                       // local memory for a message of the peer
)

// String returns the name that the InfiniBand specification gives the operation.
func (o Opcode) String() string {
	switch o {
	case OpWrite:
		return "WRITE"
	case OpWriteImm:
		return "WRITE_WITH_IMM"
	case OpRead:
		return "READ"
	case OpSend:
		return "SEND"
	case OpRecv:
		return "RECV"
	}
	return "unknown"
}

// DeviceInfo describes a device and its limits.
type DeviceInfo struct {
	Provider string // "soft", "ibverbs", "null": results and metrics carry it
	Name     string
	// Dials are the kinds of endpoints that Dial takes, and LID is that of the endpoints of its own listeners.
	Dials Kind
	LID   uint16
	// Moves is false for a device that completes work requests without moving bytes.
	Moves bool
	// FenceCosts is true if a work request without Unfenced takes a turn more than one with it.
	FenceCosts bool
	// MaxMessageBytes is the most that one work request moves.
	MaxMessageBytes int64
	// MaxSegments is the most slices of local memory in one work request.
	MaxSegments int
	// SendDepth and RecvDepth are the most work requests of each kind that a connection holds.
	SendDepth, RecvDepth int
	// Registers is true where every Bind registers memory, since the device has no windows that hold: correct,
	// but slow, and memory that is bound is pinned and counted twice.
	Registers bool
}

// Device is one RDMA device, opened. Its methods may be called from many goroutines.
type Device interface {
	Info() DeviceInfo
	// Register makes mem usable by work requests and bindings. It is costly on hardware: done once, for a
	// pool. mem must not move or be unmapped before Deregister has returned, and may not overlap another
	// region of the device.
	Register(mem []byte) (Region, error)
	// Listen accepts connections at addr. accept is called with each, on a goroutine of its own; nil means
	// that peers may only use bindings, and nobody here cares who they are.
	Listen(addr netip.AddrPort, accept func(Conn)) (Listener, error)
	// Dial connects to the port of a peer. private is opaque data of at most MaxPrivateBytes that the
	// peer's accept finds in Conn.Peer. An endpoint that this provider can't dial gives ErrUnreachable.
	Dial(ctx context.Context, to Endpoint, private []byte) (Conn, error)
	Counters() Counters
	// Close ends all connections and listeners, deregisters all regions, and waits for that.
	Close() error
}

// MaxPrivateBytes is the most private data of a connection.
const MaxPrivateBytes = 196

// Region is registered memory.
type Region interface {
	// Bytes returns the memory. Any part of it can be the local memory of a work request.
	Bytes() []byte
	// Bind opens the part [off, off+n) to peers that know the binding's key, until it is closed.
	Bind(off, n int64, access Access) (Binding, error)
	// Deregister closes all bindings, waits until no work request uses the memory, and ends the region.
	Deregister() error
}

// Binding is a part of a region that peers may reach.
type Binding interface {
	// Window names the binding to peers that reach this device at ep.
	Window(ep Endpoint) Window
	// Close revokes the key. When it has returned no peer touches the memory. A peer that goes on using the
	// key gets ErrAccess, and loses its connection. A second Close does nothing.
	Close() error
}

// Listener accepts connections until it is closed. Connections outlive it.
type Listener interface {
	// Endpoint is where peers dial. With an unspecified address the caller must put in the one that peers see.
	Endpoint() Endpoint
	Close() error
}

// Peer describes the other side of a connection, as it said itself, except Addr.
type Peer struct {
	Addr    netip.AddrPort // where its packets come from; zero if the provider doesn't know
	Private []byte         // its private data; must not be changed
}

// WorkRequest is one operation. Local holds slices of registered memory; it and what it points to must not
// be changed before the completion.
type WorkRequest struct {
	Op    Opcode
	ID    uint64 // comes back in the completion
	Local [][]byte
	// Addr and RKey say where in the peer's memory WRITE and READ start (Window.Addr plus an offset).
	Addr uint64
	RKey uint32
	Imm  uint32 // of OpWriteImm
	// Unfenced lets WRITE and SEND complete when the local memory may be reused, though the peer may not have
	// all bytes yet. Without it, the completion means that the peer has them, and also has those of all
	// earlier work requests of the connection. On hardware both are the same.
	Unfenced bool
	// More says that the caller posts another work request at once, whatever becomes of this one: a provider may
	// hold this one back until then, and complete both together. The last one of a run must not have it.
	More bool
}

// Conn is a connection, or what acts as one where the transport has none. Its methods may be called from
// many goroutines. Work requests are done in the order posted; the first one that fails ends the connection,
// and those behind it fail with it.
type Conn interface {
	// Post hands over a work request; its completion goes to q. It does not block. Once it has returned nil
	// there will be exactly one completion; on error there will be none.
	Post(wr *WorkRequest, q *Queue) error
	Peer() Peer
	// Done is closed when the connection has ended and all completions are out.
	Done() <-chan struct{}
	// Err is nil while the connection lives, then why it ended.
	Err() error
	// Close ends the connection, and waits until all work requests have completed.
	Close() error
}
