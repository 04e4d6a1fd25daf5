package blockdev

import (
	"os"
	"sync/atomic"
)

// DefaultMaxInFlight is how many calls to the kernel a File makes at the same time unless its
// options say otherwise. A queue of 32 keeps an NVMe drive busy, and a drive that hangs holds
// at most that many threads of the process.
const DefaultMaxInFlight = 32

// FileOptions say how OpenFile uses what it opens. The zero value means all of it.
type FileOptions struct {
	// OffsetBytes and SizeBytes make a window into the file or device: the Device's offset 0 is
	// OffsetBytes. Both are multiples of AlignBytes; a SizeBytes of 0 means up to the end.
	OffsetBytes int64
	SizeBytes   int64
	// MaxInFlight bounds the calls to the kernel at the same time; 0 means DefaultMaxInFlight.
	MaxInFlight int
	// Name is what errors call it; "" means the path.
	Name string
}

// File is a Device over a regular file or a block device. It opens with O_DIRECT, so the page
// cache holds no copy of the data, and holds the file for itself: a second OpenFile of the same
// file or device, in this process or another, gives ErrInUse.
type File struct {
	name   string
	f      *os.File
	fd     int
	base   int64
	size   int64
	block  bool
	direct bool
	closed atomic.Bool
	// inFlight has a token for every call to the kernel that may run. Close takes all of them.
	inFlight chan struct{}
}

var _ Device = (*File)(nil)

// Direct reports whether transfers bypass the page cache. It is false only for a regular file
// on a file system that refuses O_DIRECT.
func (d *File) Direct() bool { return d.direct }

// SizeBytes implements Device.
func (d *File) SizeBytes() int64 { return d.size }

// Stat describes the open file, which may no longer be the one at its path.
func (d *File) Stat() (os.FileInfo, error) { return d.f.Stat() }

// ReadAt implements Device.
func (d *File) ReadAt(bufs [][]byte, off int64) error {
	n, err := check(bufs, off, d.size)
	if err != nil || n == 0 {
		return d.wrap("read", off, err)
	}
	return d.do("read", off, func() error { return transfer(d.fd, bufs, d.base+off, false) })
}

// WriteAt implements Device.
func (d *File) WriteAt(bufs [][]byte, off int64) error {
	n, err := check(bufs, off, d.size)
	if err != nil || n == 0 {
		return d.wrap("write", off, err)
	}
	return d.do("write", off, func() error { return transfer(d.fd, bufs, d.base+off, true) })
}

// Flush implements Device by fdatasync, which also empties the drive's write cache.
func (d *File) Flush() error {
	return d.do("flush", 0, func() error { return datasync(d.fd) })
}

// Discard implements Device: BLKDISCARD on a block device, a hole in a file.
func (d *File) Discard(off, n int64) error {
	if err := checkRange(off, n, d.size); err != nil || n == 0 {
		return d.wrap("discard", off, err)
	}
	return d.do("discard", off, func() error { return discard(d.fd, d.block, d.base+off, n) })
}

// Close implements Device. It refuses new calls with ErrClosed and waits for those that run, so
// it does not return while the drive hangs. A second Close gives ErrClosed.
func (d *File) Close() error {
	if d.closed.Swap(true) {
		return &OpError{Op: "close", Path: d.name, Err: ErrClosed}
	}
	for range cap(d.inFlight) {
		d.inFlight <- struct{}{}
	}
	err := d.f.Close()
	for range cap(d.inFlight) {
		<-d.inFlight // wakes callers that wait for a token: they find it closed
	}
	return err
}

// do runs one call within the budget and names its error.
func (d *File) do(op string, off int64, call func() error) error {
	d.inFlight <- struct{}{}
	err := error(ErrClosed)
	if !d.closed.Load() {
		err = call()
	}
	<-d.inFlight
	return d.wrap(op, off, err)
}

func (d *File) wrap(op string, off int64, err error) error {
	if err == nil {
		return nil
	}
	return &OpError{Op: op, Path: d.name, Off: off, Err: err}
}
