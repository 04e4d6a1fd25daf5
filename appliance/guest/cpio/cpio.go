// Package cpio writes archives in the "newc" format of cpio, which is what the Linux kernel unpacks as an initial
// RAM file system. It reads no archives, and knows neither devices nor hard links. An archive has each path once,
// and every folder before what lies in it.
//
// The format: Documentation/driver-api/early-userspace/buffer-format.rst of the Linux source.
package cpio

import (
	"bufio"
	"fmt"
	"io"
	"path"
	"strings"
)

// The file types of an entry's mode (inode(7)).
const (
	modeDirectory = 0o040000
	modeFile      = 0o100000
	modeSymlink   = 0o120000
)

// maxFileBytes is the largest file that the format's 32-bit sizes can hold.
const maxFileBytes = 1<<32 - 1

// A Writer writes one archive. Its methods return the first error of the stream again and again.
type Writer struct {
	w       *bufio.Writer
	written int64
	inode   uint32
	seen    map[string]bool
	err     error
}

// NewWriter makes a Writer to w.
func NewWriter(w io.Writer) *Writer {
	return &Writer{w: bufio.NewWriterSize(w, 1<<20), seen: map[string]bool{"": true}}
}

// Directory adds a folder and those above it, with mode 0755. A folder that is there already is no error.
func (w *Writer) Directory(name string) error {
	name = clean(name)
	if w.err != nil || w.seen[name] {
		return w.err
	}
	if err := w.parents(name); err != nil {
		return err
	}
	w.seen[name] = true
	w.header(name, modeDirectory|0o755, 0)
	return w.err
}

// Symlink adds a symbolic link to target.
func (w *Writer) Symlink(name, target string) error {
	if err := w.enter(name); err != nil {
		return err
	}
	w.header(clean(name), modeSymlink|0o777, int64(len(target)))
	w.bytes([]byte(target))
	w.pad()
	return w.err
}

// File adds a file of sizeBytes bytes, read from r, with the permission bits of mode.
func (w *Writer) File(name string, mode uint32, sizeBytes int64, r io.Reader) error {
	if err := w.enter(name); err != nil {
		return err
	}
	if sizeBytes < 0 || sizeBytes > maxFileBytes {
		w.err = fmt.Errorf("cpio: %s: %d bytes are more than the format holds", name, sizeBytes)
		return w.err
	}
	w.header(clean(name), modeFile|mode&0o7777, sizeBytes)
	if w.err != nil {
		return w.err
	}
	n, err := io.CopyN(w.w, r, sizeBytes)
	w.written += n
	if err != nil {
		w.err = fmt.Errorf("cpio: %s: %d of %d bytes: %w", name, n, sizeBytes, err)
	}
	w.pad()
	return w.err
}

// Has says whether the archive has the path already.
func (w *Writer) Has(name string) bool { return w.seen[clean(name)] }

// Close ends the archive. It doesn't close the stream below.
func (w *Writer) Close() error {
	w.inode = 0
	w.header("TRAILER!!!", 0, 0)
	if w.err != nil {
		return w.err
	}
	return w.w.Flush()
}

func (w *Writer) enter(name string) error {
	name = clean(name)
	if w.err == nil && w.seen[name] {
		w.err = fmt.Errorf("cpio: %s: twice in the archive", name)
	}
	if w.err != nil {
		return w.err
	}
	if err := w.parents(name); err != nil {
		return err
	}
	w.seen[name] = true
	return nil
}

func (w *Writer) parents(name string) error {
	dir := path.Dir(name)
	if dir == "." || dir == "/" {
		return nil
	}
	return w.Directory(dir)
}

func clean(name string) string { return strings.TrimPrefix(path.Clean("/"+name), "/") }

// header writes the 110 bytes of an entry's head, its name and the filling after it.
func (w *Writer) header(name string, mode uint32, sizeBytes int64) {
	if name != "TRAILER!!!" {
		w.inode++
	}
	w.bytes(fmt.Appendf(nil, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		w.inode, mode, 0, 0, 1, 0, sizeBytes, 0, 0, 0, 0, len(name)+1, 0, name))
	w.pad()
}

func (w *Writer) bytes(b []byte) {
	if w.err != nil {
		return
	}
	n, err := w.w.Write(b)
	w.written += int64(n)
	w.err = err
}

// pad fills up to a multiple of four bytes.
func (w *Writer) pad() {
	w.bytes(make([]byte, -w.written&3))
}
