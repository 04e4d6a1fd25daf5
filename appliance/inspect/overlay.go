package inspect

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"strconv"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/millrace/millrace/nvme/blockdev"
)

// overlay shows the file system below, and keeps every change of it elsewhere: files that are made go to a
// scratch folder, and what is removed or renamed is only said to be. It does what a metadata store
// asks of a file system; the rest is errors.ErrUnsupported.
type overlay struct {
	vfs.FS // below; only reading calls reach it
	upper  vfs.FS
	dir    string // of upper

	mu    sync.Mutex
	names map[string]place // what differs from below, by path
	next  int
}

// place is where the file of a path is.
type place struct {
	upper bool
	path  string // "" if it is nowhere: removed
}

func newOverlay(below, upper vfs.FS, dir string) *overlay {
	return &overlay{FS: below, upper: upper, dir: dir, names: map[string]place{}}
}

// find gives the file system and the path that a path stands for.
func (o *overlay) find(name string) (vfs.FS, string, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	p, changed := o.names[name]
	switch {
	case !changed:
		return o.FS, name, nil
	case p.path == "":
		return nil, "", &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	case p.upper:
		return o.upper, p.path, nil
	}
	return o.FS, p.path, nil
}

// Create implements vfs.FS.
func (o *overlay) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.next++
	path := o.upper.PathJoin(o.dir, strconv.Itoa(o.next))
	f, err := o.upper.Create(path, category)
	if err == nil {
		o.drop(name)
		o.names[name] = place{upper: true, path: path}
	}
	return f, err
}

// drop forgets a path, and the scratch file behind it if no other path has it. Open files of it stay good.
func (o *overlay) drop(name string) {
	old := o.names[name]
	o.names[name] = place{}
	if !old.upper {
		return
	}
	for _, p := range o.names {
		if p == old {
			return
		}
	}
	_ = o.upper.Remove(old.path) // else it goes with the folder
}

// Link implements vfs.FS.
func (o *overlay) Link(from, to string) error {
	if _, err := o.Stat(from); err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.link(from, to)
	return nil
}

func (o *overlay) link(from, to string) {
	p, changed := o.names[from]
	if !changed {
		p = place{path: from}
	}
	o.drop(to)
	o.names[to] = p
}

// Rename implements vfs.FS.
func (o *overlay) Rename(from, to string) error {
	if _, err := o.Stat(from); err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.link(from, to)
	o.drop(from)
	return nil
}

// Remove implements vfs.FS.
func (o *overlay) Remove(name string) error {
	if _, err := o.Stat(name); err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.drop(name)
	return nil
}

// ReuseForWrite implements vfs.FS. It makes a new file.
func (o *overlay) ReuseForWrite(from, to string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if err := o.Remove(from); err != nil {
		return nil, err
	}
	return o.Create(to, category)
}

// Open implements vfs.FS.
func (o *overlay) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	at, path, err := o.find(name)
	if err != nil {
		return nil, err
	}
	return at.Open(path, opts...)
}

// Stat implements vfs.FS.
func (o *overlay) Stat(name string) (vfs.FileInfo, error) {
	at, path, err := o.find(name)
	if err != nil {
		return nil, err
	}
	return at.Stat(path)
}

// List implements vfs.FS.
func (o *overlay) List(dir string) ([]string, error) {
	below, err := o.FS.List(dir)
	if err != nil {
		return nil, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	var names []string
	for _, name := range below {
		if _, changed := o.names[o.PathJoin(dir, name)]; !changed {
			names = append(names, name)
		}
	}
	for name, p := range o.names {
		if p.path != "" && o.PathDir(name) == o.PathJoin(dir) {
			names = append(names, o.PathBase(name))
		}
	}
	return names, nil
}

// OpenDir implements vfs.FS.
func (o *overlay) OpenDir(name string) (vfs.File, error) {
	f, err := o.FS.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return unsynced{f}, nil
}

// unsynced is a folder that has nothing to sync.
type unsynced struct{ vfs.File }

func (unsynced) Sync() error     { return nil }
func (unsynced) SyncData() error { return nil }

// MkdirAll implements vfs.FS for folders that are there.
func (o *overlay) MkdirAll(dir string, _ os.FileMode) error {
	_, err := o.FS.Stat(dir)
	return err
}

// Lock implements vfs.FS. Whoever opened the drive has it for himself.
func (o *overlay) Lock(string) (io.Closer, error) { return io.NopCloser(nil), nil }

// OpenReadWrite implements vfs.FS: it can't.
func (o *overlay) OpenReadWrite(name string, _ vfs.DiskWriteCategory, _ ...vfs.OpenOption) (vfs.File, error) {
	return nil, &fs.PathError{Op: "open", Path: name, Err: errors.ErrUnsupported}
}

// RemoveAll implements vfs.FS: it can't.
func (o *overlay) RemoveAll(name string) error {
	return &fs.PathError{Op: "remove", Path: name, Err: errors.ErrUnsupported}
}

// Unwrap implements vfs.FS. What is below is out of reach.
func (o *overlay) Unwrap() vfs.FS { return nil }

// readOnly is a device that takes no writes. A discard, which is only advice, it ignores.
type readOnly struct{ blockdev.Device }

func (readOnly) WriteAt([][]byte, int64) error { return errReadOnly }
func (readOnly) Flush() error                  { return nil }
func (readOnly) Discard(int64, int64) error    { return nil }

var errReadOnly = errors.New("the drive is only looked at")
