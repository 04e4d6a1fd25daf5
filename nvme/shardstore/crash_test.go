package shardstore

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/millrace/millrace/nvme/blockdev"
)

// crashRig is a drive of which pictures are taken, before each operation on the device and
// each mutation of the metadata file system: what a power cut at that moment would leave.
type crashRig struct {
	*blockdev.Mem
	disk *vfs.MemFS

	io      sync.RWMutex // held for reading while the device works, for writing while a picture is taken
	mu      sync.Mutex
	rng     *rand.Rand
	on      bool
	durable int // the last step whose commit with sync was acknowledged
	begun   int // the last step that was begun
	crashes []crash
}

// crash is one picture, and between which steps it was taken.
type crash struct {
	dev            *blockdev.Mem
	disk           *vfs.MemFS
	durable, begun int
}

func newCrashRig(rng *rand.Rand) *crashRig {
	return &crashRig{Mem: blockdev.NewMem(minDataBytes), disk: vfs.NewCrashableMem(), rng: rng}
}

// drive gives the rig as a drive to open.
func (r *crashRig) drive() *testDrive {
	return &testDrive{dev: r, fs: errorfs.Wrap(r.disk, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			r.snap()
		}
		return nil
	}))}
}

// snap takes a picture. The device stands still meanwhile. The metadata need not: what is committed
// after the device's picture and before its own refers to nothing that the device has not flushed.
func (r *crashRig) snap() {
	r.io.Lock()
	defer r.io.Unlock()
	r.mu.Lock()
	on, durable := r.on, r.durable
	r.mu.Unlock()
	if !on {
		return
	}
	cfg := vfs.CrashCloneCfg{UnsyncedDataPercent: r.rng.IntN(3) * 50, RNG: rand.New(rand.NewPCG(r.rng.Uint64(), 0))}
	c := crash{dev: r.CrashClone(r.rng, r.rng.IntN(3)*50), disk: r.disk.CrashClone(cfg), durable: durable}
	r.mu.Lock()
	c.begun = r.begun
	r.crashes = append(r.crashes, c)
	r.mu.Unlock()
}

func (r *crashRig) WriteAt(bufs [][]byte, off int64) error {
	r.snap()
	r.io.RLock()
	defer r.io.RUnlock()
	return r.Mem.WriteAt(bufs, off)
}

func (r *crashRig) Flush() error {
	r.snap()
	r.io.RLock()
	defer r.io.RUnlock()
	return r.Mem.Flush()
}

func (r *crashRig) set(fn func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fn()
}

// TestCrash runs random steps and cuts the power before every operation. What is left must be
// the state after some step: not before the last one that was acknowledged as durable, not after
// the last one begun. No space may leak, and none be used twice.
func TestCrash(t *testing.T) {
	rng := testRand(t)
	rig := newCrashRig(rand.New(rand.NewPCG(rng.Uint64(), 0)))
	d := rig.drive()
	d.opts.MemTableBytes = 32 << 10
	if err := Format(context.Background(), d.options(), testLabel()); err != nil {
		t.Fatal(err)
	}
	s := d.open(t)
	rig.set(func() { rig.on = true })
	var steps []step
	for i := range 60 {
		st := randomStep(rng, len(steps)+1)
		rig.set(func() { rig.begun = st.number })
		done, err := st.run(s, rng)
		if err != nil {
			t.Fatal(err)
		}
		if done {
			steps = append(steps, st)
			if st.sync {
				rig.set(func() { rig.durable = st.number })
			}
		}
		if i == 40 { // a clean restart in between
			s.Close()
			s = d.open(t)
		}
	}
	rig.set(func() { rig.on = false })
	s.Close()
	t.Logf("%d crashes", len(rig.crashes))
	if len(rig.crashes) < 100 {
		t.Errorf("%d crashes; want at least 100", len(rig.crashes))
	}
	for i, c := range rig.crashes {
		checkCrash(t, i, c, steps)
	}
}

func checkCrash(t *testing.T, i int, c crash, steps []step) {
	t.Helper()
	d := &testDrive{dev: c.dev, fs: c.disk}
	s, err := Open(context.Background(), d.options())
	if err != nil {
		t.Fatalf("crash %d: Open = %v", i, err)
	}
	defer s.Close()
	last := 0
	value, err := s.Get([]byte("step"), nil)
	if err == nil {
		last, err = strconv.Atoi(string(value))
	}
	if err != nil && !errors.Is(err, ErrNotFound) || last < c.durable || last > c.begun {
		t.Fatalf("crash %d: last step %d, %v; want %d to %d", i, last, err, c.durable, c.begun)
	}
	m := newModel()
	for _, st := range steps[:last] {
		m.apply(st)
	}
	m.check(t, s)
}

// TestFormatCrash cuts the power at every operation of Format: what is left is a drive, or can be
// formatted as if nothing had been there.
func TestFormatCrash(t *testing.T) {
	rng := testRand(t)
	rig := newCrashRig(rng)
	rig.on = true
	ctx := context.Background()
	if err := Format(ctx, rig.drive().options(), testLabel()); err != nil {
		t.Fatal(err)
	}
	for i, c := range rig.crashes {
		d := &testDrive{dev: c.dev, fs: c.disk}
		if _, err := ReadLabel(d.dev); err != nil {
			if err := Format(ctx, d.options(), testLabel()); err != nil {
				t.Fatalf("crash %d of %d: Format = %v", i, len(rig.crashes), err)
			}
		}
		putShard(t, d.open(t), ShardID{SegmentID{1}, 1}, shardBytes(BlockBytes, 1))
	}
}
