package iwarp

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/millrace/millrace/verbs"
)

// receive deals with one FPDU, whose header is in the buffer.
func (c *conn) receive(h *header) (fault, error) {
	switch {
	case h.payload() < 0:
		return faultLength, nil
	case h.ddp != ddpVersion && h.tagged:
		return faultTaggedVersion, nil
	case h.ddp != ddpVersion:
		return faultVersion, nil
	case h.rdmap != rdmapVersion>>6:
		return faultRDMAPVersion, nil
	case h.op > lastKnownOpcode || h.tagged != (h.op == opWrite || h.op == opReadResponse):
		return faultOpcode, nil
	}
	switch h.op {
	case opWrite:
		return c.onWrite(h)
	case opReadResponse:
		return c.onReadResponse(h)
	case opReadRequest:
		return c.onReadRequest(h)
	case opTerminate:
		return c.onTerminate(h)
	case opImmediate, opImmediateSE:
		return c.onImmediate(h)
	}
	return c.onSend(h)
}

// onWrite places a segment of a peer's WRITE.
func (c *conn) onWrite(h *header) (fault, error) {
	x := &c.rx
	x.bound, x.to, x.rest = nil, h.to, cursor{}
	if h.payload() > 0 { // a WRITE of nothing needs no right to anything (RFC 5040 §5.2)
		if x.last == nil || x.last.stag != h.stag {
			if x.last = c.dev.binding(h.stag); x.last != nil {
				x.last.claim(c)
			}
		}
		if x.last == nil {
			return faultTaggedSTag, nil
		}
		x.bound = x.last
		x.bound.mu.RLock()
		_, f := x.bound.part(h.to, uint64(h.payload()), verbs.RemoteWrite)
		x.bound.mu.RUnlock()
		if f != noFault {
			return f, nil
		}
		x.ahead.begin(h, x.writeGot == 0)
	}
	f, err := c.place(h)
	if f != noFault || err != nil {
		return f, err
	}
	x.writeGot += int64(h.payload())
	if h.last {
		// The first message of a peer that made the connection may only say that it is ready.
		if x.ready || x.writeGot > 0 || c.ours {
			c.dev.meter.Served.Add(verbs.OpWrite, x.writeGot)
		}
		x.ahead.length, x.writeGot = x.writeGot, 0
	}
	if h.payload() > 0 { // counted above before its owner is told
		if x.last.writer == c {
			x.last.high = max(x.last.high, h.to+uint64(h.payload()))
		}
		x.last.arrivals.add(int64(h.payload()))
	}
	return noFault, nil
}

// onReadResponse places a segment of the answer to the oldest READ.
func (c *conn) onReadResponse(h *header) (fault, error) {
	x := &c.rx
	c.mu.Lock()
	if c.reads.len() == 0 {
		c.mu.Unlock()
		return faultOpcode, nil
	}
	r := c.reads.front()
	stag, got, left := r.stag, r.got, r.work.bytes-r.got
	x.bound, x.rest = nil, r.rest
	c.mu.Unlock()
	n := int64(h.payload())
	switch {
	case h.stag != stag:
		return faultTaggedSTag, nil
	case h.to != uint64(got) || n > left || h.last != (n == left):
		return faultTaggedBounds, nil
	}
	if f, err := c.place(h); f != noFault || err != nil {
		return f, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	r = c.reads.front() // sending may have made the ring grow
	r.got, r.rest = got+n, x.rest
	if n < left {
		return noFault, nil
	}
	done := c.reads.pop()
	c.asked.Add(-1)
	if c.sends.len() > 0 || c.begun > c.covered { // it may have waited for this
		c.poke()
	}
	if done.fence == 0 {
		c.complete(&done.work, done.work.bytes, nil)
		return noFault, nil
	}
	for c.ended < done.fence {
		p := c.sent.pop()
		c.ended++
		c.complete(&p, p.bytes, nil)
	}
	return noFault, nil
}

// onSend places a segment of a message in the oldest RECV.
func (c *conn) onSend(h *header) (fault, error) {
	x := &c.rx
	if f := c.inOrder(h, queueSend, x.sendMSN, uint32(x.sendGot)); f != noFault {
		return f, nil
	}
	p, ok := c.receiving()
	n := int64(h.payload())
	switch {
	case !ok:
		return faultNoBuffer, nil
	case n > p.bytes-x.sendGot:
		return faultTooLong, nil
	}
	x.bound, x.rest = nil, newCursor(p.wr.Local)
	x.rest.drop(x.sendGot)
	if f, err := c.place(h); f != noFault || err != nil {
		return f, err
	}
	x.sendGot += n
	if !h.last {
		return noFault, nil
	}
	if h.op == opSendInv || h.op == opSendSEInv {
		b := c.dev.binding(h.stag)
		if b == nil {
			return faultNoInvalidate, nil
		}
		_ = b.Close()
	}
	c.dev.meter.Served.Add(verbs.OpSend, x.sendGot)
	c.endReceive(verbs.Completion{Bytes: x.sendGot})
	return noFault, nil
}

// onImmediate ends the oldest RECV with a value.
func (c *conn) onImmediate(h *header) (fault, error) {
	switch {
	case h.payload() != immediateBytes:
		return faultLength, nil
	case c.rx.sendGot > 0 || !h.last:
		return faultMO, nil
	}
	if f := c.inOrder(h, queueSend, c.rx.sendMSN, 0); f != noFault {
		return f, nil
	}
	if _, ok := c.receiving(); !ok {
		return faultNoBuffer, nil
	}
	b, f, err := c.whole(h)
	if f != noFault || err != nil {
		return f, err
	}
	c.endReceive(verbs.Completion{Imm: binary.BigEndian.Uint32(b[4:]), HasImm: true})
	return noFault, nil
}

// inOrder checks the queue, the number and the offset of an untagged segment.
func (c *conn) inOrder(h *header, queue, msn, mo uint32) fault {
	switch {
	case h.qn != queue:
		return faultQueue
	case h.msn != msn:
		return faultMSN
	case h.mo != mo:
		return faultMO
	}
	return noFault
}

// firstRecvTime is how long the first message of a peer that made the connection waits for a RECV: the peer may send as soon
// as it has the reply, and only then does the connection's owner come to know of it.
const firstRecvTime = 500 * time.Millisecond

// receiving is the oldest RECV, if there is one. Only the receiving goroutine takes it out.
func (c *conn) receiving() (posted, bool) {
	p, ok := c.oldestRecv()
	if ok || c.ours || c.rx.sendMSN > 1 {
		return p, ok
	}
	late := time.NewTimer(firstRecvTime)
	defer late.Stop()
	select {
	case <-c.recvd:
	case <-late.C:
	}
	return c.oldestRecv()
}

func (c *conn) oldestRecv() (posted, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.recvs.len() == 0 {
		return posted{}, false
	}
	return *c.recvs.front(), true
}

// endReceive completes the oldest RECV.
func (c *conn) endReceive(done verbs.Completion) {
	c.rx.sendMSN++
	c.rx.sendGot = 0
	c.mu.Lock()
	p := c.recvs.pop()
	c.mu.Unlock()
	c.dev.regions.Release(p.wr.Local)
	done.ID, done.Op = p.wr.ID, p.wr.Op
	p.queue.Complete(done)
}

// onReadRequest lets the sending side answer a READ of the peer.
func (c *conn) onReadRequest(h *header) (fault, error) {
	x := &c.rx
	if h.payload() != readRequestBytes || !h.last {
		return faultLength, nil
	}
	if f := c.inOrder(h, queueRead, x.readMSN, 0); f != noFault {
		return f, nil
	}
	b, f, err := c.whole(h)
	if f != noFault || err != nil {
		return f, err
	}
	x.readMSN++
	a := answer{req: parseReadRequest(b)}
	if a.req.size > 0 {
		x.blame = append(x.blame, b...)
		if a.source = c.dev.binding(a.req.srcSTag); a.source == nil {
			return faultSTag, nil
		}
		a.source.mu.RLock()
		_, f = a.source.part(a.req.srcTO, uint64(a.req.size), verbs.RemoteRead)
		a.source.mu.RUnlock()
		if f != noFault {
			return f.ofRead(), nil
		}
	}
	c.mu.Lock()
	full := c.answers.len() >= c.dev.cfg.InboundReads
	if !full {
		c.answers.push(a)
	}
	c.mu.Unlock()
	if full {
		return faultNoBuffer, nil
	}
	c.send(int64(a.req.size))
	return noFault, nil
}

// onTerminate ends the connection as the peer says.
func (c *conn) onTerminate(h *header) (fault, error) {
	if h.payload() > terminateMax || !h.last {
		return faultLength, nil
	}
	if f := c.inOrder(h, queueTerminate, 1, 0); f != noFault {
		return f, nil
	}
	b, f, err := c.whole(h)
	if f != noFault || err != nil {
		return f, err
	}
	why, ok := parseTerminate(b)
	if !ok {
		return noFault, fmt.Errorf("malformed Terminate message: %w", verbs.ErrPeer)
	}
	return noFault, &remoteError{fault: why}
}
