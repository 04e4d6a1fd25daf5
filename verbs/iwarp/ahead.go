package iwarp

import (
	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/verbs"
	"github.com/millrace/millrace/verbs/iwarp/crc32c"
)

// A long WRITE comes as FPDUs of one size, whose payloads lie one behind the other in memory. So with the rest of one
// payload the next ones are read too, in the same call: each to where it will belong, and what is between two
// payloads, a CRC and a header, into the buffer, as if there were no payloads between. The headers are looked at before
// the memory is given up again; from the first that is not as foreseen on, the stream is put together in a buffer and
// dealt with in the ordinary way.
//
// Bytes that were foreseen wrongly have been in the window, behind all that was written there so far. Hence this is done
// only where the owner does not mind (verbs.Scratch), and where one connection alone has written, front to back.

const (
	betweenBytes = crcBytes + headerBytes
	// aheadPlain and aheadCRC are the most payloads that are foreseen at once: as many as are sent at once, and with
	// CRCs not more than stay in a core's cache until they are checked.
	aheadPlain = 16
	aheadCRC   = 4
	// aheadPause is how many FPDUs are read one by one after one was foreseen wrongly.
	aheadPause = 256
)

// guess is a payload that was read, or begun to be, before its header was looked at.
type guess struct {
	to        uint64
	size, got int
}

// ahead is what a receiver foresees.
type ahead struct {
	alike   int // payload of the message's FPDUs; 0 if nothing is to be foreseen
	start   uint64
	length  int64 // of the message before; 0 if there was none
	pause   int
	guesses []guess // with bytes and right headers, oldest first
}

// begin takes note of an FPDU of a WRITE whose payload is about to be placed.
func (a *ahead) begin(h *header, first bool) {
	if first {
		a.start = h.to
	}
	a.alike = 0
	if !h.last && h.payload()%4 == 0 { // no padding between
		a.alike = h.payload()
	}
	a.pause = max(a.pause-1, 0)
}

// foresee appends the vectors of what comes behind the rest of a payload: at most the payloads up to the end of the
// message, or of the window, with what is between them, and what fits into the buffer. mem is the window from x.to on. The
// caller holds the lock of x.bound.
func (x *receiver) foresee(v []unix.Iovec, mem []byte, most int) []unix.Iovec {
	a := &x.ahead
	a.guesses = a.guesses[:0]
	end := uint64(len(mem)) // from x.to on, as at
	if a.length > 0 {
		end = min(end, a.start+uint64(a.length)-x.to)
	}
	at, w := uint64(x.want), x.w
	for at < end && len(a.guesses) < most && w+2*betweenBytes <= len(x.buf) {
		size := min(a.alike, int(end-at))
		v = appendVector(v, x.buf[w:w+betweenBytes])
		v = appendVector(v, mem[at:at+uint64(size)])
		a.guesses = append(a.guesses, guess{to: x.to + at, size: size})
		at, w = at+uint64(size), w+betweenBytes
	}
	tail := x.buf[w:]
	if at < end {
		tail = tail[:betweenBytes]
	}
	return appendVector(v, tail)
}

// looksAhead tells whether the payloads behind the rest of this one may be foreseen. The caller holds the lock of b.
func (b *binding) looksAhead(c *conn) bool {
	a := &c.rx.ahead
	return a.alike > 0 && a.pause == 0 && b.access&verbs.Scratch != 0 && b.writer == c && !b.shared &&
		c.rx.to >= b.high && (a.length == 0 || c.rx.to-a.start < uint64(a.length))
}

// sort finds out what the n bytes are that were read behind the rest of a payload, and looks at the headers among them. mem
// is the window from x.to on, before the rest of the payload was read.
func (x *receiver) sort(n int, mem []byte) {
	a := &x.ahead
	base := x.to // of mem
	for i := range a.guesses {
		g := &a.guesses[i]
		between := min(n, betweenBytes)
		g.got = min(n-between, g.size)
		n -= between + g.got
		x.w += between
	}
	x.w += n
	for i := range a.guesses {
		g := &a.guesses[i]
		if g.got == 0 {
			a.guesses = a.guesses[:i]
			return
		}
		h := parseHeader(x.buf[(i+1)*betweenBytes-headerBytes:])
		if !h.tagged || h.ddp != ddpVersion || h.rdmap != rdmapVersion>>6 || h.op != opWrite ||
			h.stag != x.bound.stag || h.to != g.to || h.payload() != g.size {
			x.gather(i, mem, base)
			return
		}
	}
}

// gather puts the stream together from the payload of guess i on, which was none.
func (x *receiver) gather(i int, mem []byte, base uint64) {
	a := &x.ahead
	size := x.w
	for _, g := range a.guesses[i:] {
		size += g.got
	}
	r := (i + 1) * betweenBytes
	all := append(make([]byte, 0, max(size, stagingBytes)), x.buf[:r]...)
	for j, g := range a.guesses[i:] {
		all = append(all, mem[g.to-base:][:g.got]...)
		to := min(r+betweenBytes, x.w)
		if i+j == len(a.guesses)-1 {
			to = x.w
		}
		all = append(all, x.buf[r:to]...)
		r = to
	}
	x.w = len(all)
	x.buf = all[:cap(all)]
	a.guesses, a.pause = a.guesses[:i], aheadPause
}

// foreseen takes the oldest guess: the payload of the FPDU in hand, or the start of it, is where it belongs.
func (c *conn) foreseen() fault {
	x := &c.rx
	a := &x.ahead
	g := a.guesses[0]
	a.guesses = a.guesses[:copy(a.guesses, a.guesses[1:])]
	x.bound.mu.RLock()
	defer x.bound.mu.RUnlock()
	mem, f := x.bound.part(x.to, uint64(g.got), verbs.RemoteWrite)
	if f != noFault {
		return f
	}
	if c.crc {
		x.crc = crc32c.Update(x.crc, mem)
	}
	x.to += uint64(g.got)
	x.want -= g.got
	return noFault
}

// claim notes who writes through the binding.
func (b *binding) claim(c *conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.writer == nil {
		b.writer = c
	}
	b.shared = b.shared || b.writer != c
}
