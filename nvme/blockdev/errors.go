package blockdev

import (
	"errors"
	"fmt"
	"syscall"
	"unsafe"
)

// The errors that callers of a Device branch on, by errors.Is.
var (
	// ErrUnaligned: an offset, a length or the address of a buffer is not a multiple of AlignBytes.
	ErrUnaligned = errors.New("not aligned to 4096 bytes")
	// ErrOutOfRange: the range is not wholly inside the device.
	ErrOutOfRange = errors.New("outside the device")
	// ErrGone: the device has vanished. It also marks ENODEV and ENXIO.
	ErrGone = errors.New("device gone")
	// ErrClosed: the call came after Close.
	ErrClosed = errors.New("device closed")
	// ErrInUse: another process, a mount or another open of this process holds the device.
	ErrInUse = errors.New("device in use")
)

// OpError says which operation on which device failed, and why.
type OpError struct {
	Op   string // "open", "read", "write", "flush", "discard"
	Path string // the file or device, or "memory"
	Off  int64  // where, in bytes from the start of the Device; 0 where it has no meaning
	Err  error
}

// Error implements error.
func (e *OpError) Error() string {
	if e.Op == "read" || e.Op == "write" || e.Op == "discard" {
		return fmt.Sprintf("%s %s at %d: %v", e.Op, e.Path, e.Off, e.Err)
	}
	return fmt.Sprintf("%s %s: %v", e.Op, e.Path, e.Err)
}

// Unwrap gives the cause.
func (e *OpError) Unwrap() error { return e.Err }

// Is makes the kernel's words for a vanished device match ErrGone.
func (e *OpError) Is(target error) bool {
	return target == ErrGone && (errors.Is(e.Err, syscall.ENODEV) || errors.Is(e.Err, syscall.ENXIO))
}

// check judges one transfer against the Device contract and gives its length in bytes.
func check(bufs [][]byte, off, sizeBytes int64) (int64, error) {
	var n int64
	for _, b := range bufs {
		if len(b)%AlignBytes != 0 || uintptr(unsafe.Pointer(unsafe.SliceData(b)))%AlignBytes != 0 && len(b) > 0 {
			return 0, ErrUnaligned
		}
		n += int64(len(b))
	}
	return n, checkRange(off, n, sizeBytes)
}

// checkRange judges the range [off, off+n) against the Device contract.
func checkRange(off, n, sizeBytes int64) error {
	if off%AlignBytes != 0 || n%AlignBytes != 0 {
		return ErrUnaligned
	}
	if off < 0 || n < 0 || off > sizeBytes || n > sizeBytes-off {
		return ErrOutOfRange
	}
	return nil
}
