package ibverbs

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"syscall"

	"github.com/millrace/millrace/verbs"
	lib "github.com/millrace/millrace/verbs/ibverbs/libibverbs"
	"github.com/millrace/millrace/verbs/regions"
)

// region is registered memory.
type region struct {
	*regions.Memory
	dev  *Device
	mr   lib.MR
	lkey uint32

	mu       sync.Mutex
	bindings map[*binding]struct{}
}

// Register pins mem and makes it usable. Peers get no right to it by that.
func (d *Device) Register(mem []byte) (verbs.Region, error) {
	r, err := d.register(mem)
	if err != nil {
		return nil, d.failed("register", err)
	}
	return r, nil
}

func (d *Device) register(mem []byte) (*region, error) {
	access := uint32(lib.AccessLocalWrite)
	if !d.cfg.NoWindows {
		access |= lib.AccessMWBind
	}
	return d.regions.Add(mem, d.cfg.MaxRegions, func(m *regions.Memory) (*region, error) {
		mr, keys, err := d.calls.RegMR(d.pd, m.Start(), len(mem), access)
		if err != nil {
			return nil, memlock(err, len(mem))
		}
		return &region{Memory: m, dev: d, mr: mr, lkey: keys.Local, bindings: map[*binding]struct{}{}}, nil
	})
}

// memlock says what the cause most often is.
func memlock(err error, sizeBytes int) error {
	if errors.Is(err, syscall.ENOMEM) {
		return fmt.Errorf("%d bytes: %w (the limit of locked memory? ulimit -l, LimitMEMLOCK=)", sizeBytes, err)
	}
	return fmt.Errorf("%d bytes: %w", sizeBytes, err)
}

// hold marks the memory of a work request as in use and describes it in sges, or gives ErrNotRegistered. It returns how many
// elements it has used: slices without bytes need none.
func (d *Device) hold(local [][]byte, sges []lib.SGE) (int, error) {
	n := 0
	err := d.regions.Hold(local, func(r *region, b []byte) {
		sges[n] = lib.SGE{Addr: uint64(regions.AddressOf(b)), Length: uint32(len(b)), LKey: r.lkey}
		n++
	})
	return n, err
}

// Deregister revokes all bindings, waits for the work requests that use the memory, and gives it back.
func (r *region) Deregister() error { return r.dev.regions.End(r.Memory, r.revoke, r.deregister) }

func (r *region) revoke() error {
	r.mu.Lock()
	all := slices.Collect(maps.Keys(r.bindings))
	r.mu.Unlock()
	var err error
	for _, b := range all {
		err = errors.Join(err, b.Close())
	}
	return err
}

func (r *region) deregister() error {
	if err := r.dev.calls.DeregMR(r.mr); err != nil && !r.dev.isDead() {
		return r.dev.failed("deregister", err)
	}
	return nil
}
