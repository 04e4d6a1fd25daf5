package libibverbs

import (
	"os"

	"golang.org/x/sys/unix"
)

// pollable returns a copy of fd, which Go's poller waits for.
func pollable(fd int) (*os.File, error) {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	if err := unix.SetNonblock(own, true); err != nil {
		_ = unix.Close(own)
		return nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(own), "libibverbs"), nil
}
