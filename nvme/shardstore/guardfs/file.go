package guardfs

import (
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// file is an open file or directory of a guarded file system.
type file struct {
	fs    *FS
	name  string
	inner vfs.File
	calls sync.WaitGroup // to inner, those left behind too

	reading bool // it is open for reading only

	mu      sync.Mutex // held by what writes
	pending *[]byte    // written by Pebble and not yet to inner; nil for none
}

var _ vfs.File = (*file)(nil)

// maxPendingBytes is how much is gathered before it is written though nobody asks for it.
const maxPendingBytes = 64 << 10

// fileCall is a call to an inner file. One that is not left behind serves again.
type fileCall struct {
	f    *file
	op   func() (int, error)
	done chan fileResult // has room for one
}

type fileResult struct {
	n   int
	err error
}

func (c *fileCall) run() {
	token := c.f.fs.ops.Start()
	n, err := c.op()
	c.f.fs.ops.End(token)
	c.f.calls.Done()
	c.done <- fileResult{n, err}
}

// apart is apart for a call to the inner file.
func (f *file) apart(op func() (int, error)) (n int, ended bool, err error) {
	c, _ := f.fs.calls.Get().(*fileCall)
	if c == nil {
		c = &fileCall{done: make(chan fileResult, 1)}
	}
	c.f, c.op = f, op
	f.calls.Add(1)
	go c.run()
	select {
	case r := <-c.done:
		c.f, c.op = nil, nil
		f.fs.calls.Put(c)
		return r.n, true, r.err
	case <-f.fs.dead:
		return 0, false, nil
	}
}

// mutate runs a mutation of the inner file apart, after what is pending, and swallows its error.
func (f *file) mutate(op string, do func() error) error {
	if f.fs.failed() {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fs.failed() { // while it waited for another call
		return nil
	}
	p := f.pending
	f.pending = nil
	_, _, err := f.apart(func() (int, error) {
		if err := f.writeOut(p); err != nil {
			return 0, err
		}
		return 0, do()
	})
	return f.fs.swallow(op, f.name, err)
}

// writeOut writes what was pending.
func (f *file) writeOut(p *[]byte) error {
	if p == nil {
		return nil
	}
	defer f.fs.bufs.give(p)
	n, err := f.inner.Write(*p)
	if err == nil && n < len(*p) {
		err = io.ErrShortWrite
	}
	return err
}

// Write only gathers: what is written promises nothing before a sync, and its error would be swallowed.
// So a write and the sync after it are one call apart, and the bytes are safe from a caller that
// goes on without a call left behind.
func (f *file) Write(p []byte) (int, error) {
	if f.fs.failed() {
		return len(p), nil
	}
	f.mu.Lock()
	if f.pending == nil {
		f.pending = f.fs.bufs.take(0)
	}
	*f.pending = append(*f.pending, p...)
	full := len(*f.pending) >= maxPendingBytes
	f.mu.Unlock()
	if full {
		return len(p), f.writePending()
	}
	return len(p), nil
}

func (f *file) writePending() error {
	return f.mutate("write", func() error { return nil })
}

// hasPending says whether something is pending.
func (f *file) hasPending() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.pending != nil
}

func (f *file) WriteAt(p []byte, off int64) (int, error) {
	b := f.fs.bufs.take(len(p))
	copy(*b, p)
	return len(p), f.mutate("write", func() error {
		n, err := f.inner.WriteAt(*b, off)
		if err == nil && n < len(*b) {
			err = io.ErrShortWrite
		}
		f.fs.bufs.give(b)
		return err
	})
}

// Close passes on to the inner file even after a failure, so that descriptors are not leaked, but
// waits for it no longer. A failed close of a written file may have lost bytes: it counts as a failed
// mutation.
func (f *file) Close() error {
	closing := func() error {
		f.calls.Wait() // a descriptor must not become another file's under a call
		return f.inner.Close()
	}
	if f.hasPending() {
		_ = f.writePending() // never fails
	}
	if f.fs.failed() {
		go closing()
		return nil
	}
	_, _, err := apart(f.fs, func() (int, error) { return 0, closing() }, nil)
	return f.fs.swallow("close", f.name, err)
}

func (f *file) Read(p []byte) (int, error) { return f.read(p, f.inner.Read) }

func (f *file) ReadAt(p []byte, off int64) (int, error) {
	return f.read(p, func(b []byte) (int, error) { return f.inner.ReadAt(b, off) })
}

// read reads by way of a buffer that a call left behind can keep.
func (f *file) read(p []byte, do func([]byte) (int, error)) (int, error) {
	if f.hasPending() {
		_ = f.writePending() // never fails
	}
	if f.fs.failed() {
		return 0, errRead("read", f.name)
	}
	b := f.fs.bufs.take(len(p))
	n, ended, err := f.apart(func() (int, error) { return do(*b) })
	if !ended {
		return 0, errRead("read", f.name)
	}
	copy(p, (*b)[:n])
	f.fs.bufs.give(b)
	return n, err
}

func (f *file) Preallocate(offset, length int64) error {
	return f.mutate("preallocate", func() error { return f.inner.Preallocate(offset, length) })
}

// Stat of a file that Pebble writes gives no error, even after a failure: Pebble asks for its size and must not be
// surprised. That of one that it reads does: one of no size would be taken for damaged, and Pebble can't bear a
// damaged file of values.
func (f *file) Stat() (vfs.FileInfo, error) {
	if f.hasPending() {
		_ = f.writePending() // never fails
	}
	if f.fs.failed() {
		return f.noInfo()
	}
	f.calls.Add(1)
	info, ended, err := apart(f.fs, func() (vfs.FileInfo, error) {
		defer f.calls.Done()
		return f.inner.Stat()
	}, nil)
	if err != nil {
		f.fs.Fail(err)
	}
	if err != nil || !ended {
		return f.noInfo()
	}
	return info, nil
}

// noInfo is Stat after a failure.
func (f *file) noInfo() (vfs.FileInfo, error) {
	if f.reading {
		return nil, errRead("stat", f.name)
	}
	return nullInfo{name: f.name}, nil
}

func (f *file) Sync() error { return f.mutate("sync", f.inner.Sync) }

// SyncTo says that it synced only what it was asked for, which promises the least.
func (f *file) SyncTo(length int64) (fullSync bool, err error) {
	return false, f.mutate("sync", func() error {
		_, err := f.inner.SyncTo(length)
		return err
	})
}

func (f *file) SyncData() error { return f.mutate("sync", f.inner.SyncData) }

// Prefetch is a hint: its errors say nothing about the drive.
func (f *file) Prefetch(offset, length int64) error {
	if f.fs.failed() {
		return nil
	}
	_, _, err := f.apart(func() (int, error) { return 0, f.inner.Prefetch(offset, length) })
	return err
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
