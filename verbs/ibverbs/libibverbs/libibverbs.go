// Package libibverbs is the C library libibverbs as far as this program calls it: its functions, the layouts of its
// structures, its errors. The library is loaded at run time, so a machine without it still starts the program.
//
// It is not a provider, and keeps no state but that of Completions, which waits for completions the way Go does: who may
// call what, in which order, from which goroutine, is as the manual pages of rdma-core say. It holds nothing that only some
// drivers have.
//
// Invariant: all calls of C go through a Calls, so that everything above is tested against another one without
// hardware; every structure here has the layout of the C one on 64-bit Linux, which a test compares with the headers.
package libibverbs

import (
	"errors"
	"fmt"
	"syscall"
)

// Name is the file name by which the dynamic loader finds the library.
const Name = "libibverbs.so.1"

// ErrNoLibrary: the library, or a function that is needed of it, is not on this machine.
var ErrNoLibrary = errors.New(Name + " can't be loaded")

// Error is a call that failed.
type Error struct {
	Call  string // "ibv_reg_mr"
	Errno syscall.Errno
}

// Error returns a line of text.
func (e *Error) Error() string { return fmt.Sprintf("%s: %v", e.Call, e.Errno) }

// Unwrap returns the error number of the system.
func (e *Error) Unwrap() error { return e.Errno }

// Handles of the library's objects: addresses of its structures, 0 for none.
type (
	// Context is a struct ibv_context: an open device.
	Context uintptr
	// PD is a protection domain.
	PD uintptr
	// MR is a memory region.
	MR uintptr
	// MW is a memory window.
	MW uintptr
	// Channel is a completion channel.
	Channel uintptr
	// CQ is a completion queue.
	CQ uintptr
	// QP is a queue pair.
	QP uintptr
)

// Keys are those of a memory region: for local use, and for peers.
type Keys struct{ Local, Remote uint32 }

// Calls are the functions of the library, each named as in C without "ibv_". Those that return no error can't
// fail. Structures are pointed to only during the call.
type Calls struct {
	// Devices are the names of the devices that the library has a driver for.
	Devices func() ([]string, error)
	// OpenDevice opens the device of that name. The descriptor is that of asynchronous events.
	OpenDevice  func(name string) (c Context, asyncFD int, err error)
	CloseDevice func(Context) error
	QueryDevice func(Context, *DeviceAttr) error
	QueryPort   func(c Context, port uint8, a *PortAttr) error
	// GetAsyncEvent reads an event, or fails with EAGAIN if there is none and the descriptor doesn't block. Each must be
	// acknowledged before what it is about can be destroyed.
	GetAsyncEvent func(Context, *AsyncEvent) error
	AckAsyncEvent func(*AsyncEvent)

	AllocPD   func(Context) (PD, error)
	DeallocPD func(PD) error
	RegMR     func(pd PD, addr uintptr, sizeBytes int, access uint32) (MR, Keys, error)
	DeregMR   func(MR) error
	AllocMW   func(PD) (MW, error) // of type 1
	DeallocMW func(MW) error
	// BindMW posts the work request and returns the key that the window will have.
	BindMW func(QP, MW, *MWBind) (rkey uint32, err error)

	CreateCompChannel  func(Context) (ch Channel, fd int, err error)
	DestroyCompChannel func(Channel) error
	CreateCQ           func(c Context, entries int, ch Channel) (CQ, error)
	DestroyCQ          func(CQ) error // waits until all events are acknowledged
	ReqNotifyCQ        func(CQ) error
	PollCQ             func(CQ, []WC) (int, error)
	// GetCQEvent reads an event of the channel, or fails with EAGAIN as GetAsyncEvent does.
	GetCQEvent  func(Channel, *CQEvent) error
	AckCQEvents func(q CQ, n uint32)

	CreateQP  func(PD, *QPInitAttr) (qp QP, number uint32, err error)
	ModifyQP  func(qp QP, a *QPAttr, mask uint32) error
	DestroyQP func(QP) error // waits until all events are acknowledged
	// PostSend and PostRecv take a list of work requests, linked by Next. On error bad is the address of the first
	// that was not taken.
	PostSend func(qp QP, wr *SendWR, bad *uintptr) error
	PostRecv func(qp QP, wr *RecvWR, bad *uintptr) error
}
