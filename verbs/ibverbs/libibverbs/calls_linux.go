//go:build amd64 || arm64

package libibverbs

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"unsafe"

	"github.com/ebitengine/purego"
)

// library is the loaded library: addresses of its functions.
type library struct {
	sym   map[string]uintptr
	errno uintptr   // __errno_location
	args  sync.Pool // of *[3]uintptr
}

func functions() []string {
	return []string{
		"ibv_get_device_list", "ibv_free_device_list", "ibv_get_device_name", "ibv_open_device", "ibv_close_device",
		"ibv_query_device", "ibv_query_port", "ibv_get_async_event", "ibv_ack_async_event",
		"ibv_alloc_pd", "ibv_dealloc_pd", "ibv_reg_mr", "ibv_dereg_mr",
		"ibv_create_comp_channel", "ibv_destroy_comp_channel", "ibv_create_cq", "ibv_destroy_cq",
		"ibv_get_cq_event", "ibv_ack_cq_events", "ibv_create_qp", "ibv_modify_qp", "ibv_destroy_qp",
	}
}

// Load loads the library. Its errors wrap ErrNoLibrary and are one line.
func Load() (*Calls, error) {
	handle, err := purego.Dlopen(Name, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, fmt.Errorf("%w: %s", ErrNoLibrary, oneLine(err))
	}
	l := &library{sym: map[string]uintptr{}}
	l.args.New = func() any { return new([3]uintptr) }
	for _, name := range functions() {
		if l.sym[name], err = purego.Dlsym(handle, name); err != nil {
			return nil, fmt.Errorf("%w: it has no %s", ErrNoLibrary, name)
		}
	}
	if l.errno, err = purego.Dlsym(purego.RTLD_DEFAULT, "__errno_location"); err != nil {
		return nil, fmt.Errorf("%w: %s", ErrNoLibrary, oneLine(err))
	}
	c := &Calls{}
	l.deviceCalls(c)
	l.memoryCalls(c)
	l.queueCalls(c)
	l.dataCalls(c)
	return c, nil
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

// at returns the structure at an address outside of Go's memory.
func at[T any](addr uintptr) *T { return *(**T)(unsafe.Pointer(&addr)) }

func text(addr uintptr) string {
	var b []byte
	for p := addr; ; p++ {
		c := *at[byte](p)
		if c == 0 || len(b) == 256 {
			return string(b)
		}
		b = append(b, c)
	}
}

// create calls a function that returns a pointer, or sets errno.
//
//go:uintptrescapes
func (l *library) create(name string, args ...uintptr) (uintptr, error) {
	runtime.LockOSThread() // errno is the thread's
	defer runtime.UnlockOSThread()
	r, _, _ := purego.SyscallN(l.sym[name], args...)
	if r != 0 {
		return r, nil
	}
	return 0, &Error{Call: name, Errno: l.lastErrno()}
}

func (l *library) lastErrno() syscall.Errno {
	p, _, _ := purego.SyscallN(l.errno)
	return syscall.Errno(*at[int32](p))
}

// do calls a function that returns 0, an error number, or -1 with errno.
//
//go:uintptrescapes
func (l *library) do(name string, args ...uintptr) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	r, _, _ := purego.SyscallN(l.sym[name], args...)
	switch n := int32(r); {
	case n == 0:
		return nil
	case n == -1:
		return &Error{Call: name, Errno: l.lastErrno()}
	default:
		return failure(name, n)
	}
}

// failure is the error of a call that returned an error number; some drivers return it negated.
func failure(name string, n int32) error {
	return &Error{Call: name, Errno: syscall.Errno(max(n, -n))}
}

// call calls a function of the data path. A list of arguments made for the call would be allocated, since
// purego.SyscallN lets it escape.
//
//go:uintptrescapes
func (l *library) call(fn, a, b, c uintptr) int32 {
	args := l.args.Get().(*[3]uintptr)
	*args = [3]uintptr{a, b, c}
	r, _, _ := purego.SyscallN(fn, args[:]...)
	l.args.Put(args)
	return int32(r)
}

// event calls a function that reads an event; when there is none the error is again itself, so that nothing is
// allocated for it.
//
//go:uintptrescapes
func (l *library) event(again *Error, object, out1, out2 uintptr) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if l.call(l.sym[again.Call], object, out1, out2) == 0 {
		return nil
	}
	if errno := l.lastErrno(); errno != again.Errno {
		return &Error{Call: again.Call, Errno: errno}
	}
	return again
}

func (l *library) deviceCalls(c *Calls) {
	c.Devices = func() ([]string, error) {
		var names []string
		err := l.eachDevice(func(_ uintptr, name string) error { names = append(names, name); return nil })
		return names, err
	}
	c.OpenDevice = func(name string) (Context, int, error) {
		var ctx uintptr
		err := l.eachDevice(func(dev uintptr, n string) (err error) {
			if n == name {
				ctx, err = l.create("ibv_open_device", dev)
			}
			return err
		})
		if err == nil && ctx == 0 {
			err = &Error{Call: "ibv_open_device", Errno: syscall.ENODEV}
		}
		if err != nil {
			return 0, 0, err
		}
		return Context(ctx), int(at[contextHead](ctx).asyncFD), nil
	}
	c.CloseDevice = func(ctx Context) error { return l.do("ibv_close_device", uintptr(ctx)) }
	c.QueryDevice = func(ctx Context, a *DeviceAttr) error {
		return l.do("ibv_query_device", uintptr(ctx), uintptr(unsafe.Pointer(a)))
	}
	c.QueryPort = func(ctx Context, port uint8, a *PortAttr) error {
		return l.do("ibv_query_port", uintptr(ctx), uintptr(port), uintptr(unsafe.Pointer(a)))
	}
	again := &Error{Call: "ibv_get_async_event", Errno: syscall.EAGAIN}
	c.GetAsyncEvent = func(ctx Context, e *AsyncEvent) error {
		return l.event(again, uintptr(ctx), uintptr(unsafe.Pointer(e)), 0)
	}
	c.AckAsyncEvent = func(e *AsyncEvent) {
		purego.SyscallN(l.sym["ibv_ack_async_event"], uintptr(unsafe.Pointer(e)))
	}
}

func (l *library) eachDevice(f func(dev uintptr, name string) error) error {
	var n int32
	list, err := l.create("ibv_get_device_list", uintptr(unsafe.Pointer(&n)))
	if err != nil {
		return err
	}
	defer purego.SyscallN(l.sym["ibv_free_device_list"], list)
	for i := range uintptr(n) {
		dev := *at[uintptr](list + i*unsafe.Sizeof(list))
		name, _, _ := purego.SyscallN(l.sym["ibv_get_device_name"], dev)
		if err := f(dev, text(name)); err != nil {
			return err
		}
	}
	return nil
}

func (l *library) memoryCalls(c *Calls) {
	c.AllocPD = func(ctx Context) (PD, error) {
		pd, err := l.create("ibv_alloc_pd", uintptr(ctx))
		return PD(pd), err
	}
	c.DeallocPD = func(pd PD) error { return l.do("ibv_dealloc_pd", uintptr(pd)) }
	c.RegMR = func(pd PD, addr uintptr, sizeBytes int, access uint32) (MR, Keys, error) {
		mr, err := l.create("ibv_reg_mr", uintptr(pd), addr, uintptr(sizeBytes), uintptr(access))
		if err != nil {
			return 0, Keys{}, err
		}
		h := at[mrHead](mr)
		return MR(mr), Keys{Local: h.lkey, Remote: h.rkey}, nil
	}
	c.DeregMR = func(mr MR) error { return l.do("ibv_dereg_mr", uintptr(mr)) }
	c.AllocMW = func(pd PD) (MW, error) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		fn := opsOf(uintptr(pd)).allocMW
		if fn == 0 {
			return 0, &Error{Call: "ibv_alloc_mw", Errno: syscall.EOPNOTSUPP}
		}
		mw, _, _ := purego.SyscallN(fn, uintptr(pd), MWType1)
		if mw == 0 {
			return 0, &Error{Call: "ibv_alloc_mw", Errno: l.lastErrno()}
		}
		return MW(mw), nil
	}
	c.DeallocMW = func(mw MW) error {
		if r, _, _ := purego.SyscallN(opsOf(uintptr(mw)).deallocMW, uintptr(mw)); int32(r) != 0 {
			return failure("ibv_dealloc_mw", int32(r))
		}
		return nil
	}
	c.BindMW = func(qp QP, mw MW, b *MWBind) (uint32, error) {
		fn := opsOf(uintptr(mw)).bindMW
		if fn == 0 {
			return 0, &Error{Call: "ibv_bind_mw", Errno: syscall.EOPNOTSUPP}
		}
		if r := l.call(fn, uintptr(qp), uintptr(mw), uintptr(unsafe.Pointer(b))); r != 0 {
			return 0, failure("ibv_bind_mw", r)
		}
		return at[mwHead](uintptr(mw)).rkey, nil
	}
}

// opsOf returns the driver's functions for an object: what the inline functions of verbs.h call.
func opsOf(object uintptr) *contextOps {
	return &at[contextHead](at[objectHead](object).context).ops
}
