package iwarp

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"unsafe"

	"github.com/millrace/millrace/verbs"
)

// region is registered memory. Work requests hold it while they use it.
type region struct {
	dev *Device
	mem []byte

	mu      sync.Mutex
	users   int
	closing bool
	unused  chan struct{} // closed when closing and users is 0
}

func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

func (r *region) start() uintptr { return addressOf(r.mem) }
func (r *region) end() uintptr   { return r.start() + uintptr(len(r.mem)) }

// Register makes mem usable. Nothing is pinned: the kernel copies, so this costs next to nothing.
func (d *Device) Register(mem []byte) (verbs.Region, error) {
	if len(mem) == 0 {
		return nil, d.fault("register", fmt.Errorf("no memory: %w", verbs.ErrRange))
	}
	r := &region{dev: d, mem: mem, unused: make(chan struct{})}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, d.fault("register", verbs.ErrClosed)
	}
	old := *d.regions.Load()
	if len(old) >= d.cfg.MaxRegions {
		return nil, d.fault("register", fmt.Errorf("%d regions: %w", len(old), verbs.ErrLimit))
	}
	at, _ := slices.BinarySearchFunc(old, r.start(), func(o *region, a uintptr) int { return cmpAddress(o.end(), a+1) })
	if at < len(old) && old[at].start() < r.end() {
		return nil, d.fault("register", fmt.Errorf("overlaps another region: %w", verbs.ErrRange))
	}
	list := slices.Insert(slices.Clone(old), at, r)
	d.regions.Store(&list)
	return r, nil
}

func cmpAddress(a, b uintptr) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// find returns the region that holds all of b, or nil.
func (d *Device) find(b []byte) *region {
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

// hold marks the memory of a work request as in use, or gives ErrNotRegistered.
func (d *Device) hold(local [][]byte) error {
	for i, b := range local {
		if len(b) == 0 {
			continue
		}
		if r := d.find(b); r == nil || !r.hold() {
			d.release(local[:i])
			return fmt.Errorf("slice %d of the local memory: %w", i, verbs.ErrNotRegistered)
		}
	}
	return nil
}

func (d *Device) release(local [][]byte) {
	for _, b := range local {
		if len(b) > 0 {
			d.find(b).release()
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

// Deregister revokes all bindings, waits for the work requests that use the memory, and forgets it.
func (r *region) Deregister() error {
	r.mu.Lock()
	if r.closing {
		r.mu.Unlock()
		<-r.unused
		return nil
	}
	r.closing = true
	if r.users == 0 {
		close(r.unused)
	}
	r.mu.Unlock()
	r.dev.closeBindings(r)
	<-r.unused
	r.dev.mu.Lock()
	defer r.dev.mu.Unlock()
	list := slices.DeleteFunc(slices.Clone(*r.dev.regions.Load()), func(o *region) bool { return o == r })
	r.dev.regions.Store(&list)
	return nil
}

// binding opens a part of a region to peers. Its key and its base are random, so that together they can't be
// guessed; the base is no pointer.
type binding struct {
	region *region
	stag   uint32
	base   uint64
	access verbs.Access

	// mu is held, shared, during each single call of the kernel that reads or writes the memory for a peer,
	// and exclusively to revoke. Such calls never wait, so revoking is quick, whatever the peer does.
	mu  sync.RWMutex
	mem []byte // nil once revoked
	// writer is the connection that wrote first, shared tells that others did too. high is how far the writer has come.
	writer *conn
	shared bool
	high   uint64

	arrivals arrivals
}

// Bind opens [off, off+n) to peers.
func (r *region) Bind(off, n int64, access verbs.Access) (verbs.Binding, error) {
	size := int64(len(r.mem))
	if off < 0 || n < 0 || off > size || n > size-off {
		return nil, r.dev.fault("bind", fmt.Errorf("%d bytes at %d in a region of %d: %w", n, off, size, verbs.ErrRange))
	}
	if access&(verbs.RemoteRead|verbs.RemoteWrite) == 0 {
		return nil, r.dev.fault("bind", fmt.Errorf("no rights: %w", verbs.ErrAccess))
	}
	b := &binding{region: r, access: access, mem: r.mem[off : off+n : off+n]}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closing {
		return nil, r.dev.fault("bind", verbs.ErrClosed)
	}
	if err := r.dev.addBinding(b); err != nil {
		return nil, r.dev.fault("bind", err)
	}
	return b, nil
}

// addBinding gives the binding a key that no other has.
func (d *Device) addBinding(b *binding) error {
	var random [12]byte
	d.bindMu.Lock()
	defer d.bindMu.Unlock()
	if len(d.bindings) >= d.cfg.MaxBindings {
		return fmt.Errorf("%d bindings: %w", len(d.bindings), verbs.ErrLimit)
	}
	for b.stag == 0 || d.bindings[b.stag] != nil {
		if _, err := rand.Read(random[:]); err != nil {
			return err
		}
		b.stag = binary.BigEndian.Uint32(random[:])
	}
	// The alignment of the memory is kept, and the range never wraps around.
	b.base = binary.BigEndian.Uint64(random[4:])>>1&^(pageBytes-1) | uint64(addressOf(b.mem))&(pageBytes-1)
	d.bindings[b.stag] = b
	return nil
}

const pageBytes = 4096

// Window names the binding.
func (b *binding) Window(ep verbs.Endpoint) verbs.Window {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return verbs.Window{Endpoint: ep, Addr: b.base, RKey: b.stag, SizeBytes: int64(len(b.mem))}
}

// Close revokes the binding.
func (b *binding) Close() error {
	d := b.region.dev
	d.bindMu.Lock()
	if d.bindings[b.stag] == b {
		delete(d.bindings, b.stag)
	}
	d.bindMu.Unlock()
	b.mu.Lock()
	b.mem = nil
	b.mu.Unlock()
	return nil
}

func (d *Device) closeBindings(r *region) {
	d.bindMu.Lock()
	var of []*binding
	for _, b := range d.bindings {
		if b.region == r {
			of = append(of, b)
		}
	}
	d.bindMu.Unlock()
	for _, b := range of {
		_ = b.Close()
	}
}

func (d *Device) binding(stag uint32) *binding {
	d.bindMu.RLock()
	defer d.bindMu.RUnlock()
	return d.bindings[stag]
}

// part returns the n bytes at to, if peers have the right. The caller holds b.mu.
func (b *binding) part(to, n uint64, want verbs.Access) ([]byte, fault) {
	size := uint64(len(b.mem))
	off := to - b.base
	switch {
	case b.mem == nil:
		return nil, faultTaggedSTag
	case b.access&want != want:
		return nil, faultRights
	case to+n < to:
		return nil, faultTaggedWrap
	case to < b.base || off > size || n > size-off:
		return nil, faultTaggedBounds
	}
	return b.mem[off : off+n], noFault
}
