package ibverbs

import (
	"errors"

	"github.com/millrace/millrace/verbs"
	lib "github.com/millrace/millrace/verbs/ibverbs/libibverbs"
)

// handle takes completions of the device.
func (c *conn) handle(wcs []lib.WC) {
	for i := range wcs {
		c.take(&wcs[i])
	}
}

func (c *conn) take(wc *lib.WC) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var err error
	if wc.Status != lib.WCSuccess {
		err = c.err
		if wc.Status != lib.WCWRFlushErr || err == nil {
			err = &lib.StatusError{Status: wc.Status, Vendor: wc.VendorErr}
		}
	}
	if wc.WRID&recvBit != 0 {
		c.received(wc, err)
	} else {
		c.sent(wc.WRID, err)
	}
	if err != nil {
		c.failLocked(err)
	}
}

func (c *conn) received(wc *lib.WC, err error) {
	if wc.WRID&^recvBit != c.recvs.first || c.recvs.n == 0 {
		return // not ours: a queue pair gives them back in order
	}
	p := c.recvs.pop()
	done := verbs.Completion{}
	if err == nil && wc.WCFlags&lib.WCWithImm != 0 {
		done.Imm, done.HasImm = networkOrder(wc.Imm), true
	}
	if err == nil && wc.Opcode != lib.WCRecvWriteImm {
		done.Bytes = int64(wc.ByteLen)
	}
	c.complete(&p, done, err)
}

// sent completes the work request of that number, and those before it: they were done, or else the device would
// have said so first.
func (c *conn) sent(number uint64, err error) {
	for c.sends.n > 0 && c.sends.first < number {
		p := c.sends.pop()
		c.complete(&p, verbs.Completion{Bytes: p.bytes}, nil)
	}
	if c.sends.n > 0 && c.sends.first == number {
		p := c.sends.pop()
		c.complete(&p, verbs.Completion{Bytes: p.bytes}, err)
	}
}

// complete ends a work request, after which its memory is the caller's again.
func (c *conn) complete(p *posted, done verbs.Completion, err error) {
	c.dev.regions.Release(p.local)
	done.ID, done.Op = p.id, p.op
	if err != nil {
		c.meter.Failed.Add(1)
		done = verbs.Completion{ID: p.id, Op: p.op, Err: c.failed(p.op, err)}
	} else if p.op != verbs.OpRecv && p.op != opBind {
		c.meter.Initiated.Add(p.op, p.bytes)
	}
	p.queue.Complete(done)
}

// fail ends the connection because of err. Only the first error is kept. The device then gives back what was
// posted.
func (c *conn) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failLocked(err)
}

func (c *conn) failLocked(err error) {
	if c.err != nil {
		if c.guess && !errors.Is(err, verbs.ErrClosed) {
			c.err, c.guess = err, false
		}
		return
	}
	c.err = err
	c.ring()
	if c.qp == 0 {
		return
	}
	_ = c.dev.calls.ModifyQP(c.qp, &lib.QPAttr{QPState: lib.StateErr}, lib.MaskState)
	if c.sends.n+c.recvs.n == 0 {
		c.done.Expire(0)
	} else {
		c.done.Expire(c.dev.cfg.FlushTimeout)
	}
}

// abandon ends the connection of a device that won't give anything back.
func (c *conn) abandon(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lost = true
	if c.err == nil || c.guess {
		c.err, c.guess = err, false
		c.chained = 0
	}
	if c.qp != 0 {
		c.done.Expire(0)
	}
}

// finish runs when nothing more is to be expected of the completion queue. Destroying the queue pair is what
// guarantees that the device touches no memory any more.
func (c *conn) finish() {
	c.mu.Lock()
	qp := c.qp
	c.qp = 0
	c.mu.Unlock()
	_ = c.done.Drain(c.handle)
	_ = c.dev.calls.DestroyQP(qp)
	_ = c.done.Drain(c.handle)
	if c.tcp != nil {
		_ = c.tcp.Close()
	}
	c.mu.Lock()
	for _, r := range []*ring{&c.sends, &c.recvs} {
		for r.n > 0 {
			p := r.pop()
			c.complete(&p, verbs.Completion{}, c.err)
		}
	}
	c.free()
	c.guess = false
	c.mu.Unlock()
	_ = c.done.Destroy()
	c.onEnd()
	close(c.ended)
}
