package guest

import (
	"errors"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// A folder is where a guest has its files while it runs. A temporary one is locked, so that others can tell it from
// what a process that was killed has left.
type folder struct {
	path string
	lock *os.File // of a temporary one
}

const folderPattern = "millrace-guest-*"

// sweepAge is how old a folder without a lock has to be to count as left behind: a new one is not locked at once.
const sweepAge = time.Minute

// newFolder makes the folder at path, or a temporary one for "".
func newFolder(path string) (folder, error) {
	if path != "" {
		return folder{path: path}, os.MkdirAll(path, 0o755)
	}
	sweep(time.Now().Add(-sweepAge))
	path, err := os.MkdirTemp("", folderPattern)
	if err != nil {
		return folder{}, err
	}
	lock, err := lockFolder(path)
	if err != nil {
		return folder{}, errors.Join(err, os.RemoveAll(path))
	}
	return folder{path: path, lock: lock}, nil
}

func lockFolder(path string) (*os.File, error) {
	dir, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return dir, nil
}

// sweep removes what processes left that were killed: folders made before a time that nobody has locked.
func sweep(before time.Time) {
	left, _ := filepath.Glob(filepath.Join(os.TempDir(), folderPattern))
	for _, path := range left {
		info, err := os.Stat(path)
		if err != nil || info.ModTime().After(before) {
			continue
		}
		if lock, err := lockFolder(path); err == nil {
			_ = os.RemoveAll(path) // perhaps somebody else's; the next sweep tries again
			lock.Close()
		}
	}
}

// remove removes a temporary folder, or the files in another that are of no use after the guest.
func (f folder) remove() error {
	if f.lock != nil {
		return errors.Join(os.RemoveAll(f.path), f.lock.Close())
	}
	var errs []error
	for _, name := range []string{initName, initramfsName, qmpName} {
		if err := os.Remove(filepath.Join(f.path, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
