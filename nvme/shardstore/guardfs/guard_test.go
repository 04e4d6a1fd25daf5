package guardfs

import (
	"bytes"
	"errors"
	"io"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/millrace/millrace/nvme/shardstore/running"
)

// rig is a guarded file system whose every operation of one kind fails.
type rig struct {
	*FS
	failing errorfs.OpKind
	reasons []error
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{failing: -1}
	inner := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == r.failing {
			return syscall.EIO
		}
		return nil
	}))
	r.FS = New(inner, running.New(), func(err error) { r.reasons = append(r.reasons, err) })
	if err := r.MkdirAll("d", 0o700); err != nil {
		t.Fatal(err)
	}
	return r
}

const category = vfs.WriteCategoryUnspecified

// mutations are the calls of a file system that change it. Each is given a file open for
// writing.
func mutations() map[string]func(*rig, vfs.File) error {
	discard := func(_ any, err error) error { return err }
	return map[string]func(*rig, vfs.File) error{
		"create":     func(r *rig, _ vfs.File) error { return discard(r.Create("d/new", category)) },
		"marker":     func(r *rig, _ vfs.File) error { return discard(r.Create("d/marker.x.1.y", category)) },
		"link":       func(r *rig, _ vfs.File) error { return r.Link("d/old", "d/link") },
		"read-write": func(r *rig, _ vfs.File) error { return discard(r.OpenReadWrite("d/old", category)) },
		"open dir":   func(r *rig, _ vfs.File) error { return discard(r.OpenDir("d")) },
		"remove":     func(r *rig, _ vfs.File) error { return r.Remove("d/old") },
		"remove all": func(r *rig, _ vfs.File) error { return r.RemoveAll("d/old") },
		"rename":     func(r *rig, _ vfs.File) error { return r.Rename("d/old", "d/renamed") },
		"reuse":      func(r *rig, _ vfs.File) error { return discard(r.ReuseForWrite("d/old", "d/re", category)) },
		"mkdir":      func(r *rig, _ vfs.File) error { return r.MkdirAll("d/e", 0o700) },
		"write": func(_ *rig, f vfs.File) error { // comes with the next call for the file
			return errors.Join(discard(f.Write([]byte("x"))), f.Sync())
		},
		"preallocate": func(_ *rig, f vfs.File) error { return f.Preallocate(0, 1) },
		"sync":        func(_ *rig, f vfs.File) error { return f.Sync() },
		"sync data":   func(_ *rig, f vfs.File) error { return f.SyncData() },
		"sync to":     func(_ *rig, f vfs.File) error { return discard(f.SyncTo(1)) },
	}
}

// TestMutations: the first error of each kind of mutation is swallowed and marks the file system;
// after that, every mutation gives nil and changes nothing.
func TestMutations(t *testing.T) {
	kinds := map[string]errorfs.OpKind{
		"create": errorfs.OpCreate, "marker": errorfs.OpOpenDir, "link": errorfs.OpLink,
		"read-write": errorfs.OpOpen, "open dir": errorfs.OpOpenDir, "remove": errorfs.OpRemove,
		"remove all": errorfs.OpRemoveAll, "rename": errorfs.OpRename, "reuse": errorfs.OpReuseForWrite,
		"mkdir": errorfs.OpMkdirAll, "write": errorfs.OpFileWrite, "preallocate": errorfs.OpFilePreallocate,
		"sync": errorfs.OpFileSync, "sync data": errorfs.OpFileSyncData, "sync to": errorfs.OpFileSyncTo,
	}
	for name, mutate := range mutations() {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			f := r.mustCreate(t, "d/old")
			r.failing = kinds[name]
			if err := mutate(r, f); err != nil {
				t.Errorf("failing %s = %v; want it swallowed", name, err)
			}
			if err := r.Err(); !errors.Is(err, syscall.EIO) || len(r.reasons) != 1 {
				t.Errorf("Err() = %v, %d calls of onFail; want EIO and 1", err, len(r.reasons))
			}
			r.failing = -1
			for later, mutate := range mutations() {
				if err := mutate(r, f); err != nil {
					t.Errorf("%s after the failure = %v; want nil", later, err)
				}
			}
			if name == "create" {
				if got, _ := r.inner.List("d"); len(got) != 1 {
					t.Errorf("files = %v; want none made after the failure", got)
				}
			}
			if len(r.reasons) != 1 {
				t.Errorf("onFail called %d times; want 1", len(r.reasons))
			}
		})
	}
}

func (r *rig) mustCreate(t *testing.T, name string) vfs.File {
	t.Helper()
	f, err := r.Create(name, category)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestAfterFailure(t *testing.T) {
	r := newRig(t)
	f := r.mustCreate(t, "d/old")
	cause := errors.New("cause")
	r.Fail(cause)
	r.Fail(errors.New("later"))
	if r.Err() != cause || len(r.reasons) != 1 {
		t.Errorf("Err() = %v, %d calls; want the first cause, once", r.Err(), len(r.reasons))
	}
	null := r.mustCreate(t, "d/null")
	if n, err := null.Write(make([]byte, 10)); n != 10 || err != nil {
		t.Errorf("Write to a null file = %d, %v; want 10, nil", n, err)
	}
	if info, err := null.Stat(); err != nil || info.Size() != 10 || info.Name() != "null" {
		t.Errorf("Stat of a null file = %v, %v; want its size", info, err)
	}
	_, openErr := r.Open("d/old")
	_, listErr := r.List("d")
	_, statErr := r.Stat("d/old")
	_, readErr := f.ReadAt(make([]byte, 1), 0)
	_, nullErr := null.Read(make([]byte, 1))
	_, lockErr := r.Lock("d/lock")
	for i, err := range []error{openErr, listErr, statErr, readErr, nullErr, lockErr} {
		if !errors.Is(err, syscall.EIO) {
			t.Errorf("read %d after the failure = %v; want EIO", i, err)
		}
	}
}

// TestGathered: what was written is there for whoever asks, and at a close.
func TestGathered(t *testing.T) {
	r := newRig(t)
	f := r.mustCreate(t, "d/f")
	want := make([]byte, 0, 3*maxPendingBytes)
	for i := 0; len(want) < 2*maxPendingBytes+1000; i++ {
		p := bytes.Repeat([]byte{byte(i)}, 1000)
		want = append(want, p...)
		if n, err := f.Write(p); n != len(p) || err != nil {
			t.Fatalf("Write = %d, %v; want all", n, err)
		}
	}
	if info, err := f.Stat(); err != nil || info.Size() != int64(len(want)) {
		t.Errorf("Stat = %d, %v; want %d", info.Size(), err, len(want))
	}
	if _, err := f.Write([]byte("end")); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	f, err := r.Open("d/f")
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(f)
	if want = append(want, "end"...); err != nil || !bytes.Equal(got, want) {
		t.Errorf("read %d bytes, %v; want the %d written", len(got), err, len(want))
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestLeftBehind: when the file system is marked failed, calls that hang return, and what they made
// later is closed.
func TestLeftBehind(t *testing.T) {
	hold, held := make(chan struct{}), make(chan struct{}, 100)
	inner := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Path != "free" {
			held <- struct{}{}
			<-hold
		}
		return nil
	}))
	ops := running.New()
	fs := New(inner, ops, nil)
	f, err := fs.Create("free", category)
	if err != nil {
		t.Fatal(err)
	}
	calls := map[string]func() error{
		"create": func() error { _, err := fs.Create("c", category); return err },
		"open":   func() error { _, err := fs.Open("o"); return err },
		"list":   func() error { _, err := fs.List(""); return err },
		"rename": func() error { return fs.Rename("r", "s") },
	}
	returned := make(chan error, len(calls))
	for _, call := range calls {
		go func() { returned <- call() }()
	}
	for range calls {
		<-held
	}
	if ops.Oldest() == 0 {
		t.Error("no call is seen running")
	}
	fs.Fail(errors.New("hung"))
	failed := 0
	for range calls {
		if err := <-returned; errors.Is(err, syscall.EIO) {
			failed++
		}
	}
	if failed != 2 {
		t.Errorf("%d calls failed; want the 2 that read", failed)
	}
	if err := f.Close(); err != nil {
		t.Errorf("Close = %v; want nil", err)
	}
	close(hold)
	for ops.Oldest() != 0 {
		time.Sleep(time.Millisecond)
	}
}

// TestBenign: what is no failure of the drive marks nothing.
func TestBenign(t *testing.T) {
	r := &rig{FS: New(vfs.Default, running.New(), nil)}
	dir := t.TempDir()
	_, openErr := r.Open(dir + "/none")
	_, dirErr := r.OpenDir(dir + "/none")
	_, statErr := r.Stat(dir + "/none")
	for i, err := range []error{openErr, dirErr, statErr, r.Remove(dir + "/none")} {
		if err == nil {
			t.Errorf("call %d on a missing file = nil; want an error", i)
		}
	}
	if err := r.Err(); err != nil {
		t.Errorf("Err() = %v; want nil", err)
	}
}

// TestStatAfterFailure: the size of a file that is read is not known any more, that of one that is written is made up.
func TestStatAfterFailure(t *testing.T) {
	r := newRig(t)
	writing, err := r.Create("d/f", category)
	if err != nil {
		t.Fatal(err)
	}
	reading, err := r.Open("d/f")
	if err != nil {
		t.Fatal(err)
	}
	r.Fail(syscall.EIO)
	if _, err := writing.Stat(); err != nil {
		t.Errorf("Stat of a file open for writing = %v; want nil", err)
	}
	if _, err := reading.Stat(); !errors.Is(err, syscall.EIO) {
		t.Errorf("Stat of a file open for reading = %v; want EIO", err)
	}
}

// TestListAfterFailure: the first list tells its error, later ones only mark.
func TestListAfterFailure(t *testing.T) {
	var broken atomic.Bool
	inner := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(errorfs.Op) error {
		if broken.Load() {
			return syscall.EIO
		}
		return nil
	}))
	broken.Store(true)
	fs := New(inner, running.New(), nil)
	if _, err := fs.List("/"); !errors.Is(err, syscall.EIO) || fs.Err() != nil {
		t.Errorf("first List = %v, mark %v; want EIO, nil", err, fs.Err())
	}
	broken.Store(false)
	if _, err := fs.List("/"); err != nil {
		t.Fatal(err)
	}
	broken.Store(true)
	for range 2 {
		if names, err := fs.List("/"); err != nil || len(names) > 0 || !errors.Is(fs.Err(), syscall.EIO) {
			t.Errorf("later List = %v, %v, mark %v; want none, nil, EIO", names, err, fs.Err())
		}
	}
}
