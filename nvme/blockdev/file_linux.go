package blockdev

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxIovecs is IOV_MAX: the kernel refuses more buffers in one call.
const maxIovecs = 1024

// OpenFile opens a regular file or a block device for itself, for reading and writing. It gives
// ErrInUse where another holds it. A block device is claimed with O_EXCL, which also keeps it
// from being mounted; a file is locked with flock.
func OpenFile(path string, opt FileOptions) (*File, error) {
	d, err := openFile(path, opt)
	if err != nil {
		return nil, &OpError{Op: "open", Path: path, Err: err}
	}
	return d, nil
}

func openFile(path string, opt FileOptions) (*File, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return nil, err
	}
	d := &File{name: cmp.Or(opt.Name, path), base: opt.OffsetBytes, block: st.Mode&unix.S_IFMT == unix.S_IFBLK}
	flags := unix.O_RDWR | unix.O_CLOEXEC | unix.O_DIRECT
	switch {
	case d.block:
		flags |= unix.O_EXCL
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil, errors.New("neither a regular file nor a block device")
	}
	fd, err := retryOpen(path, flags)
	if errors.Is(err, unix.EINVAL) && !d.block {
		flags &^= unix.O_DIRECT
		fd, err = retryOpen(path, flags)
	}
	if errors.Is(err, unix.EBUSY) {
		return nil, ErrInUse
	}
	if err != nil {
		return nil, err
	}
	d.fd, d.f, d.direct = fd, os.NewFile(uintptr(fd), path), flags&unix.O_DIRECT != 0
	if err := d.prepare(opt); err != nil {
		d.f.Close()
		return nil, err
	}
	return d, nil
}

// prepare locks and measures what was opened, and makes sure that direct I/O really works.
func (d *File) prepare(opt FileOptions) error {
	var whole int64
	var err error
	if d.block {
		whole, err = blockSizeBytes(d.fd)
	} else {
		whole, err = lockedSizeBytes(d.fd)
	}
	if err != nil {
		return err
	}
	if err := d.setWindow(opt, whole); err != nil {
		return err
	}
	d.inFlight = make(chan struct{}, cmp.Or(opt.MaxInFlight, DefaultMaxInFlight))
	if !d.direct || d.size == 0 {
		return nil
	}
	// Some file systems take the flag and refuse the transfer.
	err = transfer(d.fd, [][]byte{AlignedBuffer(AlignBytes)}, d.base, false)
	if errors.Is(err, unix.EINVAL) && !d.block {
		d.direct = false
		return clearDirect(d.fd)
	}
	return err
}

func (d *File) setWindow(opt FileOptions, whole int64) error {
	if opt.OffsetBytes%AlignBytes != 0 || opt.SizeBytes%AlignBytes != 0 {
		return fmt.Errorf("window: %w", ErrUnaligned)
	}
	if opt.OffsetBytes < 0 || opt.SizeBytes < 0 || opt.OffsetBytes > whole ||
		opt.SizeBytes > whole-opt.OffsetBytes || opt.MaxInFlight < 0 {
		return fmt.Errorf("window: %w", ErrOutOfRange)
	}
	d.size = opt.SizeBytes
	if d.size == 0 {
		d.size = (whole - opt.OffsetBytes) &^ (AlignBytes - 1)
	}
	return nil
}

func retryOpen(path string, flags int) (int, error) {
	for {
		fd, err := unix.Open(path, flags, 0)
		if err != unix.EINTR {
			return fd, err
		}
	}
}

func clearDirect(fd int) error {
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_SETFL, flags&^unix.O_DIRECT)
	}
	return err
}

// blockSizeBytes measures a block device and refuses sectors that AlignBytes does not cover.
func blockSizeBytes(fd int) (int64, error) {
	sector, err := unix.IoctlGetInt(fd, unix.BLKSSZGET)
	if err != nil {
		return 0, fmt.Errorf("logical sector size: %w", err)
	}
	if sector <= 0 || AlignBytes%sector != 0 {
		return 0, fmt.Errorf("logical sectors of %d bytes are not supported", sector)
	}
	var n uint64
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.BLKGETSIZE64,
		uintptr(unsafe.Pointer(&n))); e != 0 {
		return 0, fmt.Errorf("device size: %w", e)
	}
	return int64(n), nil
}

// lockedSizeBytes locks a regular file and measures it.
func lockedSizeBytes(fd int) (int64, error) {
	err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return 0, ErrInUse
	}
	if err != nil {
		return 0, fmt.Errorf("lock: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, err
	}
	return st.Size, nil
}

// transfer moves all of bufs, in order, from or to off. It goes on after short transfers and
// signals, and leaves the caller's slices as they are.
func transfer(fd int, bufs [][]byte, off int64, write bool) error {
	var skip int // bytes of bufs[0] that are done
	for len(bufs) > 0 {
		if skip == len(bufs[0]) {
			bufs, skip = bufs[1:], 0
			continue
		}
		n, err := transferSome(fd, bufs, skip, off, write)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return err
		case n == 0 && write:
			return io.ErrShortWrite
		case n == 0:
			return io.ErrUnexpectedEOF
		}
		off += int64(n)
		for n > 0 {
			step := min(n, len(bufs[0])-skip)
			n, skip = n-step, skip+step
			if skip == len(bufs[0]) {
				bufs, skip = bufs[1:], 0
			}
		}
	}
	return nil
}

// transferSome makes one call to the kernel for what is left of bufs.
func transferSome(fd int, bufs [][]byte, skip int, off int64, write bool) (int, error) {
	if skip > 0 || len(bufs) == 1 {
		if write {
			return unix.Pwrite(fd, bufs[0][skip:], off)
		}
		return unix.Pread(fd, bufs[0][skip:], off)
	}
	bufs = bufs[:min(len(bufs), maxIovecs)]
	if write {
		return unix.Pwritev(fd, bufs, off)
	}
	return unix.Preadv(fd, bufs, off)
}

func datasync(fd int) error {
	for {
		if err := unix.Fdatasync(fd); err != unix.EINTR {
			return err
		}
	}
}

// discard gives a range back to the drive or the file system, where they can take it.
func discard(fd int, block bool, off, n int64) error {
	var err error
	if block {
		span := [2]uint64{uint64(off), uint64(n)}
		_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.BLKDISCARD, uintptr(unsafe.Pointer(&span)))
		if e != 0 {
			err = e
		}
	} else {
		err = unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
	}
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		return nil
	}
	return err
}
