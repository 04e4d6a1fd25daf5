package client

import (
	"context"
	"crypto/rand"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/millrace/millrace/verbs"
)

// maxSessionConns is the most connections of one session; a server shares them between transfers.
const maxSessionConns = 8

// session is a set of connections that this side makes to a server which can't dial it. Tokens name the
// session in place of an address.
type session struct {
	device verbs.Device
	server verbs.Endpoint
	id     verbs.Session
	users  atomic.Int32 // transfers under way

	mu    sync.Mutex
	conns []verbs.Conn
}

func newSession(device verbs.Device, server verbs.Endpoint) (*session, error) {
	s := &session{device: device, server: server}
	_, err := rand.Read(s.id[:])
	return s, err
}

// enter makes sure that there are connections for one more transfer. The caller calls leave after it, unless
// there was an error.
func (s *session) enter(ctx context.Context) error {
	users := s.users.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns = slices.DeleteFunc(s.conns, func(c verbs.Conn) bool { return c.Err() != nil })
	if len(s.conns) >= min(int(users), maxSessionConns) {
		return nil
	}
	conn, err := s.device.Dial(ctx, s.server, s.id.Private())
	if err != nil {
		if len(s.conns) > 0 { // as many as there may be
			return nil
		}
		s.leave()
		return err
	}
	s.conns = append(s.conns, conn)
	return nil
}

func (s *session) leave() { s.users.Add(-1) }
