// Package guardfs keeps a dying drive from taking the process with it. Pebble ends the process,
// panics or spins when its log, manifest or tables can't be written; so it is given this file
// system, which marks itself failed at the first error of a mutation and from then on swallows
// every mutation and answers every read with an I/O error.
//
// It is not a fault injector, it hides no error from its owner, and it can't help against calls
// that never return: a hung drive is found by deadline, elsewhere.
//
// Invariant: the mark is set before the error is hidden. Whoever looks at Err after a call into
// Pebble has returned, and finds nil, knows that no mutation of that call was swallowed.
package guardfs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// FS is a file system over another that can be marked failed. The zero value is of no use; New
// makes one. Its methods may be called from many goroutines.
type FS struct {
	inner  vfs.FS
	onFail func(error)
	mark   atomic.Pointer[mark]
}

type mark struct{ err error }

var _ vfs.FS = (*FS)(nil)

// New wraps inner. onFail, if not nil, is called once, with the first failure, after the mark is
// set, from the goroutine that met the failure: it must not block and must not call into Pebble.
func New(inner vfs.FS, onFail func(error)) *FS {
	return &FS{inner: inner, onFail: onFail}
}

// Err returns the failure that marked the file system, or nil while it is healthy.
func (fs *FS) Err() error {
	if m := fs.mark.Load(); m != nil {
		return m.err
	}
	return nil
}

// Fail marks the file system failed with err. Only the first call counts.
func (fs *FS) Fail(err error) {
	if fs.mark.CompareAndSwap(nil, &mark{err}) && fs.onFail != nil {
		fs.onFail(err)
	}
}

func (fs *FS) failed() bool { return fs.mark.Load() != nil }

// swallow marks the file system when a mutation failed, and returns nil in place of the error.
func (fs *FS) swallow(op, name string, err error) error {
	if err != nil {
		fs.Fail(fmt.Errorf("%s %s: %w", op, name, err))
	}
	return nil
}

// errRead is what every read gets once the file system has failed.
func errRead(op, name string) error {
	return &os.PathError{Op: op, Path: name, Err: syscall.EIO}
}

// Create implements vfs.FS. On failure it returns a file that forgets what is written.
func (fs *FS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if fs.failed() {
		return newNullFile(fs, name), nil
	}
	err := fs.beforeMarker(name)
	var f vfs.File
	if err == nil {
		f, err = fs.inner.Create(name, category)
	}
	if err != nil {
		fs.Fail(fmt.Errorf("create %s: %w", name, err))
		return newNullFile(fs, name), nil
	}
	return &file{fs: fs, name: name, inner: f}, nil
}

// markerPrefix starts the names of the files by which Pebble says which manifest is current.
const markerPrefix = "marker."

// beforeMarker makes the directory durable before a marker is made in it. Pebble syncs only
// afterwards: a power cut in between could leave the marker without the file that it names, on a file
// system that does not keep the order of directory changes.
func (fs *FS) beforeMarker(name string) error {
	if !strings.HasPrefix(fs.inner.PathBase(name), markerPrefix) {
		return nil
	}
	dir, err := fs.inner.OpenDir(fs.inner.PathDir(name))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Link implements vfs.FS.
func (fs *FS) Link(oldname, newname string) error {
	if fs.failed() {
		return nil
	}
	return fs.swallow("link", newname, fs.inner.Link(oldname, newname))
}

// Open implements vfs.FS. A missing file is no failure of the drive.
func (fs *FS) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	if fs.failed() {
		return nil, errRead("open", name)
	}
	f, err := fs.inner.Open(name, opts...)
	if err != nil {
		return nil, err
	}
	return &file{fs: fs, name: name, inner: f}, nil
}

// OpenReadWrite implements vfs.FS.
func (fs *FS) OpenReadWrite(name string, category vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	if fs.failed() {
		return newNullFile(fs, name), nil
	}
	f, err := fs.inner.OpenReadWrite(name, category, opts...)
	if err != nil {
		fs.Fail(fmt.Errorf("open for writing %s: %w", name, err))
		return newNullFile(fs, name), nil
	}
	return &file{fs: fs, name: name, inner: f}, nil
}

// OpenDir implements vfs.FS. Directories are opened to be synced, so it counts as a mutation.
func (fs *FS) OpenDir(name string) (vfs.File, error) {
	if fs.failed() {
		return newNullFile(fs, name), nil
	}
	f, err := fs.inner.OpenDir(name)
	if oserror.IsNotExist(err) {
		return nil, err
	}
	if err != nil {
		fs.Fail(fmt.Errorf("open directory %s: %w", name, err))
		return newNullFile(fs, name), nil
	}
	return &file{fs: fs, name: name, inner: f}, nil
}

// Remove implements vfs.FS. A missing file is no failure of the drive.
func (fs *FS) Remove(name string) error {
	if fs.failed() {
		return nil
	}
	err := fs.inner.Remove(name)
	if oserror.IsNotExist(err) {
		return err
	}
	return fs.swallow("remove", name, err)
}

// RemoveAll implements vfs.FS.
func (fs *FS) RemoveAll(name string) error {
	if fs.failed() {
		return nil
	}
	return fs.swallow("remove all", name, fs.inner.RemoveAll(name))
}

// Rename implements vfs.FS.
func (fs *FS) Rename(oldname, newname string) error {
	if fs.failed() {
		return nil
	}
	return fs.swallow("rename", newname, fs.inner.Rename(oldname, newname))
}

// ReuseForWrite implements vfs.FS.
func (fs *FS) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if fs.failed() {
		return newNullFile(fs, newname), nil
	}
	f, err := fs.inner.ReuseForWrite(oldname, newname, category)
	if err != nil {
		fs.Fail(fmt.Errorf("reuse %s: %w", newname, err))
		return newNullFile(fs, newname), nil
	}
	return &file{fs: fs, name: newname, inner: f}, nil
}

// MkdirAll implements vfs.FS.
func (fs *FS) MkdirAll(dir string, perm os.FileMode) error {
	if fs.failed() {
		return nil
	}
	return fs.swallow("mkdir", dir, fs.inner.MkdirAll(dir, perm))
}

// Lock implements vfs.FS. Its errors are passed on: a locked store is not a dead drive.
func (fs *FS) Lock(name string) (io.Closer, error) {
	if fs.failed() {
		return nil, errRead("lock", name)
	}
	return fs.inner.Lock(name)
}

// List implements vfs.FS.
func (fs *FS) List(dir string) ([]string, error) {
	if fs.failed() {
		return nil, errRead("list", dir)
	}
	return fs.inner.List(dir)
}

// Stat implements vfs.FS.
func (fs *FS) Stat(name string) (vfs.FileInfo, error) {
	if fs.failed() {
		return nil, errRead("stat", name)
	}
	return fs.inner.Stat(name)
}

// PathBase implements vfs.FS.
func (fs *FS) PathBase(path string) string { return fs.inner.PathBase(path) }

// PathJoin implements vfs.FS.
func (fs *FS) PathJoin(elem ...string) string { return fs.inner.PathJoin(elem...) }

// PathDir implements vfs.FS.
func (fs *FS) PathDir(path string) string { return fs.inner.PathDir(path) }

// GetDiskUsage implements vfs.FS.
func (fs *FS) GetDiskUsage(path string) (vfs.DiskUsage, error) {
	if fs.failed() {
		return vfs.DiskUsage{}, errRead("statfs", path)
	}
	return fs.inner.GetDiskUsage(path)
}

// Unwrap implements vfs.FS.
func (fs *FS) Unwrap() vfs.FS { return fs.inner }
