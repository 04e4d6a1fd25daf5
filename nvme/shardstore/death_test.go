package shardstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/millrace/millrace/nvme/blockdev"
)

// metaFault fails operations on the metadata file system: the nth that matches, and all after it
// or, if it is once, none after it.
type metaFault struct {
	kinds []errorfs.OpKind
	match string // part of the path
	err   error
	once  bool
	whole bool // match is the whole path

	nth  atomic.Int64 // counts down; armed while above 0
	hits atomic.Int64
}

func (f *metaFault) String() string { return "fault on " + f.match }

// MaybeError implements errorfs.Injector.
func (f *metaFault) MaybeError(op errorfs.Op) error {
	if !slices.Contains(f.kinds, op.Kind) || !strings.Contains(op.Path, f.match) {
		return nil
	}
	if f.whole && op.Path != f.match {
		return nil
	}
	n := f.nth.Add(-1)
	if n > 0 || f.once && n < 0 || n < -1<<30 {
		return nil
	}
	f.hits.Add(1)
	return f.err
}

// disarmed is a count from which nth never gets to zero.
const disarmed = -1 << 40

func syncKinds() []errorfs.OpKind {
	return []errorfs.OpKind{errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo}
}

func writeKinds() []errorfs.OpKind {
	return append(syncKinds(), errorfs.OpCreate, errorfs.OpLink, errorfs.OpRename, errorfs.OpReuseForWrite,
		errorfs.OpFileWrite, errorfs.OpFileWriteAt, errorfs.OpFilePreallocate)
}

// TestMetadataFaults lets the metadata file system fail in each of the ways that make Pebble end
// the process or spin, and some more, under eight committers. The process must live, nothing
// be acknowledged after the fault, and all that was acknowledged be there after a power cut.
func TestMetadataFaults(t *testing.T) {
	eio := error(syscall.EIO)
	create := []errorfs.OpKind{errorfs.OpCreate, errorfs.OpReuseForWrite}
	for _, test := range []struct {
		name  string
		fault *metaFault
	}{
		{"wal write", &metaFault{kinds: []errorfs.OpKind{errorfs.OpFileWrite}, match: ".log", err: eio}},
		{"wal sync", &metaFault{kinds: syncKinds(), match: ".log", err: eio}},
		{"wal sync once", &metaFault{kinds: syncKinds(), match: ".log", err: eio, once: true}},
		{"wal create", &metaFault{kinds: create, match: ".log", err: eio}},
		{"wal create once", &metaFault{kinds: create, match: ".log", err: eio, once: true}},
		{"manifest write", &metaFault{kinds: []errorfs.OpKind{errorfs.OpFileWrite}, match: "MANIFEST", err: eio}},
		{"manifest sync", &metaFault{kinds: syncKinds(), match: "MANIFEST", err: eio}},
		{"sstable create", &metaFault{kinds: create, match: ".sst", err: eio}},
		{"sstable write", &metaFault{kinds: []errorfs.OpKind{errorfs.OpFileWrite}, match: ".sst", err: eio}},
		{"sstable sync", &metaFault{kinds: syncKinds(), match: ".sst", err: eio}},
		{"sstable read", &metaFault{kinds: []errorfs.OpKind{errorfs.OpFileReadAt}, match: ".sst", err: eio}},
		{"directory sync", &metaFault{kinds: syncKinds(), match: "meta", whole: true, err: eio}},
		{"directory sync once", &metaFault{kinds: syncKinds(), match: "meta", whole: true, err: eio, once: true}},
		{"remove", &metaFault{kinds: []errorfs.OpKind{errorfs.OpRemove}, match: "", err: eio}},
		{"no space", &metaFault{kinds: writeKinds(), match: "", err: syscall.ENOSPC}},
		{"read-only", &metaFault{kinds: writeKinds(), match: "", err: syscall.EROFS}},
		{"all at once", &metaFault{kinds: append(writeKinds(), errorfs.OpFileReadAt, errorfs.OpOpen,
			errorfs.OpStat, errorfs.OpList, errorfs.OpFileStat), match: "", err: eio}},
	} {
		for _, nth := range []int64{1, 2, 3, 7, 19} {
			t.Run(fmt.Sprintf("%s %d", test.name, nth), func(t *testing.T) {
				t.Parallel()
				runMetadataFault(t, &metaFault{kinds: test.fault.kinds, match: test.fault.match,
					err: test.fault.err, once: test.fault.once, whole: test.fault.whole}, nth)
			})
		}
	}
}

func runMetadataFault(t *testing.T, fault *metaFault, nth int64) {
	disk := vfs.NewCrashableMem()
	fault.nth.Store(disarmed)
	d := &testDrive{dev: blockdev.NewMem(64 << 20), fs: disk}
	d.opts.MemTableBytes = 32 << 10
	if err := Format(context.Background(), d.options(), testLabel()); err != nil {
		t.Fatal(err)
	}
	healthy := newTestDrive(t, 64<<20).open(t)
	hooked := make(chan error, 10)
	d.fs, d.opts.DeadHook = errorfs.Wrap(disk, fault), func(err error) { hooked <- err }
	s := d.open(t)
	fault.nth.Store(nth)
	acked := commitUntilDead(t, s)
	crashed := disk.CrashClone(vfs.CrashCloneCfg{})

	if fault.hits.Load() == 0 {
		if nth == 1 {
			t.Fatalf("fault never met")
		}
		return
	}
	if err := s.Err(); !errors.Is(err, ErrDead) || !errors.Is(err, fault.err) {
		t.Fatalf("Err() = %v; want ErrDead with the cause %v", err, fault.err)
	}
	if _, err := s.Get([]byte("x"), nil); !errors.Is(err, ErrDead) {
		t.Errorf("Get on a dead drive = %v; want ErrDead", err)
	}
	if err := <-hooked; !errors.Is(err, ErrDead) {
		t.Errorf("DeadHook got %v; want ErrDead", err)
	}
	if err := s.Close(); !errors.Is(err, ErrDead) {
		t.Errorf("Close of a dead drive = %v; want ErrDead", err)
	}
	if len(hooked) != 0 {
		t.Errorf("DeadHook called again")
	}
	putShard(t, healthy, ShardID{SegmentID{1}, 0}, shardBytes(BlockBytes, 1))

	d.fs, d.opts.DeadHook = crashed, nil
	s = d.open(t)
	for key := range acked {
		if _, err := s.Get(binary.BigEndian.AppendUint64(nil, key), nil); err != nil {
			t.Fatalf("acknowledged record %d after the power cut: %v", key, err)
		}
	}
}

// commitUntilDead runs eight committers until the drive is dead or each has done its share, and
// gives the keys whose commits were acknowledged.
func commitUntilDead(t *testing.T, s *Store) map[uint64]bool {
	const committers, share = 8, 60
	var mu sync.Mutex
	acked := make(map[uint64]bool)
	var wg sync.WaitGroup
	for c := range uint64(committers) {
		wg.Go(func() {
			value := shardBytes(2048, c)
			for i := range uint64(share) {
				key := c<<32 | i
				b := s.NewBatch()
				b.Set(binary.BigEndian.AppendUint64(nil, key), value)
				if i%8 == 7 {
					b.Delete(binary.BigEndian.AppendUint64(nil, key+1<<20))
				}
				dead := s.Err()
				err := s.Commit(context.Background(), b, true)
				switch {
				case err == nil && dead != nil:
					t.Errorf("commit acknowledged by a dead drive")
				case err == nil:
					mu.Lock()
					acked[key] = true
					mu.Unlock()
				case !errors.Is(err, ErrDead):
					t.Errorf("Commit = %v; want ErrDead", err)
				}
				if err != nil && i%4 == 0 {
					return
				}
				_, err = s.Get(binary.BigEndian.AppendUint64(nil, key/2), nil)
				if err != nil && !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrDead) {
					t.Errorf("Get = %v", err)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Fatal("a committer is stuck")
	}
	time.Sleep(time.Millisecond) // lets what runs in the background meet the fault
	return acked
}

// TestDeviceFaults: a device that fails a write or a flush is dead; one that fails a read is not.
func TestDeviceFaults(t *testing.T) {
	boom := errors.New("boom")
	for _, test := range []struct {
		kind blockdev.OpKind
		dead bool
	}{{blockdev.WriteOp, true}, {blockdev.FlushOp, true}, {blockdev.ReadOp, false}} {
		t.Run(test.kind.String(), func(t *testing.T) {
			d := newTestDrive(t, 64<<20)
			fault := blockdev.NewFault(d.dev)
			d.dev = fault
			s := d.open(t)
			id := ShardID{SegmentID{5}, 0}
			putShard(t, s, id, shardBytes(BlockBytes, 1))
			fault.Add(blockdev.Rule{Kind: test.kind, Err: boom})
			var err error
			if test.kind == blockdev.ReadOp {
				_, err = readShard(s, id, 0, BlockBytes)
			} else {
				err = tryPut(s, ShardID{SegmentID{6}, 0}, shardBytes(BlockBytes, 2), true)
			}
			if !errors.Is(err, boom) || errors.Is(err, ErrDead) != test.dead || (s.Err() != nil) != test.dead {
				t.Errorf("with failing %ss: %v, Err() = %v; want dead = %v", test.kind, err, s.Err(), test.dead)
			}
			fault.Heal()
			if err := tryPut(s, id, shardBytes(BlockBytes, 3), true); errors.Is(err, ErrDead) != test.dead {
				t.Errorf("put after healing = %v; want dead = %v", err, test.dead)
			}
		})
	}
}
