package iwarp

import (
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/verbs/regions"
)

// cursor walks over slices of memory as if they were one. It does not change the list.
type cursor struct {
	first []byte
	rest  [][]byte
}

func newCursor(list [][]byte) cursor { return cursor{rest: list} }

// take returns the next bytes, n at most, that lie together; fewer than n at the end of a slice. It returns
// nothing only when nothing is left or n is 0.
func (c *cursor) take(n int) []byte {
	for len(c.first) == 0 && len(c.rest) > 0 {
		c.first, c.rest = c.rest[0], c.rest[1:]
	}
	n = min(n, len(c.first))
	b := c.first[:n:n]
	c.first = c.first[n:]
	return b
}

func bytesOf(list [][]byte) int64 {
	var n int64
	for _, b := range list {
		n += int64(len(b))
	}
	return n
}

// appendVector adds b to the vectors, or makes the last one longer if b lies right behind it.
func appendVector(v []unix.Iovec, b []byte) []unix.Iovec {
	if len(b) == 0 {
		return v
	}
	if len(v) > 0 {
		last := &v[len(v)-1]
		if uintptr(unsafe.Pointer(last.Base))+uintptr(last.Len) == regions.AddressOf(b) {
			last.SetLen(int(last.Len) + len(b))
			return v
		}
	}
	var one unix.Iovec
	one.Base = unsafe.SliceData(b)
	one.SetLen(len(b))
	return append(v, one)
}

// skip drops the first n bytes of the vectors.
func skip(v []unix.Iovec, n int) []unix.Iovec {
	for n > 0 {
		have := int(v[0].Len)
		if n < have {
			v[0].Base = (*byte)(unsafe.Add(unsafe.Pointer(v[0].Base), n))
			v[0].SetLen(have - n)
			return v
		}
		n -= have
		v = v[1:]
	}
	return v
}

// maxVectors is the most that the kernel takes at once (IOV_MAX).
const maxVectors = 1024

// vectored does one readv or writev on a socket that does not block. The scheduler is not told: the call only
// copies, and handing its processor to another thread meanwhile costs more than it gives.
func vectored(call, fd uintptr, v []unix.Iovec) (int, unix.Errno) {
	most := min(len(v), maxVectors)
	n, _, errno := unix.RawSyscall(call, fd, uintptr(unsafe.Pointer(unsafe.SliceData(v))), uintptr(most))
	return int(n), errno
}

// drop passes over n bytes; there must be as many.
func (c *cursor) drop(n int64) {
	for n > 0 {
		n -= int64(len(c.take(int(n))))
	}
}

// addrPort is a with an IPv4 address as such, also where the system gives it mapped.
func addrPort(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}
