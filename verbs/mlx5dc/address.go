package mlx5dc

import (
	"container/list"
	"context"
	"fmt"
	"sync"

	"github.com/millrace/millrace/verbs"
	"github.com/millrace/millrace/verbs/mlx5dc/libmlx5"
)

// addressKey is where an address handle leads.
type addressKey struct {
	gid [16]byte
	lid uint16
}

// address is an address handle, shared by all connections to one GID.
type address struct {
	key   addressKey
	ready chan struct{} // closed when ah or err is there
	ah    libmlx5.AH
	err   error
	users int
	stale bool          // not to be given out again
	idle  *list.Element // its place among those without users
}

// addresses keeps address handles: making one asks the kernel for the way, which may take as long as it takes to find a neighbour.
type addresses struct {
	max  int
	make func(addressKey) (libmlx5.AH, error)
	end  func(libmlx5.AH)

	mu    sync.Mutex
	known map[addressKey]*address
	idle  list.List // least recently used first
	tasks sync.WaitGroup
}

func newAddresses(most int, create func(addressKey) (libmlx5.AH, error), end func(libmlx5.AH)) *addresses {
	return &addresses{max: most, make: create, end: end, known: map[addressKey]*address{}}
}

// get returns the address handle; put must follow.
func (s *addresses) get(ctx context.Context, key addressKey) (*address, error) {
	a, err := s.find(key)
	if err != nil {
		return nil, err
	}
	select {
	case <-a.ready:
		err = a.err
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		s.put(a)
		return nil, err
	}
	return a, nil
}

func (s *addresses) find(key addressKey) (*address, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a := s.known[key]; a != nil {
		a.users++
		if a.idle != nil {
			s.idle.Remove(a.idle)
			a.idle = nil
		}
		return a, nil
	}
	if len(s.known) >= s.max {
		oldest := s.idle.Front()
		if oldest == nil {
			return nil, fmt.Errorf("%d addresses in use: %w", len(s.known), verbs.ErrLimit)
		}
		s.drop(oldest.Value.(*address))
	}
	a := &address{key: key, ready: make(chan struct{}), users: 2} // the caller, and who makes it
	s.known[key] = a
	s.tasks.Go(func() {
		ah, err := s.make(key)
		s.mu.Lock()
		a.ah, a.err, a.stale = ah, err, a.stale || err != nil
		s.mu.Unlock()
		close(a.ready)
		s.put(a)
	})
	return a, nil
}

// put gives back what get returned.
func (s *addresses) put(a *address) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.users--; a.users > 0 {
		return
	}
	if a.stale {
		s.drop(a)
		return
	}
	a.idle = s.idle.PushBack(a)
}

// forget makes the next get find out the way anew: the peer may have another hardware address now.
func (s *addresses) forget(a *address) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a.stale = true
	if s.known[a.key] == a {
		delete(s.known, a.key)
	}
}

// drop ends an address handle without users.
func (s *addresses) drop(a *address) {
	if a.idle != nil {
		s.idle.Remove(a.idle)
		a.idle = nil
	}
	if s.known[a.key] == a {
		delete(s.known, a.key)
	}
	if a.ah != 0 {
		s.end(a.ah)
		a.ah = 0
	}
}

// close ends all of them. None may have users but those who make them.
func (s *addresses) close() {
	s.tasks.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.idle.Len() > 0 {
		s.drop(s.idle.Front().Value.(*address))
	}
}
