package shardstore

import (
	"context"
	"encoding/binary"
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/millrace/millrace/nvme/blockdev"
)

// metaHang is a metadata file system of which, once armed, operations of some kinds never answer.
type metaHang struct {
	kinds []errorfs.OpKind // none: all
	armed atomic.Bool
	hold  chan struct{}
}

// String implements fmt.Stringer.
func (h *metaHang) String() string { return "hang" }

// MaybeError implements errorfs.Injector.
func (h *metaHang) MaybeError(op errorfs.Op) error {
	if h.armed.Load() && (len(h.kinds) == 0 || slices.Contains(h.kinds, op.Kind)) {
		<-h.hold
	}
	return nil
}

const testDeadline = 400 * time.Millisecond

// within fails the test if fn takes so long that nothing but a hang explains it.
func within(t *testing.T, what string, fn func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		fn()
	}()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		buf := make([]byte, 1<<20)
		t.Fatalf("%s hangs\n%s", what, buf[:runtime.Stack(buf, true)])
	}
}

// TestHungMetadata: when the metadata file system stops answering, whatever it is doing, the drive
// is dead after the deadline; every call returns with that error; Close returns; and when the calls
// that were left behind end at last, nothing is left of the store.
func TestHungMetadata(t *testing.T) {
	for name, kinds := range map[string][]errorfs.OpKind{
		"write": {errorfs.OpFileWrite}, "sync": syncKinds(), "create": {errorfs.OpCreate, errorfs.OpReuseForWrite},
		"read": {errorfs.OpFileReadAt}, "open": {errorfs.OpOpen}, "all": nil,
	} {
		t.Run(name, func(t *testing.T) {
			before := runtime.NumGoroutine()
			hang := &metaHang{kinds: kinds, hold: make(chan struct{})}
			d := &testDrive{dev: blockdev.NewMem(64 << 20), fs: errorfs.Wrap(vfs.NewMem(), hang)}
			d.opts.MemTableBytes, d.opts.OpDeadline = 32<<10, testDeadline
			if err := Format(context.Background(), d.options(), testLabel()); err != nil {
				t.Fatal(err)
			}
			s := d.open(t)
			hang.armed.Store(true)
			within(t, "committing", func() { hammer(t, s) })
			within(t, "Close", func() {
				if err := s.Close(); !errors.Is(err, ErrDead) {
					t.Errorf("Close = %v; want ErrDead", err)
				}
			})
			close(hang.hold)
			wantGoroutines(t, before)
		})
	}
}

// hammer uses the drive until it is dead.
func hammer(t *testing.T, s *Store) {
	var wg sync.WaitGroup
	for c := range uint64(4) {
		wg.Go(func() {
			for i := uint64(0); ; i++ {
				b := s.NewBatch()
				b.Set(binary.BigEndian.AppendUint64(nil, c<<32|i), shardBytes(4096, c))
				_, getErr := s.Get(binary.BigEndian.AppendUint64(nil, c<<32|i/2), nil)
				err := s.Commit(context.Background(), b, i%2 == 0)
				if it, scanErr := s.Scan(nil, nil); scanErr == nil {
					it.First()
					it.Last()
					it.Close()
				}
				if errors.Is(err, ErrDead) {
					return
				}
				if err != nil || getErr != nil && !errors.Is(getErr, ErrNotFound) && !errors.Is(getErr, ErrDead) {
					t.Errorf("Commit = %v, Get = %v; want no other error than ErrDead", err, getErr)
					return
				}
			}
		})
	}
	wg.Wait()
}

// wantGoroutines waits until no more goroutines run than before.
func wantGoroutines(t *testing.T, before int) {
	t.Helper()
	for range 1000 {
		if runtime.NumGoroutine() <= before {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	buf := make([]byte, 1<<20)
	t.Errorf("%d goroutines; want %d\n%s", runtime.NumGoroutine(), before, buf[:runtime.Stack(buf, true)])
}

// TestHungDevice: when the data device stops answering, commits end with ErrDead, and reads and writes
// end when it answers; Close waits for neither.
func TestHungDevice(t *testing.T) {
	for _, kind := range []blockdev.OpKind{blockdev.ReadOp, blockdev.WriteOp, blockdev.FlushOp} {
		t.Run(kind.String(), func(t *testing.T) {
			before := runtime.NumGoroutine()
			d := newTestDrive(t, 64<<20)
			fault := blockdev.NewFault(d.dev)
			d.dev, d.opts.OpDeadline = fault, testDeadline
			s := d.open(t)
			id := ShardID{SegmentID{1}, 0}
			putShard(t, s, id, shardBytes(BlockBytes, 1))
			hold, done := make(chan struct{}), make(chan error, 2)
			fault.Add(blockdev.Rule{Kind: kind, Hold: hold})
			go func() {
				if kind == blockdev.ReadOp {
					_, err := readShard(s, id, 0, BlockBytes)
					done <- err
					return
				}
				done <- tryPut(s, ShardID{SegmentID{2}, 0}, shardBytes(BlockBytes, 1), true)
			}()
			within(t, "death", func() { <-s.Dead() })
			if kind == blockdev.FlushOp {
				within(t, "Commit", func() {
					if err := <-done; !errors.Is(err, ErrDead) {
						t.Errorf("Commit = %v; want ErrDead", err)
					}
				})
			}
			if err := tryPut(s, id, shardBytes(BlockBytes, 2), true); !errors.Is(err, ErrDead) {
				t.Errorf("later put = %v; want ErrDead", err)
			}
			within(t, "Close", func() { s.Close() })
			close(hold)
			if kind != blockdev.FlushOp {
				within(t, "the call left behind", func() { <-done })
			}
			wantGoroutines(t, before)
		})
	}
}

// TestHungAtOpen: Open of a drive that hangs gives an error after the deadline.
func TestHungAtOpen(t *testing.T) {
	before := runtime.NumGoroutine()
	d := newTestDrive(t, 64<<20)
	hang := &metaHang{hold: make(chan struct{})}
	hang.armed.Store(true)
	fault := blockdev.NewFault(d.dev, blockdev.Rule{Hold: hang.hold})
	d.opts.OpDeadline = testDeadline
	dev, fs := d.dev, d.fs
	for _, hung := range []*testDrive{
		{dev: fault, fs: fs, opts: d.opts}, {dev: dev, fs: errorfs.Wrap(fs, hang), opts: d.opts},
	} {
		within(t, "Open", func() {
			if _, err := Open(context.Background(), hung.options()); !errors.Is(err, errHung) {
				t.Errorf("Open = %v; want errHung", err)
			}
		})
	}
	close(hang.hold)
	wantGoroutines(t, before)
	d.opts.OpDeadline = 0 // the machine may be slow
	putShard(t, d.open(t), ShardID{SegmentID{1}, 0}, shardBytes(BlockBytes, 1))
}
