package mlx5dc

import (
	"errors"
	"fmt"
	"slices"

	"github.com/millrace/millrace/verbs"
	lib "github.com/millrace/millrace/verbs/ibverbs/libibverbs"
)

// ErrOneSided: DC moves bytes by WRITE and READ; messages need a target on this side.
var ErrOneSided = errors.New("DC initiators do WRITE and READ only")

// work is a work request from Post to its completion.
type work struct {
	id    uint64
	op    verbs.Opcode
	queue *verbs.Queue
	bytes int64
	local [][]byte
	addr  uint64
	rkey  uint32
	sges  []lib.SGE // made once
	n     int       // of them, those in use
}

// conn acts as a connection to one target. All of it is under the lock of the pool.
type conn struct {
	pool    *Initiators
	to      verbs.Endpoint
	address *address
	// ring holds work requests by their number: head … issued are with the DCI, issued … tail wait.
	ring               []work
	head, issued, tail uint64
	dci                *dci
	waiting            bool // in the pool's queue
	err                error
	over               bool
	ended              chan struct{}
}

func (s *Initiators) newConn(to verbs.Endpoint, a *address) *conn {
	c := &conn{pool: s, to: to, address: a, ring: make([]work, s.cfg.SendDepth), ended: make(chan struct{})}
	sges := make([]lib.SGE, s.cfg.SendDepth*s.cfg.MaxSegments)
	for i := range c.ring {
		c.ring[i].sges = sges[i*s.cfg.MaxSegments:][:s.cfg.MaxSegments:s.cfg.MaxSegments]
	}
	return c
}

func (c *conn) at(number uint64) *work { return &c.ring[number%uint64(len(c.ring))] }

// Post hands over a work request.
func (c *conn) Post(wr *verbs.WorkRequest, q *verbs.Queue) error {
	if err := c.post(wr, q); err != nil {
		return c.failed(wr.Op, err)
	}
	return nil
}

func (c *conn) post(wr *verbs.WorkRequest, q *verbs.Queue) error {
	if wr.Op != verbs.OpWrite && wr.Op != verbs.OpRead {
		return fmt.Errorf("%v: %w", wr.Op, ErrOneSided)
	}
	s := c.pool
	var bytes int64
	segments := 0
	for _, b := range wr.Local {
		bytes += int64(len(b))
		if len(b) > 0 {
			segments++
		}
	}
	if bytes > s.cfg.MaxMessageBytes || segments > s.cfg.MaxSegments {
		return fmt.Errorf("%d bytes in %d segments: %w", bytes, segments, verbs.ErrTooLarge)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.err != nil {
		return c.err
	}
	if c.tail-c.head == uint64(len(c.ring)) || !q.Reserve() {
		return verbs.ErrQueueFull
	}
	w := c.at(c.tail)
	n, err := s.host.Memory.Hold(wr.Local, w.sges)
	if err != nil {
		q.Cancel()
		return err
	}
	*w = work{
		id: wr.ID, op: wr.Op, queue: q, bytes: bytes, local: wr.Local, addr: wr.Addr, rkey: wr.RKey, sges: w.sges, n: n,
	}
	c.tail++
	s.issue(c)
	return nil
}

// Peer knows no address: nothing comes from the peer.
func (c *conn) Peer() verbs.Peer { return verbs.Peer{} }

// Done is closed when the connection has ended and all completions are out.
func (c *conn) Done() <-chan struct{} { return c.ended }

// Err is nil while the connection lives, then why it ended.
func (c *conn) Err() error {
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	return c.err
}

// Close ends the connection, and waits until all work requests have completed.
func (c *conn) Close() error {
	c.pool.mu.Lock()
	c.pool.fail(c, verbs.ErrClosed)
	c.pool.mu.Unlock()
	<-c.ended
	return nil
}

// fail ends a connection because of err; only the first counts. Work requests that the DCI has are flushed, and those
// behind them fail after that. The lock is held.
func (s *Initiators) fail(c *conn, err error) {
	if c.err != nil {
		return
	}
	c.err = err
	if c.waiting {
		c.waiting = false
		s.queue = slices.DeleteFunc(s.queue, func(o *conn) bool { return o == c })
	}
	x := c.dci
	if x == nil {
		s.finish(c)
		return
	}
	x.drained = make(chan struct{})
	if x.flying == 0 {
		close(x.drained)
	}
	s.tasks.Go(func() { s.mend(x, c) })
}

// finish completes all that is left of a connection that has failed and has no DCI. The lock is held.
func (s *Initiators) finish(c *conn) {
	if c.over {
		return
	}
	c.over = true
	for c.head < c.tail {
		s.complete(c, c.err)
	}
	if errors.Is(c.err, verbs.ErrPeer) {
		s.addresses.forget(c.address)
	}
	s.addresses.put(c.address)
	delete(s.conns, c)
	s.host.Meter.Live.Add(-1)
	close(c.ended)
}

// complete ends the oldest work request, after which its memory is the caller's again. The lock is held.
func (s *Initiators) complete(c *conn, err error) {
	w := c.at(c.head)
	c.head++
	c.issued = max(c.issued, c.head)
	s.host.Memory.Release(w.local)
	done := verbs.Completion{ID: w.id, Op: w.op}
	if err != nil {
		s.host.Meter.Failed.Add(1)
		done.Err = c.failed(w.op, err)
	} else {
		done.Bytes = w.bytes
		s.host.Meter.Initiated.Add(w.op, w.bytes)
	}
	q := w.queue
	w.local, w.queue = nil, nil
	q.Complete(done)
}

func (c *conn) failed(op verbs.Opcode, err error) error {
	return &verbs.Error{Op: op.String(), Provider: c.pool.host.Provider, Peer: c.to.String(), Err: err}
}
