package ibverbs

import (
	"fmt"
	"sync"

	"github.com/millrace/millrace/verbs"
	lib "github.com/millrace/millrace/verbs/ibverbs/libibverbs"
)

// binding opens a part of a region to peers: by a memory window, or by a registration of its own.
type binding struct {
	region *region
	window verbs.Window
	mw     lib.MW // 0: none
	mr     lib.MR // 0: none

	mu     sync.Mutex
	closed bool
	err    error
}

// Bind opens [off, off+n) to peers. A binding of no bytes has no key: nothing checks one for no bytes.
func (r *region) Bind(off, n int64, access verbs.Access) (verbs.Binding, error) {
	b, err := r.bind(off, n, access)
	if err != nil {
		return nil, r.dev.failed("bind", err)
	}
	return b, nil
}

func (r *region) bind(off, n int64, access verbs.Access) (*binding, error) {
	if err := r.CheckBind(off, n, access); err != nil {
		return nil, err
	}
	if most := int64(r.dev.cfg.MaxBindings); r.dev.bindings.Add(1) > most {
		r.dev.bindings.Add(-1)
		return nil, fmt.Errorf("%d bindings: %w", most, verbs.ErrLimit)
	}
	b := &binding{region: r, window: verbs.Window{Addr: uint64(r.Start()) + uint64(off), SizeBytes: n}}
	b.mu.Lock()
	defer b.mu.Unlock()
	err := r.AddBinding(func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.bindings[b] = struct{}{} // Deregister waits for it from here on
		return nil
	})
	if err != nil {
		r.dev.bindings.Add(-1)
		return nil, err
	}
	if err := b.open(access); err != nil {
		b.closed = true
		b.forget()
		return nil, err
	}
	return b, nil
}

// open gets a key. The caller holds b.mu.
func (b *binding) open(access verbs.Access) error {
	d := b.region.dev
	if b.window.SizeBytes == 0 {
		return nil
	}
	var rights uint32
	if access&verbs.RemoteRead != 0 {
		rights |= lib.AccessRemoteRead
	}
	if access&verbs.RemoteWrite != 0 {
		rights |= lib.AccessRemoteWrite
	}
	var err error
	if !d.info.Registers {
		b.mw, b.window.RKey, err = d.windows.bind(b.region.mr, b.window.Addr, b.window.SizeBytes, rights)
		return err
	}
	if rights&lib.AccessRemoteWrite != 0 {
		rights |= lib.AccessLocalWrite // the specification asks for it
	}
	mr, keys, err := d.calls.RegMR(d.pd, uintptr(b.window.Addr), int(b.window.SizeBytes), rights)
	if err != nil {
		return memlock(err, int(b.window.SizeBytes))
	}
	b.mr, b.window.RKey = mr, keys.Remote
	return nil
}

func (b *binding) forget() {
	b.region.mu.Lock()
	delete(b.region.bindings, b)
	b.region.mu.Unlock()
	b.region.dev.bindings.Add(-1)
}

// Window names the binding.
func (b *binding) Window(ep verbs.Endpoint) verbs.Window {
	w := b.window
	w.Endpoint = ep
	return w
}

// Close revokes the key, and returns when the device has done so.
func (b *binding) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return b.err
	}
	b.closed = true
	d := b.region.dev
	var err error
	switch {
	case b.mw != 0:
		err = d.windows.unbind(b.mw, b.region.mr)
	case b.mr != 0:
		err = d.calls.DeregMR(b.mr)
	}
	if err != nil && !d.isDead() {
		b.err = d.failed("unbind", err)
	}
	b.forget()
	return b.err
}

func (d *Device) isDead() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.dead
}
