package iwarp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/verbs"
	"github.com/millrace/millrace/verbs/iwarp/crc32c"
)

// stagingBytes is the size of the receive buffer: headers, small messages, and the few bytes of payload
// that come with a header.
const stagingBytes = 4 << 10

// receiver is the state of the receiving side. Only the receiving goroutine uses it.
type receiver struct {
	buf      []byte
	r, w     int // buf[r:w] is read from the socket and not used
	ready    bool
	sendMSN  uint32 // of the next message on each queue
	readMSN  uint32
	sendGot  int64 // bytes of the message that is being received
	writeGot int64
	last     *binding // of the last WRITE
	crc      uint32   // of the FPDU so far
	head     [lengthBytes + untaggedBytes + readRequestBytes]byte
	blame    []byte // its header, in head, with the payload of a READ request
	mid      bool   // the rest of it is expected

	// Where the payload goes, and how much is missing.
	want  int
	bound *binding // a peer's WRITE: its memory from to on
	to    uint64
	rest  cursor // else local memory
	tail  int    // how much to read behind it into buf
	fault fault
	ahead ahead
	small []byte // buf, unless more had to be put there

	vectors []unix.Iovec
	try     func(fd uintptr) bool
	errno   unix.Errno
	eof     bool
}

func (x *receiver) init(c *conn) {
	x.small = make([]byte, stagingBytes)
	x.buf = x.small
	x.vectors = make([]unix.Iovec, 0, maxPieces+2*aheadPlain+2)
	x.sendMSN, x.readMSN = 1, 1
	x.try = c.tryRead
}

func (c *conn) receiveAll() {
	defer func() {
		if c.rx.last != nil {
			c.rx.last.arrivals.lose()
		}
	}()
	for {
		h, err := c.nextHeader()
		f := noFault
		if err == nil {
			f, err = c.receive(&h)
		}
		switch {
		case f != noFault:
			c.refuse(f, c.rx.blame)
			c.drain()
			return
		case err != nil:
			c.fail(err)
			return
		}
		c.rx.mid = false
		c.received.Add(1)
		if !c.rx.ready {
			c.rx.ready = true
			c.mayShout()
		}
	}
}

// mayShout lets this side send, now that the peer has.
func (c *conn) mayShout() {
	c.mu.Lock()
	c.speak = true
	c.mu.Unlock()
	c.poke()
}

// drainBytes and drainTime bound what is read after a refusal. Reading goes on so that the Terminate message
// is not lost with the connection's bytes.
const (
	drainBytes = 64 << 20
	drainTime  = time.Second
)

// refuse ends the connection with a Terminate message.
func (c *conn) refuse(f fault, header []byte) {
	c.dev.meter.Refused.Add(1)
	c.mu.Lock()
	if c.refusal == nil && c.err == nil {
		c.refusal = &remoteError{fault: f, sent: true}
		c.blame = appendTerminate(nil, f, header)
	}
	c.mu.Unlock()
	_ = c.tcp.SetDeadline(time.Now().Add(min(drainTime, c.dev.cfg.StallTimeout)))
	c.poke()
}

func (c *conn) drain() {
	x := &c.rx
	for n := 0; n < drainBytes; n += x.w {
		x.empty()
		if c.fetch(1) != nil {
			break
		}
	}
	c.fail(verbs.ErrPeer) // the refusal, rather
}

// nextHeader waits for the header of an FPDU.
func (c *conn) nextHeader() (header, error) {
	x := &c.rx
	if err := c.fetch(headerBytes); err != nil {
		return header{}, err
	}
	if err := c.fetch(headerSize(x.buf[x.r:])); err != nil {
		return header{}, err
	}
	h := parseHeader(x.buf[x.r:])
	x.blame = x.head[:copy(x.head[:], x.buf[x.r:x.r+h.hdrBytes])]
	x.mid = true
	return h, nil
}

// fetch reads until buf holds n unused bytes.
func (c *conn) fetch(n int) error {
	x := &c.rx
	if x.w-x.r >= n {
		return nil
	}
	switch {
	case x.r == x.w:
		x.empty()
	case x.r+n > len(x.buf):
		x.w = copy(x.buf, x.buf[x.r:x.w])
		x.r = 0
	}
	x.want, x.bound = 0, nil
	for x.w-x.r < n {
		x.tail = len(x.buf) - x.w
		if err := c.read(); err != nil {
			return err
		}
	}
	return nil
}

// empty says that nothing in buf is of use any more.
func (x *receiver) empty() { x.buf, x.r, x.w = x.small, 0, 0 }

// read does one round of reading, waiting if need be.
func (c *conn) read() error {
	x := &c.rx
	x.errno, x.eof = 0, false
	err := c.raw.Read(x.try)
	switch {
	case err != nil:
		return errors.Join(verbs.ErrPeer, err)
	case x.errno != 0:
		return errors.Join(verbs.ErrPeer, x.errno)
	case x.eof && x.r == x.w && x.want == 0:
		return fmt.Errorf("peer closed the connection: %w", verbs.ErrPeer)
	case x.eof:
		return fmt.Errorf("peer closed the connection: %w: %w", verbs.ErrPeer, io.ErrUnexpectedEOF)
	}
	return nil
}

// tryRead reads until something has come and no payload is missing, or nothing is there (false).
func (c *conn) tryRead(fd uintptr) bool {
	x := &c.rx
	for {
		n, errno, f := x.readOnce(fd, c)
		switch {
		case f != noFault:
			x.fault = f
			return true
		case errno == unix.EINTR:
			continue
		case errno == unix.EAGAIN:
			c.partial.Store(x.mid || x.w > x.r)
			return false
		case errno != 0:
			x.errno = errno
			return true
		case n == 0:
			x.eof = true
			return true
		}
		if x.want == 0 {
			return true
		}
	}
}

// readOnce does one readv: what is missing of the payload into its memory, the rest into buf.
func (x *receiver) readOnce(fd uintptr, c *conn) (int, unix.Errno, fault) {
	v, direct := x.vectors[:0], 0
	var mem []byte
	var ahead bool
	if x.want > 0 && x.bound != nil {
		x.bound.mu.RLock()
		defer x.bound.mu.RUnlock()
		var f fault
		if mem, f = x.bound.part(x.to, uint64(x.want), verbs.RemoteWrite); f != noFault {
			return 0, 0, f
		}
		v, direct = appendVector(v, mem), x.want
		if ahead = x.w == 0 && x.bound.looksAhead(c); ahead {
			mem = x.bound.mem[x.to-x.bound.base:]
			v = x.foresee(v, mem, c.ahead())
		}
	} else if x.want > 0 {
		for at := x.rest; direct < x.want && len(v) < maxPieces; {
			p := at.take(x.want - direct)
			v = append(v, unix.Iovec{Base: &p[0]})
			v[len(v)-1].SetLen(len(p))
			direct += len(p)
		}
	}
	if direct == x.want && !ahead {
		v = appendVector(v, x.buf[x.w:x.w+x.tail])
	}
	n, errno := vectored(unix.SYS_READV, fd, v)
	if errno != 0 {
		return 0, errno, noFault
	}
	placed := min(n, direct)
	if ahead {
		x.sort(n-placed, mem)
	} else {
		x.w += n - placed
		x.tail -= n - placed
	}
	x.want -= placed
	if x.bound != nil {
		x.to += uint64(placed)
		if c.crc {
			x.crc = crc32c.Update(x.crc, mem[:placed])
		}
		return n, 0, noFault
	}
	for placed > 0 {
		p := x.rest.take(placed)
		placed -= len(p)
		if c.crc {
			x.crc = crc32c.Update(x.crc, p)
		}
	}
	return n, 0, noFault
}

// ahead is the most payloads that are foreseen at once.
func (c *conn) ahead() int {
	if c.crc {
		return aheadCRC
	}
	return aheadPlain
}

// place moves the payload of an FPDU, n bytes, to its memory: x.bound from x.to on, or x.rest. Then it
// checks the CRC. What is in buf is copied; the rest is read to where it belongs.
func (c *conn) place(h *header) (fault, error) {
	x := &c.rx
	n := h.payload()
	x.fault, x.want = noFault, n
	if c.crc {
		x.crc = crc32c.Update(0, x.buf[x.r:x.r+h.hdrBytes])
	}
	x.r += h.hdrBytes
	if len(x.ahead.guesses) > 0 {
		if f := c.foreseen(); f != noFault {
			return f, nil
		}
	}
	if have := min(x.want, x.w-x.r); have > 0 {
		if f := c.copyOut(x.buf[x.r : x.r+have]); f != noFault {
			return f, nil
		}
		x.r += have
	}
	trailer := pad(h.ulpdu) + crcBytes
	if x.want > 0 {
		x.empty()
		x.tail = trailer + headerBytes
		if h.last {
			x.tail = len(x.buf)
		}
		for x.want > 0 {
			if err := c.read(); err != nil {
				return noFault, err
			}
			if x.fault != noFault {
				return x.fault, nil
			}
		}
	}
	if err := c.fetch(trailer); err != nil {
		return noFault, err
	}
	return c.checkTrailer(trailer), nil
}

// checkTrailer checks the CRC behind the padding and drops both.
func (c *conn) checkTrailer(n int) fault {
	x := &c.rx
	t := x.buf[x.r : x.r+n]
	x.r += n
	if c.crc && crc32c.Update(x.crc, t[:n-crcBytes]) != binary.LittleEndian.Uint32(t[n-crcBytes:]) {
		return faultCRC
	}
	return noFault
}

// copyOut copies bytes of payload from buf to where they belong.
func (c *conn) copyOut(b []byte) fault {
	x := &c.rx
	if x.bound != nil {
		x.bound.mu.RLock()
		defer x.bound.mu.RUnlock()
		mem, f := x.bound.part(x.to, uint64(x.want), verbs.RemoteWrite)
		if f != noFault {
			return f
		}
		copy(mem, b)
		x.to += uint64(len(b))
	} else {
		for at := b; len(at) > 0; {
			p := x.rest.take(len(at))
			at = at[copy(p, at):]
		}
	}
	x.want -= len(b)
	if c.crc {
		x.crc = crc32c.Update(x.crc, b)
	}
	c.dev.meter.Copied.Add(uint64(len(b)))
	return noFault
}

// whole makes sure that an FPDU with a small payload is in buf, checks its CRC, and returns its payload,
// which is good until the next read. It does not drop the FPDU.
func (c *conn) whole(h *header) ([]byte, fault, error) {
	x := &c.rx
	size := h.fpduBytes()
	if err := c.fetch(size); err != nil {
		return nil, noFault, err
	}
	b := x.buf[x.r : x.r+size]
	if c.crc && crc32c.Update(0, b[:size-crcBytes]) != binary.LittleEndian.Uint32(b[size-crcBytes:]) {
		return nil, faultCRC, nil
	}
	x.r += size
	return b[h.hdrBytes : h.hdrBytes+h.payload()], noFault, nil
}
