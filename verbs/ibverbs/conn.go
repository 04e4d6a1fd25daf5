package ibverbs

import (
	"errors"
	"fmt"
	"math/bits"
	"net"
	"os"
	"sync"
	"time"
	"unsafe"

	"github.com/millrace/millrace/verbs"
	lib "github.com/millrace/millrace/verbs/ibverbs/libibverbs"
)

// conn is a connection: a queue pair, its completion queue, and a goroutine that takes completions out. A TCP
// connection beside it, if there is one, tells that the peer lives.
type conn struct {
	dev   *Device
	qp    lib.QP
	done  *lib.Completions
	tcp   *net.TCPConn // nil if others have set it up
	peer  verbs.Peer
	meter *verbs.Meter
	ended chan struct{}
	onEnd func()

	mu    sync.Mutex
	err   error // why it ended
	guess bool  // err is only that the TCP connection ended: the device may know better
	lost  bool  // the device is gone: nothing completes any more
	sends ring
	recvs ring
	// The chain holds work requests that are in sends but not handed to the device yet.
	chained int
	wrs     []lib.SendWR // off the heap, as the next three
	sges    []lib.SGE    // MaxSegments for each
	recv    []lib.RecvWR // one
	recvSGE []lib.SGE
	bad     uintptr
	// What the watch for stalls has seen last: the number of the oldest work request, and since when.
	seen   uint64
	seenAt time.Time
}

// chainLimit is the most work requests that are handed over at once. Only the last of a chain is signalled.
const chainLimit = 16

// recvBit tells work request IDs of RECVs from the others.
const recvBit = 1 << 63

// posted is a work request in hand.
type posted struct {
	op    verbs.Opcode
	id    uint64
	local [][]byte
	queue *verbs.Queue
	bytes int64
}

// ring holds the posted work requests of one kind in their order. They are numbered from 0.
type ring struct {
	items []posted
	first uint64 // number of the oldest
	n     int
}

func (r *ring) full() bool { return r.n == len(r.items) }

// push returns the number of the work request.
func (r *ring) push(p posted) uint64 {
	number := r.first + uint64(r.n)
	r.items[number%uint64(len(r.items))] = p
	r.n++
	return number
}

func (r *ring) pop() posted {
	at := &r.items[r.first%uint64(len(r.items))]
	p := *at
	*at = posted{}
	r.first++
	r.n--
	return p
}

// newConn makes a connection around a queue pair, which it then owns.
func (d *Device) newConn(qp lib.QP, done *lib.Completions) (*conn, error) {
	c := &conn{dev: d, qp: qp, done: done, meter: &d.meter, ended: make(chan struct{}), onEnd: func() {}}
	c.sends.items = make([]posted, d.info.SendDepth)
	c.recvs.items = make([]posted, d.info.RecvDepth)
	var err [4]error
	c.wrs, err[0] = offHeap[lib.SendWR](chainLimit)
	c.sges, err[1] = offHeap[lib.SGE](chainLimit * d.info.MaxSegments)
	c.recv, err[2] = offHeap[lib.RecvWR](1)
	c.recvSGE, err[3] = offHeap[lib.SGE](d.info.MaxSegments)
	if e := errors.Join(err[:]...); e != nil {
		c.free()
		return nil, e
	}
	return c, nil
}

func (c *conn) free() {
	freeOffHeap(c.wrs)
	freeOffHeap(c.sges)
	freeOffHeap(c.recv)
	freeOffHeap(c.recvSGE)
	c.wrs, c.sges, c.recv, c.recvSGE = nil, nil, nil, nil
}

// run takes completions out until all is over.
func (c *conn) run() {
	// A deadline is set only when the connection has failed already.
	if err := c.done.Run(c.handle, c.idle); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		c.fail(fmt.Errorf("%w: %w", verbs.ErrPeer, err))
	}
	c.finish()
}

// idle is true when the connection has ended and everything has completed.
func (c *conn) idle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err != nil && (c.lost || c.sends.n+c.recvs.n == 0)
}

// watchPeer waits for the end of the TCP connection. The peer has nothing more to say on it.
func (c *conn) watchPeer() {
	_, err := c.tcp.Read(make([]byte, 1))
	if err == nil {
		err = errors.New("unexpected bytes")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.failLocked(fmt.Errorf("%w: %w", verbs.ErrPeer, err))
		c.guess = true
	}
}

// Peer describes the other side.
func (c *conn) Peer() verbs.Peer { return c.peer }

// Done is closed when all has ended.
func (c *conn) Done() <-chan struct{} { return c.ended }

// Err is nil while the connection lives.
func (c *conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close ends the connection, and waits.
func (c *conn) Close() error {
	c.fail(verbs.ErrClosed)
	<-c.ended
	return nil
}

// Post takes a work request.
func (c *conn) Post(wr *verbs.WorkRequest, q *verbs.Queue) error {
	c.mu.Lock()
	err := c.post(wr, q)
	if err != nil || !wr.More || c.chained == chainLimit {
		c.ring()
	}
	c.mu.Unlock()
	if err != nil {
		return c.failed(wr.Op, err)
	}
	return nil
}

func (c *conn) failed(op verbs.Opcode, err error) error {
	if op == opBind {
		return err // the caller says what it was
	}
	return &verbs.Error{Op: op.String(), Provider: Provider, Peer: c.peer.Addr.String(), Err: err}
}

func (c *conn) post(wr *verbs.WorkRequest, q *verbs.Queue) error {
	p := posted{op: wr.Op, id: wr.ID, local: wr.Local, queue: q}
	segments := 0
	for _, b := range wr.Local {
		p.bytes += int64(len(b))
		if len(b) > 0 {
			segments++
		}
	}
	info := &c.dev.info
	in := &c.sends
	if wr.Op == verbs.OpRecv {
		in = &c.recvs
	}
	switch {
	case wr.Op < verbs.OpWrite || wr.Op > verbs.OpRecv:
		return fmt.Errorf("unknown operation %d", wr.Op)
	case p.bytes > info.MaxMessageBytes || segments > info.MaxSegments:
		return fmt.Errorf("%d bytes in %d slices: %w", p.bytes, segments, verbs.ErrTooLarge)
	case c.err != nil:
		return c.err
	case in.full() || !q.Reserve():
		return verbs.ErrQueueFull
	}
	var err error
	if wr.Op == verbs.OpRecv {
		err = c.postRecv(p)
	} else {
		err = c.chain(wr, p)
	}
	if err != nil {
		q.Cancel()
	}
	return err
}

func (c *conn) postRecv(p posted) error {
	n, err := c.dev.hold(p.local, c.recvSGE)
	if err != nil {
		return err
	}
	c.recv[0] = lib.RecvWR{
		WRID: c.recvs.push(p) | recvBit, SGList: uintptr(unsafe.Pointer(&c.recvSGE[0])), NumSGE: int32(n),
	}
	if err := c.dev.calls.PostRecv(c.qp, &c.recv[0], &c.bad); err != nil {
		c.recvs.n-- // the one that was pushed last
		c.dev.regions.Release(p.local)
		return fmt.Errorf("%w: %w", verbs.ErrQueueFull, err)
	}
	return nil
}

// chain adds a work request to the chain.
func (c *conn) chain(wr *verbs.WorkRequest, p posted) error {
	sges := c.sges[c.chained*c.dev.info.MaxSegments:][:c.dev.info.MaxSegments]
	n, err := c.dev.hold(p.local, sges)
	if err != nil {
		return err
	}
	s := &c.wrs[c.chained]
	*s = lib.SendWR{
		WRID: c.sends.push(p), SGList: uintptr(unsafe.Pointer(&sges[0])), NumSGE: int32(n),
		Opcode: opcodeOf(wr.Op), RemoteAddr: wr.Addr, RKey: wr.RKey,
	}
	if wr.Op == verbs.OpWriteImm {
		s.Imm = networkOrder(wr.Imm)
	}
	if c.chained > 0 {
		c.wrs[c.chained-1].Next = uintptr(unsafe.Pointer(s))
	}
	c.chained++
	return nil
}

func opcodeOf(op verbs.Opcode) uint32 {
	switch op {
	case verbs.OpWrite:
		return lib.WRWrite
	case verbs.OpWriteImm:
		return lib.WRWriteImm
	case verbs.OpRead:
		return lib.WRRead
	}
	return lib.WRSend
}

// networkOrder turns a number into the bytes that C holds for it in network order, and back: Linux on amd64 and
// arm64 is little-endian.
func networkOrder(v uint32) uint32 { return bits.ReverseBytes32(v) }

// ring hands the chain to the device, the last one signalled: when that has completed, so have those before it.
// The caller holds c.mu.
func (c *conn) ring() {
	if c.chained == 0 {
		return
	}
	n := c.chained
	c.chained = 0
	c.wrs[n-1].SendFlags = lib.SendSignaled
	err := c.dev.calls.PostSend(c.qp, &c.wrs[0], &c.bad)
	if err == nil {
		return
	}
	// The device has taken those before the bad one. Those from it on will never complete by themselves, nor need
	// the ones that it took, none of which is signalled: destroying the queue pair is what ends them.
	c.failLocked(fmt.Errorf("%w: %w", verbs.ErrPeer, err))
	c.done.Expire(0)
}
