package rdma

import (
	"context"
	"fmt"
	"io"
	"time"
	"unsafe"

	"github.com/millrace/millrace/verbs"
)

// span is a range of addresses.
type span struct{ start, end uintptr }

func spanOf(b []byte) span {
	start := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	return span{start, start + uintptr(len(b))}
}

func (s span) holds(b []byte) bool {
	part := spanOf(b)
	return s.start <= part.start && part.end <= s.end
}

// grace is how long a work request may go on when its request has been given up or has taken too long. A
// client that lives is done by then, and keeps the connection: ending a work request ends that, and with it
// all that others do there.
const grace = 500 * time.Millisecond

// transfer implements gateway.RDMATransfer. The zero value is one of no bytes.
type transfer struct {
	t      *Transport
	ctx    context.Context // ends when nothing more shall be posted
	hard   context.Context // ends when what was posted shall end
	kill   context.CancelFunc
	stop   func() bool // of the function that ends hard
	window verbs.Window
	size   int64 // what will be moved
	at     int64 // what was
	wrote  bool
	fenced bool // the client has everything that was written, or is told that it must wait for that
	fences bool // the client can wait for it by itself
	conn   verbs.Conn
	lease  *verbs.Lease // conn, to be put back; nil for the connection of a pair
	req    *verbs.Requester
	imm    uint32 // goes with the last byte
	hasImm bool
	local  [1][]byte
	err    error // of a work request; none is posted after it
}

// begin takes over a turn.
func (t *Transport) begin(ctx context.Context, w verbs.Window, n int64, conn verbs.Conn) *transfer {
	x := &transfer{t: t, ctx: ctx, window: w, size: n, conn: conn, req: t.free.Get().(*verbs.Requester)}
	x.hard, x.kill = context.WithCancel(context.WithoutCancel(ctx))
	x.stop = context.AfterFunc(ctx, func() { time.AfterFunc(grace, x.kill) })
	return x
}

// Write implements io.Writer. The last write of the transfer waits for the client to have everything, so
// that no work request is needed for that alone.
func (x *transfer) Write(p []byte) (n int, err error) {
	if len(p) == 0 {
		return 0, nil
	}
	if int64(len(p)) > x.size-x.at {
		return 0, fmt.Errorf("write beyond the %d bytes of the transfer: %w", x.size, verbs.ErrRange)
	}
	start := x.at
	if x.t.memory.holds(p) {
		err = x.post(p, true)
	} else {
		for rest := p; len(rest) > 0 && err == nil; {
			err = x.bounced(len(rest), func(buf []byte) error {
				rest = rest[copy(buf, rest):]
				return x.post(buf, true)
			})
		}
	}
	return int(x.at - start), err
}

// Read implements io.Reader.
func (x *transfer) Read(p []byte) (int, error) {
	n := int(min(int64(len(p)), x.size-x.at))
	switch {
	case x.size == x.at:
		return 0, io.EOF
	case n == 0:
		return 0, nil
	case x.t.memory.holds(p[:n]):
		if err := x.post(p[:n], false); err != nil {
			return 0, err
		}
		return n, nil
	}
	err := x.bounced(n, func(buf []byte) error {
		if err := x.post(buf, false); err != nil {
			return err
		}
		n = copy(p, buf)
		return nil
	})
	if err != nil {
		return 0, err
	}
	return n, nil
}

// bounced calls move with a registered buffer of at most n bytes.
func (x *transfer) bounced(n int, move func([]byte) error) error {
	select {
	case buf := <-x.t.bounce:
		defer func() { x.t.bounce <- buf }()
		n = min(n, len(buf))
		if err := move(buf[:n]); err != nil {
			return err
		}
		x.t.copied.Add(uint64(n))
		return nil
	case <-x.ctx.Done():
		return x.ctx.Err()
	}
}

// post moves one run of registered memory, and waits until it is done.
func (x *transfer) post(p []byte, write bool) error {
	switch {
	case x.err != nil || len(p) == 0:
		return x.err
	case x.ctx.Err() != nil:
		return x.ctx.Err()
	}
	x.local[0] = p
	if write {
		x.fenced = !x.fences && x.at+int64(len(p)) == x.size
		if x.wrote = true; x.hasImm && x.fenced {
			x.err = x.req.WriteImm(x.hard, x.conn, x.window, x.at, x.local[:], x.imm)
		} else {
			x.err = x.req.Write(x.hard, x.conn, x.window, x.at, x.local[:], !x.fenced)
		}
	} else {
		x.err = x.req.Read(x.hard, x.conn, x.window, x.at, x.local[:])
	}
	x.local[0] = nil
	if x.err == nil {
		x.at += int64(len(p))
	}
	return x.err
}

// Flush implements gateway.RDMATransfer.
func (x *transfer) Flush() (bool, error) {
	if x.err == nil && x.fences && x.at == x.size {
		x.fenced = true
		return false, nil
	}
	return true, x.fence()
}

// fence returns when the client has all bytes that were written.
func (x *transfer) fence() error {
	if x.err == nil && x.wrote && !x.fenced {
		x.err = x.req.Write(x.hard, x.conn, x.window, x.at, nil, false)
		x.fenced = x.err == nil
	}
	return x.err
}

// Close implements gateway.RDMATransfer. Every work request was waited for, but what was written may still
// be on its way. After an error there is nothing to wait for: the connection has ended.
func (x *transfer) Close() {
	if x.t == nil {
		return
	}
	if x.wrote && !x.fenced {
		soon := time.AfterFunc(grace, x.kill)
		_ = x.fence()
		soon.Stop()
	}
	x.stop()
	x.kill()
	if x.err == nil { // a requester that has seen an error is not used again
		x.t.free.Put(x.req)
	}
	if x.lease != nil {
		x.t.cache.Put(x.lease)
	}
	<-x.t.slots
	x.t = nil
}
