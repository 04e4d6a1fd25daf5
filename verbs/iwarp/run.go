package iwarp

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// A run is a row of FPDUs that are all expected: the rest of the answer to a READ, cut as its first FPDU was.
// They are read together, each payload to its place and each header and trailer to a slot, which saves calls
// of the kernel. The bytes land in memory that this answer is going to fill, so a peer that sends something
// else does no harm: what came is then put back in line, and runs are not tried again.
const (
	runFPDUs  = 16
	runBytes  = 512 << 10
	slotBytes = 3 + crcBytes + headerBytes
)

// run is the state of reading one.
type run struct {
	slots   [runFPDUs][slotBytes]byte
	sizes   [runFPDUs]int // of the payloads
	starts  [runFPDUs]int // where in the stream each FPDU's payload begins
	filled  int           // bytes of the stream that have come
	vectors []unix.Iovec
	pending []unix.Iovec
	pieces  [][]byte // all of vectors, as they were
	off     bool     // the peer cuts in other ways
	try     func(fd uintptr) bool
}

// answerRun places FPDUs of the answer to a READ, of which h is the first and left bytes are to come behind
// it. x.rest is where they go. It returns how many bytes of payload it has placed.
func (c *conn) answerRun(h *header, left int64) (int64, fault, error) {
	x := &c.rx
	u := &x.run
	n := h.payload()
	x.want = n
	x.r += h.hdrBytes
	walk := x.rest // for the CRC
	have := min(n, x.w-x.r)
	for at := x.buf[x.r : x.r+have]; len(at) > 0; {
		at = at[copy(x.rest.take(len(at)), at):]
	}
	c.dev.meter.Copied.Add(uint64(have))
	x.r, x.w = 0, 0
	count := u.plan(x, n, n-have, left)
	placed := int64(0)
	for k := range count {
		size, end := u.sizes[k], u.starts[k]+u.sizes[k]
		if k > 0 {
			begin := u.starts[k] - headerBytes
			if err := c.readRun(u.starts[k]); err != nil {
				return placed, noFault, err
			}
			head := u.slots[k-1][pad(taggedBytes+u.sizes[k-1])+crcBytes:][:headerBytes]
			var want [headerBytes]byte
			more := left > placed-int64(n)+int64(size) // bytes behind this one
			appendTagged(want[:0], opReadResponse, !more, h.stag, h.to+uint64(placed), size)
			if string(want[:]) != string(head) {
				u.off = true
				x.rest = walk
				u.putBack(x, begin)
				return placed, noFault, nil
			}
			copy(x.head[:], head)
		}
		trailer := pad(taggedBytes+size) + crcBytes
		if err := c.readRun(end + trailer); err != nil {
			return placed, noFault, err
		}
		if k == count-1 {
			u.leave(x, end)
		}
		if c.crc && !u.check(x, k, count, &walk) {
			return placed, faultCRC, nil
		} else if !c.crc {
			walk.drop(int64(size))
		}
		if k == count-1 {
			x.r += trailer
		}
		placed += int64(size)
		c.received.Add(1)
	}
	x.rest = walk
	return placed, noFault, nil
}

// plan lays out the vectors: rest bytes of the first payload, then as many FPDUs as are expected and fit.
func (u *run) plan(x *receiver, n, rest int, left int64) (count int) {
	u.vectors, u.pieces, u.filled = u.vectors[:0], u.pieces[:0], 0
	at, position := x.rest, rest
	u.sizes[0], u.starts[0] = n, rest-n
	size := rest
	for count = 1; ; count++ {
		for size > 0 {
			p := at.take(size)
			u.add(p)
			size -= len(p)
		}
		trailer := pad(taggedBytes+u.sizes[count-1]) + crcBytes
		if left == 0 || count == runFPDUs || position >= runBytes || len(u.vectors) >= batchVectors {
			tail := headerBytes
			if left == 0 {
				tail = len(x.buf) - trailer
			}
			u.add(x.buf[:trailer+tail])
			u.pending = u.vectors
			return count
		}
		u.add(u.slots[count-1][:trailer+headerBytes])
		size = int(min(left, int64(n)))
		left -= int64(size)
		position += trailer + headerBytes
		u.sizes[count], u.starts[count] = size, position
		position += size
	}
}

func (u *run) add(b []byte) {
	u.vectors = append(u.vectors, unix.Iovec{Base: &b[0]})
	u.vectors[len(u.vectors)-1].SetLen(len(b))
	u.pieces = append(u.pieces, b)
}

// check computes the CRC of the k-th FPDU, whose header is in x.head.
func (u *run) check(x *receiver, k, count int, walk *cursor) bool {
	crc := crcUpdate(0, x.head[:headerBytes])
	for size := u.sizes[k]; size > 0; {
		p := walk.take(size)
		crc = crcUpdate(crc, p)
		size -= len(p)
	}
	trailer := u.slots[k][:]
	if k == count-1 {
		trailer = x.buf
	}
	padding := pad(taggedBytes + u.sizes[k])
	return crcUpdate(crc, trailer[:padding]) == binary.LittleEndian.Uint32(trailer[padding:])
}

// leave ends a run that went as expected: what came behind the last payload is in buf.
func (u *run) leave(x *receiver, end int) {
	x.r, x.w, x.want = 0, u.filled-end, 0
}

// putBack makes what has come from position on the next bytes to be used.
func (u *run) putBack(x *receiver, position int) {
	back := make([]byte, 0, u.filled-position+stagingBytes)
	at := 0
	for _, p := range u.pieces {
		from, to := max(position-at, 0), min(u.filled-at, len(p))
		if from < to {
			back = append(back, p[from:to]...)
		}
		at += len(p)
	}
	x.buf, x.r, x.w, x.want = back[:cap(back)], 0, len(back), 0
}

// readRun reads until the stream has come to a position.
func (c *conn) readRun(position int) error {
	u := &c.rx.run
	for u.filled < position {
		if err := c.readBy(u.try); err != nil {
			return err
		}
	}
	return nil
}

// tryRun reads what there is, or returns false.
func (c *conn) tryRun(fd uintptr) bool {
	x := &c.rx
	for {
		n, errno := vectored(unix.SYS_READV, fd, x.run.pending)
		switch {
		case errno == unix.EINTR:
			continue
		case errno == unix.EAGAIN:
			c.partial.Store(true)
			return false
		case errno != 0:
			x.errno = errno
		case n == 0:
			x.eof = true
		default:
			x.run.filled += n
			x.run.pending = skip(x.run.pending, n)
		}
		return true
	}
}
