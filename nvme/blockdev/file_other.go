//go:build !linux

package blockdev

import "errors"

// OpenFile is built on Linux's direct I/O; elsewhere it gives errors.ErrUnsupported.
func OpenFile(path string, _ FileOptions) (*File, error) {
	return nil, &OpError{Op: "open", Path: path, Err: errors.ErrUnsupported}
}

func transfer(int, [][]byte, int64, bool) error { return errors.ErrUnsupported }

func datasync(int) error { return errors.ErrUnsupported }

func discard(int, bool, int64, int64) error { return errors.ErrUnsupported }
