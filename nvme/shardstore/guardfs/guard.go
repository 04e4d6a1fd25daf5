// Package guardfs keeps a dying drive from taking the process with it. Pebble ends the process,
// panics or spins when its log, manifest or tables can't be written; so it is given this file
// system, which marks itself failed at the first error of a mutation and from then on swallows
// every mutation and answers every read with an I/O error.
//
// When it is marked failed, calls under way return too: they are left behind, each on a goroutine of
// its own, and with bytes of its own. So a drive that hangs holds nobody up once its owner has called Fail.
//
// It is not a fault injector, it hides no error from its owner, and it doesn't judge how long a call
// may take: it only notes when each began.
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
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/millrace/millrace/nvme/shardstore/running"
)

// FS is a file system over another that can be marked failed. The zero value is of no use; New
// makes one. Its methods may be called from many goroutines.
type FS struct {
	inner  vfs.FS
	ops    *running.Ops
	onFail func(error)
	mark   atomic.Pointer[mark]
	dead   chan struct{} // closed after the mark is set
	bufs   buffers
	calls  sync.Pool // *fileCall
	listed atomic.Bool

	refuse func(vfs.DiskWriteCategory) error
}

type mark struct{ err error }

var _ vfs.FS = (*FS)(nil)

// New wraps inner, and notes in ops the calls to it that are under way. onFail, if not nil, is called
// once, with the first failure, after the mark is set, from the goroutine that met the failure: it must
// not block and must not call into Pebble.
func New(inner vfs.FS, ops *running.Ops, onFail func(error)) *FS {
	return &FS{inner: inner, ops: ops, onFail: onFail, dead: make(chan struct{})}
}

// RefuseCreate has Create give the error of refuse, if that gives one, which is no failure of the file system. It is
// to be called before the file system is used.
func (fs *FS) RefuseCreate(refuse func(vfs.DiskWriteCategory) error) { fs.refuse = refuse }

// Err returns the failure that marked the file system, or nil while it is healthy.
func (fs *FS) Err() error {
	if m := fs.mark.Load(); m != nil {
		return m.err
	}
	return nil
}

// Fail marks the file system failed with err. Only the first call counts.
func (fs *FS) Fail(err error) {
	if !fs.mark.CompareAndSwap(nil, &mark{err}) {
		return
	}
	close(fs.dead)
	if fs.onFail != nil {
		fs.onFail(err)
	}
}

// Dead gives a channel that is closed when the file system is marked failed.
func (fs *FS) Dead() <-chan struct{} { return fs.dead }

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
	if fs.refuse != nil && !fs.failed() {
		if err := fs.refuse(category); err != nil {
			return nil, err
		}
	}
	return fs.makeFile("create", name, func() (vfs.File, error) {
		if err := fs.beforeMarker(name); err != nil {
			return nil, err
		}
		return fs.inner.Create(name, category)
	}, nil)
}

// makeFile gives a file for writing: that of do, or one that forgets. An error that is benign is passed on.
func (fs *FS) makeFile(op, name string, do func() (vfs.File, error), benign func(error) bool) (vfs.File, error) {
	if fs.failed() {
		return newNullFile(fs, name), nil
	}
	f, ended, err := apart(fs, do, closeFileLate)
	switch {
	case err != nil && benign != nil && benign(err):
		return nil, err
	case err != nil:
		fs.Fail(fmt.Errorf("%s %s: %w", op, name, err))
		return newNullFile(fs, name), nil
	case !ended:
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
	return fs.mutate("link", newname, func() error { return fs.inner.Link(oldname, newname) })
}

// Open implements vfs.FS. A missing file is no failure of the drive.
func (fs *FS) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := ask(fs, "open", name, func() (vfs.File, error) { return fs.inner.Open(name, opts...) }, closeFileLate)
	if err != nil {
		return nil, err
	}
	opened := &file{fs: fs, name: name, inner: f, reading: true}
	if isBlob(name) {
		return fs.openBlob(opened)
	}
	return opened, nil
}

// OpenReadWrite implements vfs.FS.
func (fs *FS) OpenReadWrite(name string, category vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	return fs.makeFile("open for writing", name, func() (vfs.File, error) {
		return fs.inner.OpenReadWrite(name, category, opts...)
	}, nil)
}

// OpenDir implements vfs.FS. Directories are opened to be synced, so it counts as a mutation.
func (fs *FS) OpenDir(name string) (vfs.File, error) {
	return fs.makeFile("open directory", name, func() (vfs.File, error) { return fs.inner.OpenDir(name) },
		oserror.IsNotExist)
}

// Remove implements vfs.FS. A missing file is no failure of the drive.
func (fs *FS) Remove(name string) error {
	if fs.failed() {
		return nil
	}
	_, _, err := apart(fs, func() (struct{}, error) { return struct{}{}, fs.inner.Remove(name) }, nil)
	if oserror.IsNotExist(err) {
		return err
	}
	return fs.swallow("remove", name, err)
}

// RemoveAll implements vfs.FS.
func (fs *FS) RemoveAll(name string) error {
	return fs.mutate("remove all", name, func() error { return fs.inner.RemoveAll(name) })
}

// Rename implements vfs.FS.
func (fs *FS) Rename(oldname, newname string) error {
	return fs.mutate("rename", newname, func() error { return fs.inner.Rename(oldname, newname) })
}

// ReuseForWrite implements vfs.FS.
func (fs *FS) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	return fs.makeFile("reuse", newname, func() (vfs.File, error) {
		return fs.inner.ReuseForWrite(oldname, newname, category)
	}, nil)
}

// MkdirAll implements vfs.FS.
func (fs *FS) MkdirAll(dir string, perm os.FileMode) error {
	return fs.mutate("mkdir", dir, func() error { return fs.inner.MkdirAll(dir, perm) })
}

// Lock implements vfs.FS. Its errors are passed on: a locked store is not a dead drive.
func (fs *FS) Lock(name string) (io.Closer, error) {
	return ask(fs, "lock", name, func() (io.Closer, error) { return fs.inner.Lock(name) }, closeLate)
}

// List implements vfs.FS. Once a list was given, a failure gives an empty one and no error: Pebble lists files
// again late in its Open, and if it gives up there, what it has started goes on with a cache that is freed,
// which ends the process. Who opens it must look at Err.
func (fs *FS) List(dir string) ([]string, error) {
	names, err := ask(fs, "list", dir, func() ([]string, error) { return fs.inner.List(dir) }, nil)
	if err == nil {
		fs.listed.Store(true)
	} else if fs.listed.Load() {
		return nil, fs.swallow("list", dir, err)
	}
	return names, err
}

// Stat implements vfs.FS.
func (fs *FS) Stat(name string) (vfs.FileInfo, error) {
	return ask(fs, "stat", name, func() (vfs.FileInfo, error) { return fs.inner.Stat(name) }, nil)
}

// PathBase implements vfs.FS.
func (fs *FS) PathBase(path string) string { return fs.inner.PathBase(path) }

// PathJoin implements vfs.FS.
func (fs *FS) PathJoin(elem ...string) string { return fs.inner.PathJoin(elem...) }

// PathDir implements vfs.FS.
func (fs *FS) PathDir(path string) string { return fs.inner.PathDir(path) }

// GetDiskUsage implements vfs.FS.
func (fs *FS) GetDiskUsage(path string) (vfs.DiskUsage, error) {
	return ask(fs, "statfs", path, func() (vfs.DiskUsage, error) { return fs.inner.GetDiskUsage(path) }, nil)
}

// Unwrap implements vfs.FS.
func (fs *FS) Unwrap() vfs.FS { return fs.inner }
