package rdma

import (
	"context"
	"sync"
	"time"

	"github.com/millrace/millrace/verbs"
)

// sessions knows the connections that clients have made, and whose they are: a session belongs to the
// access key that used it first, for as long as it has a connection.
type sessions struct {
	mu    sync.Mutex
	byID  map[verbs.Session]*session
	added chan struct{} // closed when there is a new one; nil if nobody waits for that
}

type session struct {
	conns     int
	accessKey string // "" until it is used
}

func (s *sessions) add(id verbs.Session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byID == nil {
		s.byID = map[verbs.Session]*session{}
	}
	if s.byID[id] == nil {
		s.byID[id] = &session{}
	}
	s.byID[id].conns++
	if s.added != nil {
		close(s.added)
		s.added = nil
	}
}

func (s *sessions) remove(id verbs.Session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if one := s.byID[id]; one.conns > 1 {
		one.conns--
		return
	}
	delete(s.byID, id)
}

// sessionWait is how long a request waits for the connection of its session: the client may have it before
// this side has come to know of it.
const sessionWait = 250 * time.Millisecond

// claim tells whether the session is, or now becomes, that of an access key.
func (s *sessions) claim(ctx context.Context, id verbs.Session, accessKey string) bool {
	one, added := s.lookup(id)
	if one == nil {
		timer := time.NewTimer(sessionWait)
		defer timer.Stop()
		for one == nil {
			select {
			case <-added:
				one, added = s.lookup(id)
			case <-timer.C:
				return false
			case <-ctx.Done():
				return false
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if one.accessKey == "" {
		one.accessKey = accessKey
	}
	return one.accessKey == accessKey
}

// lookup returns the session, or a channel that is closed when there is a new one.
func (s *sessions) lookup(id verbs.Session) (*session, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if one := s.byID[id]; one != nil {
		return one, nil
	}
	if s.added == nil {
		s.added = make(chan struct{})
	}
	return nil, s.added
}

// join takes in a connection that a client made. One that names no session is of no use.
func (t *Transport) join(c verbs.Conn) {
	id, ok := verbs.SessionOf(c.Peer().Private)
	if !ok {
		_ = c.Close()
		return
	}
	if err := t.cache.Add(id, c); err != nil {
		_ = c.Close()
		return
	}
	t.sessions.add(id)
	go func() {
		<-c.Done()
		t.sessions.remove(id)
	}()
}
