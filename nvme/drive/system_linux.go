package drive

import (
	"errors"
	"os"

	"github.com/millrace/millrace/nvme/blockdev"
	"golang.org/x/sys/unix"
)

// lockDirectory holds off others who make a drive of the same directory.
func lockDirectory(path string) (unlock func(), err error) {
	dir, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		dir.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, blockdev.ErrInUse
		}
		return nil, err
	}
	return func() { dir.Close() }, nil
}

// allocate reserves the space of a file; errors.ErrUnsupported where the file system can't.
func allocate(f *os.File, sizeBytes int64) error {
	for {
		err := unix.Fallocate(int(f.Fd()), 0, 0, sizeBytes)
		if err == unix.EOPNOTSUPP || err == unix.ENOSYS {
			return errors.ErrUnsupported
		}
		if err != unix.EINTR {
			return err
		}
	}
}
