package shardstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/millrace/millrace/nvme/blockdev"
)

var openFaults = flag.Int("open-faults", 300, "how many openings of failing drives TestOpenFaults tries")

// busyDrive gives a drive whose opening is full of work: a log for many tables of new records, a
// first level over its limit, deleted ranges over old tables.
func busyDrive(t *testing.T) *testDrive {
	t.Helper()
	d := &testDrive{dev: blockdev.NewMem(64 << 20), fs: vfs.NewCrashableMem()}
	if err := Format(context.Background(), d.options(), testLabel()); err != nil {
		t.Fatal(err)
	}
	o := d.options()
	if err := o.setDefaults(); err != nil {
		t.Fatal(err)
	}
	s := newStore(&o, testLabel())
	po := s.pebbleOptions(&o)
	po.DisableAutomaticCompactions = true
	db, err := pebble.Open(o.MetaDir, po)
	if err != nil {
		t.Fatal(err)
	}
	value := shardBytes(1000, 1)
	set := func(i uint64) {
		key := binary.BigEndian.AppendUint64([]byte{prefixEngine}, i*0x9e3779b97f4a7c15)
		if err := db.Set(key, value, pebble.NoSync); err != nil {
			t.Fatal(err)
		}
	}
	for table := range uint64(20) { // fewer than stop writes
		for i := range uint64(10) {
			set(table*7 + i)
		}
		if table%10 == 5 {
			if err := db.DeleteRange([]byte{prefixEngine}, []byte{prefixEngine, byte(8 * table)}, nil); err != nil {
				t.Fatal(err)
			}
		}
		if err := db.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	for i := range uint64(300) {
		set(i)
		if i%30 == 29 { // so that the tables' statistics are asked for
			if err := db.DeleteRange([]byte{prefixEngine, byte(i / 2)}, []byte{prefixEngine, 255}, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return d
}

// TestOpenFaults lets a drive fail at every operation of its opening, for once or for good, with
// flushes and compactions to be done. The process must live, and every call return.
func TestOpenFaults(t *testing.T) {
	rng := testRand(t)
	busy := busyDrive(t)
	disk := busy.fs.(*vfs.MemFS)
	before := runtime.NumGoroutine()
	opened, failed := 0, 0
	for tried, k, met := 0, int64(1), true; tried < *openFaults; k++ {
		for _, once := range []bool{true, false} {
			for _, writes := range []bool{true, false} {
				met = openFaulty(t, disk, k, once, writes, &opened, &failed) && met
				tried++
			}
		}
		if !met {
			k, met = rng.Int64N(20), true // again from the start: the goroutines never run alike
		}
	}
	t.Logf("%d opened, %d not; %d goroutines left", opened, failed, runtime.NumGoroutine()-before)
	for range 1000 {
		if !inProgress("collectTableStats") {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if inProgress("collectTableStats") {
		t.Error("what a failed opening left behind goes on for ever")
	}
	if *openFaults >= 300 && (opened == 0 || failed == 0) {
		t.Errorf("%d opened, %d not; want some of both", opened, failed)
	}
}

// inProgress says whether a goroutine is in a function of that name.
func inProgress(name string) bool {
	stacks := make([]byte, 4<<20)
	return bytes.Contains(stacks[:runtime.Stack(stacks, true)], []byte(name))
}

// openFaulty opens a copy of the disk that fails at its k-th operation. It says whether it came to that.
func openFaulty(t *testing.T, disk *vfs.MemFS, k int64, once, writes bool, opened, failed *int) bool {
	var n atomic.Int64
	injector := errorfs.InjectorFunc(func(op errorfs.Op) error {
		if writes && op.Kind.ReadOrWrite() == errorfs.OpIsRead {
			return nil
		}
		if at := n.Add(1); at == k || at > k && !once {
			return syscall.EIO
		}
		return nil
	})
	copied := disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})
	d := &testDrive{dev: blockdev.NewMem(64 << 20), fs: errorfs.Wrap(copied, injector)}
	d.opts.MemTableBytes = 32 << 10
	if err := writeSuperblock(d.dev, superblock{label: formattedLabel(d.dev), sequence: 1}); err != nil {
		t.Fatal(err)
	}
	s, err := Open(context.Background(), d.options())
	if err != nil {
		*failed++
		return n.Load() >= k
	}
	*opened++
	for i := range byte(3) {
		b := s.NewBatch()
		b.Set([]byte{i}, shardBytes(10_000, 1))
		if err := s.Commit(context.Background(), b, true); err != nil && !errors.Is(err, ErrDead) {
			t.Errorf("Commit = %v; want nil or ErrDead", err)
		}
	}
	if err := s.Close(); err != nil && !errors.Is(err, ErrDead) {
		t.Errorf("Close = %v; want nil or ErrDead", err)
	}
	return n.Load() >= k
}

func formattedLabel(dev blockdev.Device) Label {
	l := testLabel()
	l.FormatVersion, l.AllocUnitBytes, l.DataBytes = FormatVersion, AllocUnitBytes, dev.SizeBytes()
	return l
}

// TestCompactionsStart: what Open held back is done when it has succeeded.
func TestCompactionsStart(t *testing.T) {
	s := busyDrive(t).open(t)
	for range 2000 {
		if m := s.db.Metrics(); m.Compact.NumInProgress == 0 && m.Levels[0].TablesCount <= 2 {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Errorf("the first level still has %d tables", s.db.Metrics().Levels[0].TablesCount)
}

// bodyFault fails the reads of Pebble's files of values, once it is on.
type bodyFault struct{ on atomic.Bool }

func (f *bodyFault) String() string { return "unreadable values" }

func (f *bodyFault) MaybeError(op errorfs.Op) error {
	if f.on.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsRead && strings.HasSuffix(op.Path, ".blob") {
		return syscall.EIO
	}
	return nil
}

// TestUnreadableValue: Pebble's Get gives an empty value and no error when it can't read a value that is apart
// from the tables. Ours must not.
func TestUnreadableValue(t *testing.T) {
	d := newTestDrive(t, 64<<20)
	s := d.open(t)
	body := shardBytes(5000, 1)
	b := s.NewBatch()
	b.Set([]byte("body"), body)
	if err := s.Commit(context.Background(), b, true); err != nil {
		t.Fatal(err)
	}
	if err := s.db.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, fails := range []bool{false, true} {
		o, fault := d.options(), &bodyFault{}
		o.MetaFS = errorfs.Wrap(o.MetaFS, fault)
		s, err := Open(context.Background(), o)
		if err != nil {
			t.Fatal(err)
		}
		fault.on.Store(fails)
		got, err := s.Get([]byte("body"), nil)
		switch {
		case fails && (err == nil || len(got) > 0 || s.Err() == nil):
			t.Errorf("Get of an unreadable value = %d bytes, %v, drive %v; want an error and a dead drive", len(got), err, s.Err())
		case !fails && (err != nil || !bytes.Equal(got, body)):
			t.Errorf("Get = %d bytes, %v; want %d", len(got), err, len(body))
		}
		_ = s.Close()
	}
}
