package guardfs

import (
	"io"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// apart runs op, a call to the inner file system, on a goroutine that is left behind when the file
// system fails meanwhile; it says whether op has ended. What op touches must not be used by anybody
// else after that. late, if not nil, is given what an op that was left behind has returned at last.
func apart[T any](fs *FS, op func() (T, error), late func(T)) (value T, ended bool, err error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		token := fs.ops.Start()
		v, err := op()
		fs.ops.End(token)
		done <- result{v, err}
	}()
	select {
	case r := <-done:
		return r.value, true, r.err
	case <-fs.dead:
	}
	if late != nil {
		go func() {
			if r := <-done; r.err == nil {
				late(r.value)
			}
		}()
	}
	return value, false, nil
}

// mutate runs a mutation apart, and swallows its error.
func (fs *FS) mutate(op, name string, do func() error) error {
	if fs.failed() {
		return nil
	}
	_, _, err := apart(fs, func() (struct{}, error) { return struct{}{}, do() }, nil)
	return fs.swallow(op, name, err)
}

// ask runs a read apart.
func ask[T any](fs *FS, op, name string, do func() (T, error), late func(T)) (value T, err error) {
	if fs.failed() {
		return value, errRead(op, name)
	}
	value, ended, err := apart(fs, do, late)
	if !ended {
		err = errRead(op, name)
	}
	return value, err
}

// closeLate closes a file that nobody wants any more.
func closeLate(c io.Closer) { _ = c.Close() } // the mark says all

// closeFileLate is closeLate for files.
func closeFileLate(f vfs.File) { closeLate(f) }

// buffers are for bytes on their way from or to the inner file system: a call that is left behind
// keeps its own.
type buffers struct{ pool sync.Pool }

func (b *buffers) take(n int) *[]byte {
	p, _ := b.pool.Get().(*[]byte)
	if p == nil {
		p = new([]byte)
	}
	if cap(*p) < n {
		*p = make([]byte, n)
	}
	*p = (*p)[:n]
	return p
}

// maxKeptBytes is the largest buffer that is kept for another call.
const maxKeptBytes = 1 << 20

func (b *buffers) give(p *[]byte) {
	if cap(*p) <= maxKeptBytes {
		b.pool.Put(p)
	}
}
