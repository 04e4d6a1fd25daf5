package iwarp

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/verbs"
	"github.com/millrace/millrace/verbs/iwarp/crc32c"
)

// Bounds of one writev: a MiB goes in one, with what is left of it after whole FPDUs, and the fence.
const (
	batchBytes   = 1088 << 10
	batchVectors = 128
	maxPieces    = 32 // slices of memory in one FPDU
	glueBytes    = 8 << 10
	// glueRoom is what one FPDU needs at most: a header, the payload of a Terminate or of a READ request,
	// padding and CRC.
	glueRoom = 128
)

// sender is the state of the sending side. It is used with txMu held.
type sender struct {
	// The message being sent.
	work    posted
	working bool // work is a work request
	answer  answer
	asked   bool // answer is a READ of the peer
	active  bool
	op      opcode
	stag    uint32
	to      uint64 // offset in the peer's memory, or in the message
	left    int64
	rest    cursor
	source  *binding // whose memory it comes from, for answers

	sendMSN, readMSN uint32
	sinkSTag         uint32

	// The batch. glue holds headers and CRCs; it does not move while vectors point into it.
	glue    []byte
	vectors []unix.Iovec
	pending []unix.Iovec // what TCP has not taken
	pieces  [][]byte
	size    int
	bound   *binding // whose memory the vectors point to
	over    bool     // this batch is the last
	settled []posted // unfenced work that is done with the batch

	try    func(fd uintptr) bool
	wait   bool // for TCP to take more
	errno  unix.Errno
	broken bool // bound was revoked
}

func (t *sender) init(c *conn) {
	t.glue = make([]byte, 0, glueBytes)
	t.vectors = make([]unix.Iovec, 0, batchVectors+maxPieces+8)
	t.pieces = make([][]byte, 0, maxPieces)
	t.try = c.tryWrite
}

// abandon ends what was in hand when the connection broke.
func (t *sender) abandon(c *conn, err error) {
	for i := range t.settled {
		c.complete(&t.settled[i], 0, err)
	}
	if t.active && t.working && t.work.wr.Unfenced {
		c.complete(&t.work, 0, err)
	}
}

// sendAll is the sending goroutine. It sends what others could not send on the spot.
func (c *conn) sendAll() {
	for c.sendRest() {
		<-c.wake
	}
}

func (c *conn) sendRest() bool {
	c.txMu.Lock()
	defer c.txMu.Unlock()
	return c.pump(true)
}

// atOnceBytes is how large a message may be to be sent on the spot: what TCP may take at once.
const atOnceBytes = 1 << 20

// send sends a message of n bytes, and what else there is, on the caller's goroutine as far as TCP takes it at once, so
// that nobody has to be woken. The rest, and larger ones, are the sending goroutine's.
func (c *conn) send(n int64) {
	if n > atOnceBytes || !c.txMu.TryLock() {
		c.poke() // who has it may have looked already
		return
	}
	defer c.txMu.Unlock()
	c.pump(false)
}

// pump sends until there is nothing to send, or, if it may not wait, TCP takes no more. It says whether there
// may ever be more. The caller holds c.txMu.
func (c *conn) pump(wait bool) bool {
	t := &c.tx
	for {
		if len(t.pending) == 0 {
			if t.over {
				return false
			}
			c.fill()
			t.pending = t.vectors
		}
		if t.size == 0 {
			return c.Err() == nil || c.blaming()
		}
		if err := c.flush(wait); err != nil {
			c.fail(err)
			return false
		}
		if len(t.pending) > 0 {
			c.poke()
			return true
		}
		c.settle()
		if t.over {
			_ = c.tcp.CloseWrite()
		}
	}
}

func (c *conn) blaming() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err == nil && c.refusal != nil
}

// fill makes a batch of FPDUs from what there is to send.
func (c *conn) fill() {
	t := &c.tx
	t.glue, t.vectors, t.size, t.bound = t.glue[:0], t.vectors[:0], 0, nil
	for !t.over && t.size < batchBytes && len(t.vectors) < batchVectors && len(t.glue)+glueRoom <= cap(t.glue) {
		if !t.active && !c.next() {
			return
		}
		if !t.active { // a message that next has put in whole
			continue
		}
		if t.source != nil && t.bound != nil && t.source != t.bound {
			return // one binding's memory in a batch
		}
		if !c.segment() {
			return
		}
	}
}

// next begins the next message; false when there is none now. Messages of one FPDU without memory are put in
// at once.
func (c *conn) next() bool {
	t := &c.tx
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return false
	}
	if c.blame != nil {
		start := c.beginInline(opTerminate, queueTerminate, 1, len(c.blame))
		t.glue = append(t.glue, c.blame...)
		c.seal(start, len(c.blame)+untaggedBytes, 0)
		c.blame, t.over = nil, true
		return true
	}
	if c.refusal != nil || !c.speak {
		return false
	}
	if c.answers.len() > 0 {
		t.answer = c.answers.pop()
		t.active, t.working, t.asked = true, false, true
		t.op, t.stag, t.to = opReadResponse, t.answer.req.sinkSTag, t.answer.req.sinkTO
		t.left, t.source = int64(t.answer.req.size), t.answer.source
		return true
	}
	blocked := c.reads.len() >= c.ord
	if c.sends.len() > 0 && !(blocked && c.sends.front().wr.Op == verbs.OpRead) {
		// A fence now and then lets work complete while more of it is sent.
		if !blocked && c.begun-c.covered >= fenceEvery {
			c.fence()
			return true
		}
		c.begin(c.sends.pop())
		return true
	}
	if c.begun > c.covered && !blocked {
		c.fence()
		return true
	}
	return false
}

// fenceEvery is how many work requests may wait for one fence.
const fenceEvery = 16

// begin makes a work request the message in hand. The caller holds c.mu.
func (c *conn) begin(p posted) {
	t := &c.tx
	if p.wr.Op == verbs.OpRead {
		c.ask(read{work: p, rest: newCursor(p.wr.Local)}, uint32(p.bytes), p.wr.RKey, p.wr.Addr)
		return
	}
	if !p.wr.Unfenced {
		c.sent.push(p)
		c.begun++
	}
	t.work, t.active, t.working, t.asked, t.source = p, true, true, false, nil
	t.op, t.stag, t.to, t.left, t.rest = opWrite, p.wr.RKey, p.wr.Addr, p.bytes, newCursor(p.wr.Local)
	if p.wr.Op == verbs.OpSend {
		t.op, t.to = opSend, 0
		t.sendMSN++
	}
}

// fence sends a READ of no bytes. Its answer comes when the peer has dealt with everything before it
// (RFC 5040 §5.5), which a WRITE itself does not tell.
func (c *conn) fence() {
	c.covered = c.begun
	c.ask(read{fence: c.begun}, 0, 0, 0)
}

// ask puts in a READ request. The caller holds c.mu.
func (c *conn) ask(r read, size, stag uint32, addr uint64) {
	t := &c.tx
	t.sinkSTag++ // only has to differ from those of the READs under way
	t.readMSN++
	r.stag = t.sinkSTag
	c.reads.push(r)
	c.asked.Add(1)
	req := readRequest{sinkSTag: r.stag, size: size, srcSTag: stag, srcTO: addr}
	start := c.beginInline(opReadRequest, queueRead, t.readMSN, readRequestBytes)
	t.glue = req.append(t.glue)
	c.seal(start, readRequestBytes+untaggedBytes, 0)
}

// beginInline puts in the header of a message of one FPDU, whose payload comes behind it in glue.
func (c *conn) beginInline(op opcode, queue, msn uint32, n int) (start int) {
	t := &c.tx
	start = len(t.glue)
	t.glue = appendUntagged(t.glue, op, true, queue, msn, 0, n)
	return start
}

// seal ends an FPDU: glue from start on becomes a vector, with padding and CRC behind it.
// crc covers what comes before it in the FPDU.
func (c *conn) seal(start, ulpdu int, crc uint32) {
	t := &c.tx
	for range pad(ulpdu) {
		t.glue = append(t.glue, 0)
	}
	if c.crc {
		crc = crc32c.Update(crc, t.glue[start:])
	}
	t.glue = binary.LittleEndian.AppendUint32(t.glue, crc)
	t.vectors = appendVector(t.vectors, t.glue[start:])
	t.size += lengthBytes + ulpdu + pad(ulpdu) + crcBytes
}

// segment puts in the next FPDU of the message in hand; false if the memory is out of reach.
func (c *conn) segment() bool {
	t := &c.tx
	if t.source != nil {
		t.source.mu.RLock()
		defer t.source.mu.RUnlock()
		mem, f := t.source.part(t.answer.req.srcTO, uint64(t.answer.req.size), verbs.RemoteRead)
		if f != noFault {
			c.refuse(f.ofRead(), nil)
			t.active = false
			return true // for the Terminate message
		}
		t.rest = cursor{first: mem[int64(len(mem))-t.left:]}
		t.bound = t.source
	}
	n, pieces := c.gather()
	last, start := t.left == int64(n), len(t.glue)
	ulpdu := taggedBytes + n
	if t.op == opSend {
		ulpdu = untaggedBytes + n
		t.glue = appendUntagged(t.glue, opSend, last, queueSend, t.sendMSN, uint32(t.to), n)
	} else {
		t.glue = appendTagged(t.glue, t.op, last, t.stag, t.to, n)
	}
	t.vectors = appendVector(t.vectors, t.glue[start:])
	crc := uint32(0)
	if c.crc {
		crc = crc32c.Update(0, t.glue[start:])
	}
	for _, p := range pieces {
		t.vectors = appendVector(t.vectors, p)
		if c.crc {
			crc = crc32c.Update(crc, p)
		}
	}
	c.seal(len(t.glue), ulpdu, crc)
	t.to += uint64(n)
	t.left -= int64(n)
	if last {
		c.endMessage()
	}
	return true
}

// gather takes the payload of one FPDU from the message.
func (c *conn) gather() (int, [][]byte) {
	t := &c.tx
	t.pieces = t.pieces[:0]
	most, n := int(min(t.left, int64(c.dev.cfg.MaxPayloadBytes))), 0
	if t.op == opSend { // its header is longer
		most = min(most, maxPayload-untaggedBytes+taggedBytes)
	}
	for n < most && len(t.pieces) < maxPieces {
		p := t.rest.take(most - n)
		t.pieces = append(t.pieces, p)
		n += len(p)
	}
	return n, t.pieces
}

// endMessage ends the message in hand; the batch holds the rest of it.
func (c *conn) endMessage() {
	t := &c.tx
	t.active = false
	switch {
	case t.asked:
		// Counted before it is sent: the peer may look at both sides' counters as soon as it has it.
		if n := int64(t.answer.req.size); n > 0 {
			c.dev.meter.Served.Add(verbs.OpRead, n)
		}
		t.answer, t.source = answer{}, nil
	case t.work.wr.Op == verbs.OpWriteImm:
		t.sendMSN++
		start := c.beginInline(opImmediate, queueSend, t.sendMSN, immediateBytes)
		t.glue = binary.BigEndian.AppendUint64(t.glue, uint64(t.work.wr.Imm))
		c.seal(start, immediateBytes+untaggedBytes, 0)
	}
	if t.working {
		if t.work.wr.Unfenced {
			t.settled = append(t.settled, t.work)
		}
		t.work, t.working, t.rest = posted{}, false, cursor{}
	}
}

// flush gives what is pending to TCP: all of it, or, if it may not wait, what TCP takes.
func (c *conn) flush(wait bool) error {
	t := &c.tx
	t.wait, t.errno, t.broken = wait, 0, false
	c.sending.Store(true)
	err := c.raw.Write(t.try)
	switch {
	case t.broken:
		err = fmt.Errorf("binding closed while it was read: %w", verbs.ErrAccess)
	case t.errno != 0:
		err = errors.Join(verbs.ErrPeer, t.errno)
	case err != nil:
		err = errors.Join(verbs.ErrPeer, err)
	}
	if err != nil {
		t.pending = nil
	}
	c.sending.Store(len(t.pending) > 0)
	return err
}

// tryWrite writes until nothing is left or TCP takes no more, and says false if it must be called again.
func (c *conn) tryWrite(fd uintptr) bool {
	t := &c.tx
	for len(t.pending) > 0 {
		if t.bound != nil {
			t.bound.mu.RLock()
			if t.bound.mem == nil {
				t.bound.mu.RUnlock()
				t.broken = true
				return true
			}
		}
		n, errno := vectored(unix.SYS_WRITEV, fd, t.pending)
		if t.bound != nil {
			t.bound.mu.RUnlock()
		}
		switch errno {
		case 0:
			t.pending = skip(t.pending, n)
			c.taken.Add(uint64(n))
		case unix.EINTR:
		case unix.EAGAIN:
			return !t.wait
		default:
			t.errno = errno
			return true
		}
	}
	return true
}

// settle completes what has left with the batch.
func (c *conn) settle() {
	t := &c.tx
	for i := range t.settled {
		c.complete(&t.settled[i], t.settled[i].bytes, nil)
		t.settled[i] = posted{}
	}
	t.settled = t.settled[:0]
}
