package iwarp

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/millrace/millrace/verbs"
	"github.com/millrace/millrace/verbs/regions"
)

// region is registered memory.
type region struct {
	*regions.Memory
	dev *Device
}

// Register makes mem usable. Nothing is pinned: the kernel copies, so this costs next to nothing.
func (d *Device) Register(mem []byte) (verbs.Region, error) {
	r, err := d.regions.Add(mem, d.cfg.MaxRegions, func(m *regions.Memory) (*region, error) { return &region{m, d}, nil })
	if err != nil {
		return nil, d.fault("register", err)
	}
	return r, nil
}

// Deregister revokes all bindings, waits for the work requests that use the memory, and forgets it.
func (r *region) Deregister() error {
	revoke := func() error { r.dev.closeBindings(r); return nil }
	return r.dev.regions.End(r.Memory, revoke, func() error { return nil })
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
	if err := r.CheckBind(off, n, access); err != nil {
		return nil, r.dev.fault("bind", err)
	}
	b := &binding{region: r, access: access, mem: r.Bytes()[off : off+n : off+n]}
	if err := r.AddBinding(func() error { return r.dev.addBinding(b) }); err != nil {
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
	b.base = binary.BigEndian.Uint64(random[4:])>>1&^(pageBytes-1) | uint64(regions.AddressOf(b.mem))&(pageBytes-1)
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
