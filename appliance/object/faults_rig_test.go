package object_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/millrace/millrace/appliance/erasure"
	"github.com/millrace/millrace/appliance/object"
	"github.com/millrace/millrace/nvme/blockdev"
	"github.com/millrace/millrace/nvme/shardstore"
	"github.com/millrace/millrace/s3/store"
)

// sickDeadline is how long a drive that will hang may take for a call. The others have the usual deadline,
// so that a busy machine doesn't take them for hung.
const sickDeadline = 50 * time.Millisecond

// patient is a drive to which something happens.
type patient struct {
	*boxDrive
	slot int
	rng  *rand.Rand
	meta metaTrouble
	also []blockdev.Rule // those that it has after a restart, too
	hold chan struct{}   // what hangs is stuck until this is closed
	held []*shardstore.ShardWriter
}

// metaTrouble is what happens to calls of a metadata file system.
type metaTrouble struct {
	do    atomic.Pointer[func(errorfs.Op) error]
	short atomic.Bool // the file system says that it is full
}

// String makes it an errorfs.Injector.
func (m *metaTrouble) String() string { return "trouble" }

// MaybeError implements errorfs.Injector.
func (m *metaTrouble) MaybeError(op errorfs.Op) error {
	if do := m.do.Load(); do != nil {
		return (*do)(op)
	}
	return nil
}

func (m *metaTrouble) set(do func(errorfs.Op) error) { m.do.Store(&do) }

// limitedFS is a file system that can be told to be nearly full.
type limitedFS struct {
	vfs.FS
	m *metaTrouble
}

// GetDiskUsage implements vfs.FS.
func (f limitedFS) GetDiskUsage(string) (vfs.DiskUsage, error) {
	if f.m.short.Load() {
		return vfs.DiskUsage{AvailBytes: 1 << 10, TotalBytes: 1 << 30}, nil
	}
	return vfs.DiskUsage{AvailBytes: 1 << 29, TotalBytes: 1 << 30}, nil
}

// ailment is something that can happen to a drive in use.
type ailment struct {
	name   string
	strike func(*patient, *object.Engine)
}

func rule(r blockdev.Rule) func(*patient, *object.Engine) {
	return func(p *patient, _ *object.Engine) { p.add(r) }
}

func (p *patient) add(r blockdev.Rule) {
	p.also = append(p.also, r)
	p.fault.Add(r)
}

// sometimes is rule for one operation in n.
func sometimes(n int, r blockdev.Rule) func(*patient, *object.Engine) {
	return func(p *patient, _ *object.Engine) {
		seed := p.rng.Uint64()
		r := r
		r.Match = func(op blockdev.Op) bool {
			return rand.New(rand.NewPCG(seed, uint64(op.Total))).IntN(n) == 0
		}
		p.add(r)
	}
}

// stuck is rule for an operation that hangs.
func stuck(kind blockdev.OpKind) func(*patient, *object.Engine) {
	return func(p *patient, _ *object.Engine) { p.add(blockdev.Rule{Kind: kind, Hold: p.hold}) }
}

// flips are offsets all over the part of a drive that a test fills.
func flips() (at []int64) {
	for off := int64(1 << 20); off < 64<<20; off += 50_001 {
		at = append(at, off)
	}
	return at
}

func ailments() []ailment {
	failed, isWrite := blockdev.ErrInjected, func(op errorfs.Op) bool { return op.Kind.ReadOrWrite() == errorfs.OpIsWrite }
	list := []ailment{
		{"read errors", rule(blockdev.Rule{Kind: blockdev.ReadOp, Err: failed})},
		{"some read errors", sometimes(3, blockdev.Rule{Kind: blockdev.ReadOp, Err: failed})},
		{"write errors", rule(blockdev.Rule{Kind: blockdev.WriteOp, Err: failed})},
		{"some write errors", sometimes(4, blockdev.Rule{Kind: blockdev.WriteOp, Err: failed})},
		{"flush errors", rule(blockdev.Rule{Kind: blockdev.FlushOp, Err: failed})},
		{"hanging reads", stuck(blockdev.ReadOp)},
		{"hanging writes", stuck(blockdev.WriteOp)},
		{"hanging flushes", stuck(blockdev.FlushOp)},
		{"hanging", stuck(blockdev.AnyOp)},
		{"10 times slower", rule(blockdev.Rule{Delay: 100 * time.Microsecond})},
		{"1000 times slower", rule(blockdev.Rule{Delay: 10 * time.Millisecond})},
		{"lost writes", sometimes(2, blockdev.Rule{Kind: blockdev.WriteOp, Torn: true})},
		{"all writes lost", rule(blockdev.Rule{Kind: blockdev.WriteOp, Torn: true})},
		{"torn writes", sometimes(2, blockdev.Rule{Kind: blockdev.WriteOp, Torn: true, LandBytes: 5000})},
		{"misdirected writes", sometimes(2, blockdev.Rule{Kind: blockdev.WriteOp, ShiftBytes: 64 << 10})},
		{"flipped bits", rule(blockdev.Rule{Kind: blockdev.ReadOp, FlipAt: flips()})},
		{"gone", rule(blockdev.Rule{Gone: true})},
		{"a few errors", rule(blockdev.Rule{Err: failed, Times: 3})},
		{"a few read errors", rule(blockdev.Rule{Kind: blockdev.ReadOp, Err: failed, Times: 3})},
		{"pulled", func(p *patient, _ *object.Engine) { p.absent.Store(true) }},
		{"data area full", func(p *patient, e *object.Engine) { p.fillData(e) }},
		{"metadata full", func(p *patient, _ *object.Engine) { p.meta.short.Store(true) }},
		{"metadata out of space", func(p *patient, _ *object.Engine) {
			p.meta.set(func(op errorfs.Op) error {
				if isWrite(op) {
					return syscall.ENOSPC
				}
				return nil
			})
		}},
		{"metadata errors", func(p *patient, _ *object.Engine) {
			p.meta.set(func(errorfs.Op) error { return syscall.EIO })
		}},
		{"metadata hanging", func(p *patient, _ *object.Engine) {
			hold := p.hold
			p.meta.set(func(errorfs.Op) error { <-hold; return nil })
		}},
		{"metadata slow", func(p *patient, _ *object.Engine) {
			p.meta.set(func(errorfs.Op) error { time.Sleep(time.Millisecond); return nil })
		}},
	}
	return list
}

// fillData takes all space that is left for data.
func (p *patient) fillData(e *object.Engine) {
	s := e.Store(p.slot)
	for size := int64(shardstore.MaxShardBytes); size >= shardstore.AllocUnitBytes; {
		id := shardstore.ShardID{Segment: shardstore.SegmentID{0xFF, byte(p.slot), byte(len(p.held) + 1)}}
		w, err := s.NewShard(context.Background(), id, size)
		if err != nil {
			size = size / 2 / shardstore.AllocUnitBytes * shardstore.AllocUnitBytes
			continue
		}
		p.held = append(p.held, w)
	}
}

// ward is a box some of whose drives are patients.
type ward struct {
	*box
	patients map[*boxDrive]*patient
	all      []*patient
	before   int // goroutines
	logMu    sync.Mutex
	logged   bytes.Buffer
}

// Write makes it the engine's log.
func (w *ward) Write(p []byte) (int, error) {
	w.logMu.Lock()
	defer w.logMu.Unlock()
	return w.logged.Write(p)
}

// tellIfFailed shows what the engine logged, if the test has failed.
func (w *ward) tellIfFailed() {
	w.logMu.Lock()
	defer w.logMu.Unlock()
	if w.t.Failed() {
		w.t.Log("log of the engine:\n" + w.logged.String())
	}
}

func newWard(t *testing.T, rng *rand.Rand, scheme erasure.Scheme, drives int) *ward {
	before := runtime.NumGoroutine()
	w := &ward{box: newBox(t, scheme, drives), patients: map[*boxDrive]*patient{}, before: before}
	w.configure = func(c *object.Config) { c.Logger = slog.New(slog.NewTextHandler(w, nil)) }
	for slot, d := range w.drives {
		p := &patient{boxDrive: d, slot: slot, rng: rand.New(rand.NewPCG(rng.Uint64(), 0)), hold: make(chan struct{})}
		w.patients[d] = p
		w.all = append(w.all, p)
	}
	return w
}

// admit lets the drives of the slots be opened as patients from now on.
func (w *ward) admit(slots []int) {
	w.adjust = func(d *boxDrive, o *shardstore.Options) {
		p := w.patients[d]
		if p == nil || !slices.Contains(slots, p.slot) {
			return
		}
		o.OpDeadline, o.MetaReserveBytes = sickDeadline, 1<<20
		d.fault.Add(p.also...)
		o.MetaFS = errorfs.Wrap(limitedFS{d.fs, &p.meta}, &p.meta)
	}
}

// begin fills the pool, then opens it with patients in the slots.
func (w *ward) begin(slots []int) (e *object.Engine, want map[string][]byte) {
	w.t.Helper()
	e = w.open()
	mustBucket(w.t, e, "b")
	want = w.bodies(e)
	closeEngine(w.t, e)
	w.admit(slots)
	return w.openPatiently(), want
}

// openPatiently opens an engine on patients, for which a machine that is busy for a moment looks like a drive that hangs.
func (w *ward) openPatiently() *object.Engine {
	w.t.Helper()
	for range 20 {
		if e, err := w.tryOpen(); err == nil {
			return e
		}
	}
	return w.open()
}

// discharge makes all drives well, and releases what hangs.
func (w *ward) discharge() {
	for _, p := range w.all {
		close(p.hold)
		p.hold = make(chan struct{})
		p.fault.Heal()
		p.also = nil
		p.meta.do.Store(nil)
		p.meta.short.Store(false)
		for _, h := range p.held {
			h.Abort()
		}
		p.held = nil
		p.absent.Store(false)
	}
	w.adjust = nil
}

// wantNothingLeft waits until the goroutines that were left behind have ended and the arena is empty.
func (w *ward) wantNothingLeft() {
	w.t.Helper()
	waitFor(w.t, "an empty arena and no goroutines left", func() bool {
		return w.arena.InUseBytes() == 0 && runtime.NumGoroutine() <= w.before+4 // those of the shared cache
	})
}

// clearError says whether an error tells a client that the pool can't do it now, and nothing worse.
func clearError(err error) bool {
	return errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrFull) ||
		errors.Is(err, store.ErrOverloaded) || errors.Is(err, store.ErrDamaged)
}

// bodies are objects of every kind of layout, by key.
func (w *ward) bodies(e *object.Engine) map[string][]byte {
	w.t.Helper()
	want := map[string][]byte{}
	for i, n := range []int{0, 5000, 16<<10 + 1, 200 << 10, 3<<20 + 7} {
		key := fmt.Sprintf("base%d", i)
		want[key] = noise(uint64(i), n)
		mustPut(w.t, e, "b", key, want[key])
	}
	body, err := multipart(e, "multi", noise(50, 300<<10))
	if err != nil {
		w.t.Fatal(err)
	}
	want["multi"] = body
	return want
}

// bounded fails the test, with all goroutines, if fn takes so long that only a hang explains it.
func bounded(t *testing.T, what string, fn func()) {
	t.Helper()
	var wg sync.WaitGroup
	wg.Go(fn)
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(60 * time.Second):
		buf := make([]byte, 4<<20)
		t.Fatalf("%s hangs\n%s", what, buf[:runtime.Stack(buf, true)])
	}
}
