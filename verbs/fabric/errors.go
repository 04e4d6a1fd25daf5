package fabric

import (
	"errors"
	"fmt"
)

// The errors that callers branch on.
var (
	// ErrNoDevice: no RDMA device of this network namespace fits.
	ErrNoDevice = errors.New("no such RDMA device")
	// ErrNoGID: the port has no GID that can be used for the address.
	ErrNoGID = errors.New("no usable GID")
	// ErrUnsupported: the operating system has no such interface.
	ErrUnsupported = errors.New("not supported on this system")
	// ErrFormat: the kernel's answer is not in the form that is known.
	ErrFormat = errors.New("unknown format")
)

// Error says what was asked of the kernel and failed.
type Error struct {
	Op   string // "read", "parse", "netns mode", …
	Path string // below the root of sysfs; may be empty
	Err  error
}

// Error returns a line of text.
func (e *Error) Error() string {
	if e.Path == "" {
		return fmt.Sprintf("rdma %s: %v", e.Op, e.Err)
	}
	return fmt.Sprintf("rdma %s %s: %v", e.Op, e.Path, e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// GIDError says why a port can't be used with an address.
type GIDError struct {
	Device string
	Port   int
	Want   string // address, or family and interface
	Listed bool   // the address is in the table, and still can't be used
	Reason string
}

// Error returns a line of text.
func (e *GIDError) Error() string {
	return fmt.Sprintf("%s port %d for %s: %v: %s", e.Device, e.Port, e.Want, ErrNoGID, e.Reason)
}

// Unwrap returns ErrNoGID.
func (e *GIDError) Unwrap() error { return ErrNoGID }
