package ibverbs

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"unsafe"

	"github.com/millrace/millrace/verbs"
	lib "github.com/millrace/millrace/verbs/ibverbs/libibverbs"
)

// region is registered memory. Work requests hold it while they use it.
type region struct {
	dev  *Device
	mem  []byte
	mr   lib.MR
	lkey uint32

	mu       sync.Mutex
	users    int
	closing  bool
	unused   chan struct{} // closed when closing and users is 0
	ended    chan struct{} // closed when the device has forgotten the memory
	bindings map[*binding]struct{}
	err      error // of ending it
}

func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

func (r *region) start() uintptr { return addressOf(r.mem) }
func (r *region) end() uintptr   { return r.start() + uintptr(len(r.mem)) }

// Register pins mem and makes it usable. Peers get no right to it by that.
func (d *Device) Register(mem []byte) (verbs.Region, error) {
	r, err := d.register(mem)
	if err != nil {
		return nil, d.failed("register", err)
	}
	return r, nil
}

func (d *Device) register(mem []byte) (*region, error) {
	if len(mem) == 0 {
		return nil, fmt.Errorf("no memory: %w", verbs.ErrRange)
	}
	r := &region{
		dev: d, mem: mem, unused: make(chan struct{}), ended: make(chan struct{}), bindings: map[*binding]struct{}{},
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, verbs.ErrClosed
	}
	old := *d.regions.Load()
	if len(old) >= d.cfg.MaxRegions {
		return nil, fmt.Errorf("%d regions: %w", len(old), verbs.ErrLimit)
	}
	at, _ := slices.BinarySearchFunc(old, r.start(), func(o *region, a uintptr) int {
		if o.end() > a {
			return 1
		}
		return -1
	})
	if at < len(old) && old[at].start() < r.end() {
		return nil, fmt.Errorf("overlaps another region: %w", verbs.ErrRange)
	}
	access := uint32(lib.AccessLocalWrite)
	if !d.cfg.NoWindows {
		access |= lib.AccessMWBind
	}
	mr, keys, err := d.calls.RegMR(d.pd, r.start(), len(mem), access)
	if err != nil {
		return nil, memlock(err, len(mem))
	}
	r.mr, r.lkey = mr, keys.Local
	list := slices.Insert(slices.Clone(old), at, r)
	d.regions.Store(&list)
	return r, nil
}

// memlock says what the cause most often is.
func memlock(err error, sizeBytes int) error {
	if errors.Is(err, syscall.ENOMEM) {
		return fmt.Errorf("%d bytes: %w (the limit of locked memory? ulimit -l, LimitMEMLOCK=)", sizeBytes, err)
	}
	return fmt.Errorf("%d bytes: %w", sizeBytes, err)
}

// find returns the region that holds all of b, or nil.
func (d *Device) regionOf(b []byte) *region {
	list, a := *d.regions.Load(), addressOf(b)
	lo, hi := 0, len(list)
	for lo < hi { // the first region that ends behind a
		mid := (lo + hi) / 2
		if list[mid].end() <= a {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo < len(list) && list[lo].start() <= a && a+uintptr(len(b)) <= list[lo].end() {
		return list[lo]
	}
	return nil
}

// hold marks the memory of a work request as in use and describes it in sges, or gives ErrNotRegistered. It returns how many
// elements it has used: slices without bytes need none.
func (d *Device) hold(local [][]byte, sges []lib.SGE) (int, error) {
	n := 0
	for i, b := range local {
		if len(b) == 0 {
			continue
		}
		r := d.regionOf(b)
		if r == nil || !r.hold() {
			d.release(local[:i])
			return 0, fmt.Errorf("slice %d of the local memory: %w", i, verbs.ErrNotRegistered)
		}
		sges[n] = lib.SGE{Addr: uint64(addressOf(b)), Length: uint32(len(b)), LKey: r.lkey}
		n++
	}
	return n, nil
}

func (d *Device) release(local [][]byte) {
	for _, b := range local {
		if len(b) > 0 {
			d.regionOf(b).release()
		}
	}
}

func (r *region) hold() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closing {
		return false
	}
	r.users++
	return true
}

func (r *region) release() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.users--; r.users == 0 && r.closing {
		close(r.unused)
	}
}

// Bytes returns the memory.
func (r *region) Bytes() []byte { return r.mem }

// Deregister revokes all bindings, waits for the work requests that use the memory, and gives it back.
func (r *region) Deregister() error {
	r.mu.Lock()
	if r.closing {
		r.mu.Unlock()
		<-r.ended
		return r.err
	}
	r.closing = true
	if r.users == 0 {
		close(r.unused)
	}
	var bindings []*binding
	for b := range r.bindings {
		bindings = append(bindings, b)
	}
	r.mu.Unlock()
	for _, b := range bindings {
		r.err = errors.Join(r.err, b.Close())
	}
	<-r.unused
	r.dev.mu.Lock()
	defer r.dev.mu.Unlock()
	if err := r.dev.calls.DeregMR(r.mr); err != nil && !r.dev.dead {
		r.err = errors.Join(r.err, r.dev.failed("deregister", err))
	}
	list := slices.DeleteFunc(slices.Clone(*r.dev.regions.Load()), func(o *region) bool { return o == r })
	r.dev.regions.Store(&list)
	close(r.ended)
	return r.err
}
