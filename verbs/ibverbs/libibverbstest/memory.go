package libibverbstest

import (
	"syscall"
	"unsafe"

	lib "github.com/millrace/millrace/verbs/ibverbs/libibverbs"
)

type region struct {
	addr, size uint64
	access     uint32
	keys       lib.Keys
	windows    int
}

type window struct {
	region *region
	addr   uint64
	size   uint64
	access uint32
	key    uint32
}

func (m *Machine) memoryCalls(c *lib.Calls) {
	c.AllocPD = func(ctx lib.Context) (lib.PD, error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		pd := lib.PD(m.handle())
		m.pds[pd] = ctx
		return pd, nil
	}
	c.DeallocPD = func(lib.PD) error { m.Objects.Add(-1); return nil }
	c.RegMR = func(_ lib.PD, addr uintptr, sizeBytes int, access uint32) (lib.MR, lib.Keys, error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.Registrations.Add(1)
		m.keys += 2
		h := lib.MR(m.handle())
		keys := lib.Keys{Local: m.keys << 8, Remote: (m.keys + 1) << 8}
		m.mrs[h] = &region{addr: uint64(addr), size: uint64(sizeBytes), access: access, keys: keys}
		return h, keys, nil
	}
	c.DeregMR = func(h lib.MR) error {
		m.mu.Lock()
		defer m.mu.Unlock()
		if r := m.mrs[h]; r == nil || r.windows > 0 {
			return fails("ibv_dereg_mr", syscall.EBUSY)
		}
		delete(m.mrs, h)
		m.Objects.Add(-1)
		return nil
	}
	c.AllocMW = func(lib.PD) (lib.MW, error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.Windows.Add(1)
		m.keys++
		h := lib.MW(m.handle())
		m.mws[h] = &window{key: m.keys << 8}
		return h, nil
	}
	c.DeallocMW = func(h lib.MW) error {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.mws[h].unbind()
		delete(m.mws, h)
		m.Objects.Add(-1)
		return nil
	}
	c.BindMW = func(h lib.QP, mw lib.MW, b *lib.MWBind) (uint32, error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		w, qp := m.mws[mw], m.qps[h]
		if w == nil || qp == nil || m.mrs[b.MR] == nil {
			return 0, fails("ibv_bind_mw", syscall.EINVAL)
		}
		key := w.key&^0xff | (w.key+1)&0xff
		qp.sends = append(qp.sends, work{id: b.WRID, signaled: true, window: w, bind: window{
			region: m.mrs[b.MR], addr: b.Addr, size: b.LengthBytes, access: b.Access, key: key,
		}})
		m.moved.Broadcast()
		return key, nil
	}
}

func (w *window) unbind() {
	if w.region != nil {
		w.region.windows--
	}
	w.region, w.size, w.access = nil, 0, 0
}

// rebind does the binding of a work request; one of no bytes only takes the right away.
func (w *window) rebind(to window) lib.WCStatus {
	w.unbind()
	w.key = to.key
	if to.size == 0 {
		return lib.WCSuccess
	}
	r := to.region
	if r.access&lib.AccessMWBind == 0 || to.addr < r.addr || to.addr+to.size > r.addr+r.size {
		return lib.WCMWBindErr
	}
	*w = to
	r.windows++
	return lib.WCSuccess
}

// reach says whether peers may reach the range by the key, with the right.
func (m *Machine) reach(key uint32, addr, n uint64, right uint32) bool {
	within := func(start, size uint64) bool { return addr >= start && addr-start <= size && n <= size-(addr-start) }
	for _, r := range m.mrs {
		if r.keys.Remote == key {
			return r.access&right != 0 && within(r.addr, r.size)
		}
	}
	for _, w := range m.mws {
		if w.key == key && w.region != nil {
			if m.LeakyWindows {
				return w.access&right != 0 && within(w.region.addr, w.region.size)
			}
			return w.access&right != 0 && within(w.addr, w.size)
		}
	}
	return false
}

// local says whether an element of a work request is registered.
func (m *Machine) local(s lib.SGE) bool {
	for _, r := range m.mrs {
		if r.keys.Local == s.LKey {
			return s.Addr >= r.addr && s.Addr+uint64(s.Length) <= r.addr+r.size
		}
	}
	return false
}

func at[T any](addr uintptr) *T { return *(**T)(unsafe.Pointer(&addr)) }

func bytesAt(addr uint64, n int) []byte { return unsafe.Slice(at[byte](uintptr(addr)), n) }
