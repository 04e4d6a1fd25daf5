package iwarp

import (
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/millrace/millrace/verbs"
)

// conn is a connection: one TCP stream, a goroutine that sends and one that receives.
type conn struct {
	dev   *Device
	tcp   *net.TCPConn
	raw   syscall.RawConn
	crc   bool
	ord   int
	ours  bool // made by this side
	peer  verbs.Peer
	onEnd func()
	wake  chan struct{} // holds one when there may be something to send
	recvd chan struct{} // holds one when a RECV was posted, or the connection has failed
	done  chan struct{}
	loops atomic.Int32

	mu sync.Mutex
	// err is why the connection ended; refusal is the fault for which it is about to end.
	err     error
	refusal *remoteError
	blame   []byte // payload of the Terminate message, until it is sent
	speak   bool   // false until a peer that made the connection has sent something (RFC 5044 §7.1.2)
	sends   ring[posted]
	recvs   ring[posted]
	answers ring[answer] // to the peer's READs
	reads   ring[read]   // ours that are not answered, fences among them
	// sent holds what has been given to TCP but not fenced, oldest first. Its items are numbered from 1;
	// begun is the number of the newest, covered that of the newest which a fence is under way for.
	sent           ring[posted]
	begun, covered uint64
	ended          uint64 // number of the newest that has completed

	txMu sync.Mutex // for tx; held while TCP is waited for
	tx   sender
	rx   receiver
	progress
}

// posted is a work request in hand.
type posted struct {
	wr    verbs.WorkRequest
	queue *verbs.Queue
	bytes int64
}

// answer is a READ of the peer that is allowed and waits to be answered.
type answer struct {
	source *binding // nil for no bytes
	req    readRequest
}

// read is a READ request of this side, under way.
type read struct {
	work  posted // none for a fence
	stag  uint32
	got   int64
	rest  cursor
	fence uint64 // covers sent up to this number; 0 for a READ
}

// start makes a connection, which is booked, of a TCP stream on which both sides have agreed. When it has ended, it calls
// onEnd. On error it is no longer booked.
func (d *Device) start(tcp *net.TCPConn, l link, onEnd func()) (*conn, error) {
	_ = tcp.SetDeadline(time.Time{})
	raw, err := tcp.SyscallConn()
	if err != nil {
		d.conns.Cancel()
		return nil, err
	}
	withinHost(tcp, raw)
	from := tcp.RemoteAddr().(*net.TCPAddr).AddrPort()
	c := &conn{
		dev: d, tcp: tcp, raw: raw, crc: l.crc, ord: l.ord, ours: l.speak, speak: l.speak, onEnd: onEnd,
		peer: verbs.Peer{Addr: addrPort(from), Private: l.private},
		wake: make(chan struct{}, 1), recvd: make(chan struct{}, 1), done: make(chan struct{}),
	}
	c.tx.init(c)
	c.rx.init(c)
	c.loops.Store(2)
	if err := d.conns.Enter(c); err != nil {
		return nil, err
	}
	go c.run(c.sendAll)
	go c.run(c.receiveAll)
	return c, nil
}

func (c *conn) run(loop func()) {
	loop()
	if c.loops.Add(-1) == 0 {
		c.finish()
	}
}

// Peer describes the other side.
func (c *conn) Peer() verbs.Peer { return c.peer }

// Done is closed when all has ended.
func (c *conn) Done() <-chan struct{} { return c.done }

// Err is nil while the connection lives.
func (c *conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.why()
}

// why is the error of a connection that takes no more work requests. The caller holds c.mu.
func (c *conn) why() error {
	if c.err == nil && c.refusal != nil {
		return c.refusal
	}
	return c.err
}

// Close ends the connection, and waits.
func (c *conn) Close() error {
	c.fail(verbs.ErrClosed)
	<-c.done
	return nil
}

// fail ends the connection because of err. Only the first error is kept.
func (c *conn) fail(err error) {
	c.mu.Lock()
	if c.err == nil {
		c.err = err
		if c.refusal != nil {
			c.err = c.refusal
		}
	}
	c.mu.Unlock()
	_ = c.tcp.Close()
	c.poke()
	tell(c.recvd)
}

func (c *conn) poke() { tell(c.wake) }

// tell puts one into a channel that holds one.
func tell(to chan struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}

// Post takes a work request.
func (c *conn) Post(wr *verbs.WorkRequest, q *verbs.Queue) error {
	if err := c.post(wr, q); err != nil {
		return c.failed(wr.Op, err)
	}
	return nil
}

func (c *conn) failed(op verbs.Opcode, err error) error {
	return &verbs.Error{Op: op.String(), Provider: Provider, Peer: c.peer.Addr.String(), Err: err}
}

func (c *conn) post(wr *verbs.WorkRequest, q *verbs.Queue) error {
	p := posted{wr: *wr, queue: q, bytes: bytesOf(wr.Local)}
	switch {
	case wr.Op < verbs.OpWrite || wr.Op > verbs.OpRecv:
		return fmt.Errorf("unknown operation %d", wr.Op)
	case p.bytes > c.dev.cfg.MaxMessageBytes || len(wr.Local) > maxSegments:
		return fmt.Errorf("%d bytes in %d slices: %w", p.bytes, len(wr.Local), verbs.ErrTooLarge)
	case !q.Reserve():
		return verbs.ErrQueueFull
	}
	if err := c.dev.regions.Hold(wr.Local, nil); err != nil {
		q.Cancel()
		return err
	}
	first, err := c.enqueue(p)
	if err != nil {
		c.dev.regions.Release(wr.Local)
		q.Cancel()
		return err
	}
	if first {
		c.send(p.bytes)
	}
	return nil
}

// enqueue says whether the work request is the first to be sent: else those before it are under way or blocked.
func (c *conn) enqueue(p posted) (first bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.why(); err != nil {
		return false, err
	}
	if c.ord == 0 && p.wr.Op != verbs.OpRecv {
		return false, fmt.Errorf("peer allows no READ, so nothing can be fenced: %w", verbs.ErrPeer)
	}
	to, limit := &c.sends, c.dev.cfg.SendDepth
	if p.wr.Op == verbs.OpRecv {
		to, limit = &c.recvs, c.dev.cfg.RecvDepth
	}
	if to.len() >= limit {
		return false, verbs.ErrQueueFull
	}
	to.push(p)
	if to == &c.recvs {
		tell(c.recvd)
	}
	return to == &c.sends && to.len() == 1, nil
}

// complete ends a work request, after which its memory is the caller's again.
func (c *conn) complete(p *posted, n int64, err error) {
	c.dev.regions.Release(p.wr.Local)
	done := verbs.Completion{ID: p.wr.ID, Op: p.wr.Op, Bytes: n}
	if err != nil {
		c.dev.meter.Failed.Add(1)
		done.Err, done.Bytes = c.failed(p.wr.Op, err), 0
	} else if p.wr.Op != verbs.OpRecv {
		c.dev.meter.Initiated.Add(p.wr.Op, n)
	}
	p.queue.Complete(done)
}

// finish runs when both goroutines have ended. Nobody touches memory once it has txMu.
func (c *conn) finish() {
	_ = c.tcp.Close()
	c.txMu.Lock()
	defer c.txMu.Unlock()
	c.mu.Lock()
	if c.err == nil {
		c.err = fmt.Errorf("connection ended: %w", verbs.ErrPeer)
		if c.refusal != nil {
			c.err = c.refusal
		}
	}
	err := c.err
	c.mu.Unlock()
	for c.sent.len() > 0 {
		p := c.sent.pop()
		c.complete(&p, 0, err)
	}
	c.tx.abandon(c, err)
	for c.reads.len() > 0 {
		if r := c.reads.pop(); r.fence == 0 {
			c.complete(&r.work, 0, err)
		}
	}
	for _, q := range []*ring[posted]{&c.sends, &c.recvs} {
		for q.len() > 0 {
			p := q.pop()
			c.complete(&p, 0, err)
		}
	}
	c.onEnd()
	c.dev.conns.Leave(c)
	close(c.done)
}

// progress is what the watchdog looks at.
type progress struct {
	received atomic.Uint64 // FPDUs, whole
	taken    atomic.Uint64 // bytes that TCP took
	partial  atomic.Bool   // the beginning of an FPDU is here
	sending  atomic.Bool   // bytes wait for TCP
	asked    atomic.Int32  // READs not answered

	// Of the watchdog alone.
	seenReceived, seenTaken       uint64
	receivedAt, takenAt, activeAt time.Time
}

// takenLeast is how much a peer must take in the time of a stall not to be one.
const takenLeast = 64 << 10

// stalled tells whether the peer has made no progress for too long.
func (c *conn) stalled(now time.Time) bool {
	received, taken, sending := c.received.Load(), c.taken.Load(), c.sending.Load()
	if c.activeAt.IsZero() {
		c.receivedAt, c.takenAt, c.activeAt = now, now, now
	}
	if received != c.seenReceived || taken != c.seenTaken {
		c.activeAt = now
	}
	if received != c.seenReceived || !c.partial.Load() && c.asked.Load() == 0 {
		c.seenReceived, c.receivedAt = received, now
	}
	if taken-c.seenTaken >= takenLeast || !sending {
		c.seenTaken, c.takenAt = taken, now
	}
	stall := c.dev.cfg.StallTimeout
	return now.Sub(c.receivedAt) > stall || now.Sub(c.takenAt) > stall ||
		!c.ours && now.Sub(c.activeAt) > c.dev.cfg.IdleTimeout
}
