// Package libmlx5 is the C library libmlx5 (mlx5dv) as far as it takes to initiate by DC, the dynamically connected
// transport of NVIDIA's adapters, and the few functions of libibverbs that only this needs. Both are loaded at run time.
//
// It is not a provider and keeps no state of its own. The other functions of libibverbs are in package libibverbs, whose
// handles are used here.
//
// Invariant: all calls of C go through a Calls, so that everything above is tested against another one without
// hardware; every offset here is that of the C structure on 64-bit Linux, which a test compares with the headers.
package libmlx5

import (
	"errors"

	lib "github.com/millrace/millrace/verbs/ibverbs/libibverbs"
)

// Name is the file name by which the dynamic loader finds the library.
const Name = "libmlx5.so.1"

// ErrNoLibrary: the library, or a function that is needed of it, is not on this machine.
var ErrNoLibrary = errors.New(Name + " can't be loaded")

// AH is an address handle (struct ibv_ah): how to reach one GID.
type AH uintptr

// DCI is a DC initiator: a queue pair that sends to any DC target, to one at a time.
type DCI struct {
	QP     lib.QP
	Number uint32
	ex, dv uintptr // struct ibv_qp_ex and struct mlx5dv_qp_ex of the queue pair
	args   [4]uintptr
}

// Work is a work request of a DCI.
type Work struct {
	ID     uint64
	Read   bool // RDMA READ; else RDMA WRITE
	Addr   uint64
	RKey   uint32
	Target AH
	DCTN   uint32
	DCKey  uint64
	SGEs   []lib.SGE
}

// Calls are the functions. Structures are pointed to only during the call.
type Calls struct {
	// Supported says whether a device is driven by mlx5.
	Supported func(lib.Context) bool
	// CreateDCI makes a DCI in state RESET which can WRITE and READ.
	CreateDCI func(c lib.Context, pd lib.PD, cq lib.CQ, limits lib.QPCap) (DCI, error)
	// CreateAH finds out how to reach the GID in the attributes; it may take seconds.
	CreateAH  func(lib.PD, *lib.AHAttr) (AH, error)
	DestroyAH func(AH) error
	// Post posts a signalled work request. Only one goroutine at a time may post to a DCI.
	Post func(*DCI, *Work) error
}
