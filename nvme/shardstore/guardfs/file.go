package guardfs

import (
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// file is an open file or directory of a guarded file system.
type file struct {
	fs    *FS
	name  string
	inner vfs.File
}

var _ vfs.File = (*file)(nil)

// Close passes on to the inner file even after a failure, so that descriptors are not leaked. A
// failed close of a written file may have lost bytes: it counts as a failed mutation.
func (f *file) Close() error {
	err := f.inner.Close()
	if f.fs.failed() {
		return nil
	}
	return f.fs.swallow("close", f.name, err)
}

func (f *file) Read(p []byte) (int, error) {
	if f.fs.failed() {
		return 0, errRead("read", f.name)
	}
	return f.inner.Read(p)
}

func (f *file) ReadAt(p []byte, off int64) (int, error) {
	if f.fs.failed() {
		return 0, errRead("read", f.name)
	}
	return f.inner.ReadAt(p, off)
}

func (f *file) Write(p []byte) (int, error) {
	if f.fs.failed() {
		return len(p), nil
	}
	n, err := f.inner.Write(p)
	if err == nil && n < len(p) {
		err = io.ErrShortWrite
	}
	return len(p), f.fs.swallow("write", f.name, err)
}

func (f *file) WriteAt(p []byte, off int64) (int, error) {
	if f.fs.failed() {
		return len(p), nil
	}
	n, err := f.inner.WriteAt(p, off)
	if err == nil && n < len(p) {
		err = io.ErrShortWrite
	}
	return len(p), f.fs.swallow("write", f.name, err)
}

func (f *file) Preallocate(offset, length int64) error {
	if f.fs.failed() {
		return nil
	}
	return f.fs.swallow("preallocate", f.name, f.inner.Preallocate(offset, length))
}

// Stat keeps working after a failure: Pebble asks files that it writes for their size and must
// not be surprised. The answer is the inner file's where there is one.
func (f *file) Stat() (vfs.FileInfo, error) {
	fi, err := f.inner.Stat()
	if err != nil {
		f.fs.Fail(err)
		return nullInfo{name: f.name}, nil
	}
	return fi, nil
}

func (f *file) Sync() error {
	if f.fs.failed() {
		return nil
	}
	return f.fs.swallow("sync", f.name, f.inner.Sync())
}

func (f *file) SyncTo(length int64) (fullSync bool, err error) {
	if f.fs.failed() {
		return true, nil
	}
	fullSync, err = f.inner.SyncTo(length)
	return fullSync, f.fs.swallow("sync", f.name, err)
}

func (f *file) SyncData() error {
	if f.fs.failed() {
		return nil
	}
	return f.fs.swallow("sync", f.name, f.inner.SyncData())
}

// Prefetch is a hint: its errors say nothing about the drive.
func (f *file) Prefetch(offset, length int64) error {
	if f.fs.failed() {
		return nil
	}
	return f.inner.Prefetch(offset, length)
}

func (f *file) Fd() uintptr { return f.inner.Fd() }

// nullFile takes the place of a file that could not be made: it counts what is written and
// forgets it.
type nullFile struct {
	fs   *FS
	name string
	size atomic.Int64
}

var _ vfs.File = (*nullFile)(nil)

func newNullFile(fs *FS, name string) *nullFile { return &nullFile{fs: fs, name: name} }

func (f *nullFile) Close() error                 { return nil }
func (f *nullFile) Read([]byte) (int, error)     { return 0, errRead("read", f.name) }
func (f *nullFile) Preallocate(_, _ int64) error { return nil }
func (f *nullFile) Sync() error                  { return nil }
func (f *nullFile) SyncTo(int64) (bool, error)   { return true, nil }
func (f *nullFile) SyncData() error              { return nil }
func (f *nullFile) Prefetch(_, _ int64) error    { return nil }
func (f *nullFile) Fd() uintptr                  { return vfs.InvalidFd }

func (f *nullFile) ReadAt([]byte, int64) (int, error) { return 0, errRead("read", f.name) }

func (f *nullFile) Write(p []byte) (int, error) {
	f.size.Add(int64(len(p)))
	return len(p), nil
}

func (f *nullFile) WriteAt(p []byte, off int64) (int, error) {
	if end := off + int64(len(p)); end > f.size.Load() {
		f.size.Store(end)
	}
	return len(p), nil
}

func (f *nullFile) Stat() (vfs.FileInfo, error) {
	return nullInfo{name: f.fs.PathBase(f.name), size: f.size.Load()}, nil
}

// nullInfo describes a file that is not there.
type nullInfo struct {
	name string
	size int64
}

func (i nullInfo) Name() string           { return i.name }
func (i nullInfo) Size() int64            { return i.size }
func (i nullInfo) Mode() os.FileMode      { return 0o644 }
func (i nullInfo) ModTime() time.Time     { return time.Time{} }
func (i nullInfo) IsDir() bool            { return false }
func (i nullInfo) Sys() any               { return nil }
func (i nullInfo) DeviceID() vfs.DeviceID { return vfs.DeviceID{} }
