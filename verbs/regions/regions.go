// Package regions holds the registered regions of a device, finds the one in which a slice of memory lies, and counts
// the work requests that use each, so that it ends only when none does.
//
// It does not register anything with a device, and knows no keys: that is the provider's, as are the bindings, which it
// only orders with the end of their region.
//
// Invariant: regions of a set don't overlap; memory that a work request holds stays registered until it is released; and
// once the end of a region has begun, no work request holds it and no binding is made of it any more. Finding, holding and
// releasing allocate nothing, and finding takes no lock.
package regions

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/millrace/millrace/verbs"
)

// AddressOf is where b starts.
func AddressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// Memory is the memory of one region, and who uses it.
type Memory struct {
	bytes []byte
	ended chan struct{} // closed when the region is no more
	err   error         // of ending it; set before ended is closed

	mu     sync.Mutex
	users  int
	ending bool
	unused chan struct{} // closed when ending and users is 0
}

// Bytes returns the memory.
func (m *Memory) Bytes() []byte { return m.bytes }

// Start is the address of the memory.
func (m *Memory) Start() uintptr { return AddressOf(m.bytes) }

// CheckBind tells whether [off, off+n) can be bound with these rights. Errors wrap verbs.ErrRange or verbs.ErrAccess.
func (m *Memory) CheckBind(off, n int64, access verbs.Access) error {
	size := int64(len(m.bytes))
	if off < 0 || n < 0 || off > size || n > size-off {
		return fmt.Errorf("%d bytes at %d in a region of %d: %w", n, off, size, verbs.ErrRange)
	}
	if access&(verbs.RemoteRead|verbs.RemoteWrite) == 0 {
		return fmt.Errorf("no rights: %w", verbs.ErrAccess)
	}
	return nil
}

// AddBinding calls add unless the region is ending, which gives verbs.ErrClosed: revoke of Set.End comes after all that
// add has done.
func (m *Memory) AddBinding(add func() error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ending {
		return verbs.ErrClosed
	}
	return add()
}

func (m *Memory) hold() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ending {
		return false
	}
	m.users++
	return true
}

func (m *Memory) release() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.users--; m.users == 0 && m.ending {
		close(m.unused)
	}
}

// begin begins the end; only the first call returns true.
func (m *Memory) begin() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ending {
		return false
	}
	m.ending = true
	if m.users == 0 {
		close(m.unused)
	}
	return true
}

// entry is a region in a set.
type entry[R any] struct {
	start, end uintptr
	memory     *Memory
	region     R
}

// Set holds the regions of a device. R is what the provider has of each.
type Set[R any] struct {
	list atomic.Pointer[[]entry[R]] // sorted by address, replaced on change

	mu     sync.Mutex // held to change list
	closed bool
}

// NewSet returns a set without regions.
func NewSet[R any]() *Set[R] {
	s := &Set[R]{}
	s.list.Store(&[]entry[R]{})
	return s
}

// Add makes a region of mem, if there are fewer than limit. Once nothing speaks against it, register is called, and its
// error returned. Others wrap verbs.ErrRange, verbs.ErrLimit or verbs.ErrClosed.
func (s *Set[R]) Add(mem []byte, limit int, register func(*Memory) (R, error)) (R, error) {
	var none R
	if len(mem) == 0 {
		return none, fmt.Errorf("no memory: %w", verbs.ErrRange)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return none, verbs.ErrClosed
	}
	old := *s.list.Load()
	if len(old) >= limit {
		return none, fmt.Errorf("%d regions: %w", len(old), verbs.ErrLimit)
	}
	m := &Memory{bytes: mem, ended: make(chan struct{}), unused: make(chan struct{})}
	e := entry[R]{start: m.Start(), end: m.Start() + uintptr(len(mem)), memory: m}
	at := search(old, e.start)
	if at < len(old) && old[at].start < e.end {
		return none, fmt.Errorf("overlaps another region: %w", verbs.ErrRange)
	}
	var err error
	if e.region, err = register(m); err != nil {
		return none, err
	}
	list := slices.Insert(slices.Clone(old), at, e)
	s.list.Store(&list)
	return e.region, nil
}

// search returns the index of the first region that ends behind a.
func search[R any](list []entry[R], a uintptr) int {
	lo, hi := 0, len(list)
	for lo < hi {
		mid := (lo + hi) / 2
		if list[mid].end <= a {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// find returns the region that holds all of b, or nil.
func (s *Set[R]) find(b []byte) *entry[R] {
	list, a := *s.list.Load(), AddressOf(b)
	at := search(list, a)
	if at < len(list) && list[at].start <= a && a+uintptr(len(b)) <= list[at].end {
		return &list[at]
	}
	return nil
}

// Hold marks the memory of a work request as in use, or gives verbs.ErrNotRegistered and holds nothing. use, if it is not
// nil, is called with each slice and its region; slices without bytes are passed over.
func (s *Set[R]) Hold(local [][]byte, use func(R, []byte)) error {
	for i, b := range local {
		if len(b) == 0 {
			continue
		}
		e := s.find(b)
		if e == nil || !e.memory.hold() {
			s.Release(local[:i])
			return fmt.Errorf("slice %d of the local memory: %w", i, verbs.ErrNotRegistered)
		}
		if use != nil {
			use(e.region, b)
		}
	}
	return nil
}

// Release undoes a Hold.
func (s *Set[R]) Release(local [][]byte) {
	for _, b := range local {
		if len(b) > 0 {
			s.find(b).memory.release()
		}
	}
}

// End ends a region: from now on no work request can hold it. revoke is called to close its bindings; then those that hold
// it are waited for, deregister is called, and it is forgotten. Another call waits for the first, and returns the same.
func (s *Set[R]) End(m *Memory, revoke, deregister func() error) error {
	if !m.begin() {
		<-m.ended
		return m.err
	}
	err := revoke()
	<-m.unused
	s.mu.Lock()
	defer s.mu.Unlock()
	m.err = errors.Join(err, deregister())
	list := slices.DeleteFunc(slices.Clone(*s.list.Load()), func(e entry[R]) bool { return e.memory == m })
	s.list.Store(&list)
	close(m.ended)
	return m.err
}

// Close takes no more regions, and returns those that there are.
func (s *Set[R]) Close() []R {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	var all []R
	for _, e := range *s.list.Load() {
		all = append(all, e.region)
	}
	return all
}
