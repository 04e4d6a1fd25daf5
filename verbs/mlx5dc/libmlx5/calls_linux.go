//go:build amd64 || arm64

package libmlx5

import (
	"fmt"
	"runtime"
	"strings"
	"syscall"
	"unsafe"

	"github.com/ebitengine/purego"

	lib "github.com/millrace/millrace/verbs/ibverbs/libibverbs"
)

// library holds the addresses of the functions.
type library struct {
	isSupported, createQP, exOf, dvOf, createAH, destroyAH uintptr
	errno                                                  uintptr // __errno_location
}

// Load loads the libraries. Its errors wrap ErrNoLibrary and are one line.
func Load() (*Calls, error) { return load(lib.Name, Name) }

func load(ibverbs, mlx5 string) (*Calls, error) {
	l := &library{}
	for _, from := range []struct {
		file    string
		symbols map[string]*uintptr
	}{
		{ibverbs, map[string]*uintptr{"ibv_qp_to_qp_ex": &l.exOf, "ibv_create_ah": &l.createAH, "ibv_destroy_ah": &l.destroyAH}},
		{mlx5, map[string]*uintptr{
			"mlx5dv_is_supported": &l.isSupported, "mlx5dv_create_qp": &l.createQP, "mlx5dv_qp_ex_from_ibv_qp_ex": &l.dvOf,
		}},
	} {
		handle, err := purego.Dlopen(from.file, purego.RTLD_NOW|purego.RTLD_LOCAL)
		if err != nil {
			return nil, fmt.Errorf("%w: %s", ErrNoLibrary, strings.Join(strings.Fields(err.Error()), " "))
		}
		for name, at := range from.symbols {
			if *at, err = purego.Dlsym(handle, name); err != nil {
				return nil, fmt.Errorf("%w: %s has no %s", ErrNoLibrary, from.file, name)
			}
		}
	}
	var err error
	if l.errno, err = purego.Dlsym(purego.RTLD_DEFAULT, "__errno_location"); err != nil {
		return nil, fmt.Errorf("%w: no __errno_location", ErrNoLibrary)
	}
	return &Calls{Supported: l.supported, CreateDCI: l.createDCI, CreateAH: l.newAH, DestroyAH: l.endAH, Post: post}, nil
}

// at returns the structure at an address outside of Go's memory.
func at[T any](addr uintptr) *T { return *(**T)(unsafe.Pointer(&addr)) }

// create calls a function that returns a pointer, or sets errno.
//
//go:uintptrescapes
func (l *library) create(name string, fn uintptr, args ...uintptr) (uintptr, error) {
	runtime.LockOSThread() // errno is the thread's
	defer runtime.UnlockOSThread()
	if r, _, _ := purego.SyscallN(fn, args...); r != 0 {
		return r, nil
	}
	p, _, _ := purego.SyscallN(l.errno)
	return 0, &lib.Error{Call: name, Errno: syscall.Errno(*at[int32](p))}
}

func (l *library) supported(c lib.Context) bool {
	r, _, _ := purego.SyscallN(l.isSupported, *at[uintptr](uintptr(c) + deviceAt))
	return byte(r) != 0 // bool of C
}

func (l *library) createDCI(c lib.Context, pd lib.PD, cq lib.CQ, limits lib.QPCap) (DCI, error) {
	attr := qpInitAttrEx{
		sendCQ: cq, recvCQ: cq, limits: limits, qpType: qpTypeDriver, pd: pd,
		compMask: initAttrPD | initAttrSendOps, sendOpsFlags: withWrite | withRead,
	}
	// Small READs would otherwise be put into completions, which a DCI can't do.
	dv := dvQPInitAttr{compMask: dvMaskDC | dvMaskCreateFlags, createFlags: dvNoScatterToCQE, dcType: dvTypeDCI}
	qp, err := l.create("mlx5dv_create_qp", l.createQP, uintptr(c), uintptr(unsafe.Pointer(&attr)), uintptr(unsafe.Pointer(&dv)))
	if err != nil {
		return DCI{}, err
	}
	d := DCI{QP: lib.QP(qp), Number: *at[uint32](qp + qpNumberAt)}
	d.ex, _, _ = purego.SyscallN(l.exOf, qp)
	d.dv, _, _ = purego.SyscallN(l.dvOf, d.ex)
	return d, nil
}

func (l *library) newAH(pd lib.PD, a *lib.AHAttr) (AH, error) {
	ah, err := l.create("ibv_create_ah", l.createAH, uintptr(pd), uintptr(unsafe.Pointer(a)))
	return AH(ah), err
}

func (l *library) endAH(ah AH) error {
	if r, _, _ := purego.SyscallN(l.destroyAH, uintptr(ah)); int32(r) != 0 {
		n := int32(r)
		return &lib.Error{Call: "ibv_destroy_ah", Errno: syscall.Errno(max(n, -n))}
	}
	return nil
}

// post does what the inline functions ibv_wr_start … ibv_wr_complete of verbs.h do. The library holds a lock of the queue
// pair between the two, so the thread stays.
func post(d *DCI, w *Work) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	ex := at[qpExTail](d.ex + qpBytes)
	d.call(ex.wrStart, d.ex)
	ex.wrID, ex.wrFlags = w.ID, sendSignaled
	operation := ex.wrWrite
	if w.Read {
		operation = ex.wrRead
	}
	d.call3(operation, d.ex, uintptr(w.RKey), uintptr(w.Addr))
	d.args = [4]uintptr{d.dv, uintptr(w.Target), uintptr(w.DCTN), uintptr(w.DCKey)}
	purego.SyscallN(at[dvQPExHead](d.dv).wrSetDCAddr, d.args[:]...)
	d.call3(ex.wrSetSGEList, d.ex, uintptr(len(w.SGEs)), uintptr(unsafe.Pointer(unsafe.SliceData(w.SGEs))))
	if n := d.call(ex.wrComplete, d.ex); n != 0 {
		return &lib.Error{Call: "ibv_wr_complete", Errno: syscall.Errno(max(n, -n))}
	}
	return nil
}

// call and call3 pass arguments that are part of the DCI: a list made for the call would be allocated, since purego.SyscallN
// lets it escape.
func (d *DCI) call(fn, a uintptr) int32 {
	d.args[0] = a
	r, _, _ := purego.SyscallN(fn, d.args[:1]...)
	return int32(r)
}

//go:uintptrescapes
func (d *DCI) call3(fn, a, b, c uintptr) {
	d.args = [4]uintptr{a, b, c}
	purego.SyscallN(fn, d.args[:3]...)
}
