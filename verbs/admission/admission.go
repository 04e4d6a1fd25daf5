// Package admission counts the connections of a device and admits peers that connect by TCP: so many connections in
// all, so many from one address, so many being made at a time. Providers whose connections start with a TCP connection
// use it.
//
// It is not a protocol: what is said on an accepted connection, and how a connection of the provider comes of it, is the
// provider's. It ends no connections.
//
// Invariant: the connections that live and those that are being made are together never more than the limit, and once
// Stop has returned no connection enters: those that All returns then are the last.
package admission

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/millrace/millrace/verbs"
)

// Limits bound what is admitted. All must be positive.
type Limits struct {
	// Conns are the most connections, those that are being made among them; PerAddr the most of a listener that were
	// made from one address; Handshakes the most of a listener that are being made.
	Conns, PerAddr, Handshakes int
	// StartTimeout is how long a peer that connects may take until there is a connection.
	StartTimeout time.Duration
}

// Conn is a connection of a provider.
type Conn interface {
	comparable
	verbs.Conn
}

// Table holds the connections of a device. Each is booked by Reserve while it is being made; Cancel or Enter ends that.
type Table[C Conn] struct {
	limits Limits
	meter  *verbs.Meter
	life   context.Context // ends with Close
	end    context.CancelFunc
	tasks  sync.WaitGroup // accepting and shaking hands

	mu        sync.Mutex
	stopped   error // why none is admitted any more
	pending   int   // being made
	conns     map[C]struct{}
	listeners map[*Listener[C]]struct{}
}

// NewTable returns a table without connections. meter counts those that enter and leave.
func NewTable[C Conn](limits Limits, meter *verbs.Meter) *Table[C] {
	t := &Table[C]{
		limits: limits, meter: meter, conns: map[C]struct{}{}, listeners: map[*Listener[C]]struct{}{},
	}
	t.life, t.end = context.WithCancel(context.Background())
	return t
}

// Reserve books a connection that is being made. Errors wrap verbs.ErrLimit, or are what Stop was given.
func (t *Table[C]) Reserve() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stopped != nil {
		return t.stopped
	}
	if n := len(t.conns) + t.pending; n >= t.limits.Conns {
		return fmt.Errorf("%d connections: %w", n, verbs.ErrLimit)
	}
	t.pending++
	return nil
}

// Cancel gives back what Reserve has booked.
func (t *Table[C]) Cancel() {
	t.mu.Lock()
	t.pending--
	t.mu.Unlock()
}

// Enter turns what Reserve has booked into a connection. On error, which is what Stop was given, it is given back.
func (t *Table[C]) Enter(c C) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pending--
	if t.stopped != nil {
		return t.stopped
	}
	t.conns[c] = struct{}{}
	t.meter.Connections.Add(1)
	t.meter.Live.Add(1)
	return nil
}

// Leave removes a connection that has entered.
func (t *Table[C]) Leave(c C) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.conns, c)
	t.meter.Live.Add(-1)
}

// All returns the connections that live.
func (t *Table[C]) All() []C {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]C, 0, len(t.conns))
	for c := range t.conns {
		all = append(all, c)
	}
	return all
}

// Stop admits no more connections, because of err. verbs.ErrClosed is final.
func (t *Table[C]) Stop(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !errors.Is(t.stopped, verbs.ErrClosed) {
		t.stopped = err
	}
}

// Close admits no more connections, breaks those off that peers are making, and closes the listeners. The first call
// returns true, and returns when nothing is accepted any more.
func (t *Table[C]) Close() bool {
	t.mu.Lock()
	if errors.Is(t.stopped, verbs.ErrClosed) {
		t.mu.Unlock()
		return false
	}
	t.stopped = verbs.ErrClosed
	var listeners []*Listener[C]
	for l := range t.listeners {
		listeners = append(listeners, l)
	}
	t.mu.Unlock()
	t.end()
	for _, l := range listeners {
		_ = l.Close()
	}
	return true
}

// Wait waits, after Close, until nothing is left of the connections that peers were making.
func (t *Table[C]) Wait() { t.tasks.Wait() }
