package object_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/millrace/millrace/appliance/erasure"
	"github.com/millrace/millrace/appliance/object"
	"github.com/millrace/millrace/nvme/shardstore"
	"github.com/millrace/millrace/s3/store"
)

// quota is a metadata file system of a fixed size.
type quota struct {
	vfs.FS
	limitBytes int64
	refused    *atomic.Int64 // writes for which there was no space
}

// usedBytes is the size of all files under a directory.
func (q *quota) usedBytes(dir string) (n int64) {
	names, err := q.FS.List(dir)
	if err != nil {
		return 0
	}
	for _, name := range names {
		path := q.FS.PathJoin(dir, name)
		info, err := q.FS.Stat(path)
		switch {
		case err != nil: // gone meanwhile
		case info.IsDir():
			n += q.usedBytes(path)
		default:
			n += info.Size()
		}
	}
	return n
}

// GetDiskUsage implements vfs.FS.
func (q *quota) GetDiskUsage(string) (vfs.DiskUsage, error) {
	used := q.usedBytes("")
	return vfs.DiskUsage{AvailBytes: uint64(max(q.limitBytes-used, 0)), TotalBytes: uint64(q.limitBytes),
		UsedBytes: uint64(used)}, nil
}

// String makes it an errorfs.Injector.
func (q *quota) String() string { return "quota" }

// MaybeError implements errorfs.Injector.
func (q *quota) MaybeError(op errorfs.Op) error {
	if op.Kind == errorfs.OpFileWrite && q.usedBytes("") >= q.limitBytes {
		q.refused.Add(1)
		return syscall.ENOSPC
	}
	return nil
}

// fullScene is a small pool that is filled.
type fullScene struct {
	t       *testing.T
	b       *box
	e       *object.Engine
	want    map[string][]byte
	refused atomic.Int64 // by quotas
	made    int
}

// newFullScene makes a pool with one quota for each drive; the last is that of all others.
func newFullScene(t *testing.T, drives int, dataBytes, reserveBytes int64, metaBytes ...int64) *fullScene {
	s := &fullScene{t: t, b: newBoxOf(t, erasure.Scheme{Data: 2, Parity: 1}, drives, dataBytes), want: map[string][]byte{}}
	s.b.adjust = func(d *boxDrive, o *shardstore.Options) {
		i := min(slices.Index(s.b.drives, d), len(metaBytes)-1)
		q := &quota{FS: d.fs, limitBytes: metaBytes[i], refused: &s.refused}
		o.MetaFS, o.MetaReserveBytes, o.MemTableBytes = quotaFS{errorfs.Wrap(d.fs, q), q}, reserveBytes, reserveBytes/8
	}
	s.e = s.b.open()
	mustBucket(t, s.e, "b")
	return s
}

// quotaFS is a file system that has a quota and says so.
type quotaFS struct {
	vfs.FS
	q *quota
}

// GetDiskUsage implements vfs.FS.
func (f quotaFS) GetDiskUsage(path string) (vfs.DiskUsage, error) { return f.q.GetDiskUsage(path) }

// fill puts objects until many are refused, one after the other: they belong on different drives, and compactions may
// find some space yet.
func (s *fullScene) fill(sizeBytes int) {
	s.t.Helper()
	for refusals := 0; s.made < 100_000; {
		key, body := s.next(sizeBytes)
		_, err := put(s.e, "b", key, body)
		switch {
		case err == nil:
			refusals = 0
			s.want[key] = body
		case !errors.Is(err, store.ErrFull):
			s.t.Fatalf("Put(%q) = %v; want nil or ErrFull", key, err)
		case refusals == 20:
			return
		default:
			refusals++
			time.Sleep(10 * time.Millisecond)
		}
	}
	s.t.Fatal("the pool is never full")
}

// next gives another key and its bytes.
func (s *fullScene) next(sizeBytes int) (key string, body []byte) {
	s.made++
	return fmt.Sprintf("k%05d", s.made), noise(uint64(s.made), sizeBytes)
}

// check wants that a full pool refuses what is of that size, and does all else.
func (s *fullScene) check(sizeBytes int) {
	s.t.Helper()
	before := len(s.want)
	s.fill(sizeBytes)
	if more := len(s.want) - before; more > before/10 {
		s.t.Errorf("a full pool took %d more objects, beside %d", more, before)
	}
	s.sound()
}

// sound wants all that is stored to be there, and nothing else.
func (s *fullScene) sound() {
	s.t.Helper()
	keys := slices.Sorted(maps.Keys(s.want))
	var listed []string
	for r := (store.ListRequest{Bucket: "b", MaxEntries: 1000}); ; {
		page, err := s.e.List(context.Background(), r)
		if err != nil {
			s.t.Fatalf("List = %v; want nil", err)
		}
		for _, o := range page.Objects {
			listed = append(listed, o.Key)
		}
		if r.After = page.Next; !page.Truncated {
			break
		}
	}
	if !slices.Equal(listed, keys) {
		s.t.Errorf("%d keys are listed; want %d", len(listed), len(keys))
	}
	for i, key := range keys {
		if i%max(1, len(keys)/50) == 0 {
			wantBytes(s.t, s.e, "b", key, s.want[key])
		}
	}
	checkPool(s.t, s.e)
	if n := s.e.Map().CountIn(); n != len(s.b.drives) || s.refused.Load() > 0 {
		s.t.Fatalf("%d drives are in, and %d writes found no space; want %d and 0", n, s.refused.Load(), len(s.b.drives))
	}
}

// restart ends the engine, as by kill -9 with dark, and opens it again.
func (s *fullScene) restart(dark bool) {
	s.t.Helper()
	if dark {
		rng := rand.New(rand.NewPCG(rand.Uint64(), 0))
		for _, d := range s.b.drives { // what the engine that ends does now is lost
			d.mem = d.mem.CrashClone(rng, 50)
			d.fs = d.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: rng})
		}
	}
	closeEngine(s.t, s.e)
	s.e = s.b.open()
}

// delete deletes one object in n.
func (s *fullScene) delete(n int) {
	s.t.Helper()
	for i, key := range slices.Sorted(maps.Keys(s.want)) {
		if i%n == 0 {
			if err := s.e.Delete(context.Background(), store.DeleteRequest{Bucket: "b", Key: key}); err != nil {
				s.t.Fatalf("Delete(%q) in a full pool = %v; want nil", key, err)
			}
			delete(s.want, key)
		}
	}
}

// goesOn waits until there is space again.
func (s *fullScene) goesOn(sizeBytes int) {
	s.t.Helper()
	key, body := s.next(sizeBytes)
	waitFor(s.t, "space", func() bool {
		_, err := put(s.e, "b", key, body)
		if err != nil && !errors.Is(err, store.ErrFull) {
			s.t.Fatalf("Put(%q) = %v; want nil or ErrFull", key, err)
		}
		return err == nil
	})
	s.want[key] = body
}

// upload begins an upload with parts.
func (s *fullScene) upload(parts, sizeBytes int) (id string) {
	s.t.Helper()
	u, err := s.e.CreateUpload(context.Background(), store.Upload{Bucket: "b", Key: "u"})
	if err != nil {
		s.t.Fatal(err)
	}
	for number := 1; number <= parts; number++ {
		_, err := s.e.PutPart(context.Background(), store.PartRequest{Bucket: "b", Key: "u", UploadID: u.ID, Number: number,
			SizeBytes: int64(sizeBytes), Body: bytes.NewReader(noise(uint64(number), sizeBytes))})
		if err != nil {
			s.t.Fatal(err)
		}
	}
	return u.ID
}

func (s *fullScene) abort(id string) {
	s.t.Helper()
	if err := s.e.AbortUpload(context.Background(), "b", "u", id); err != nil {
		s.t.Errorf("AbortUpload in a full pool = %v; want nil", err)
	}
}

// TestFullData fills the data areas.
func TestFullData(t *testing.T) {
	const size = 1 << 20
	s := newFullScene(t, 3, 20<<20, 1<<20, 1<<30)
	id := s.upload(3, size)
	s.fill(size)
	s.check(size)
	s.restart(false)
	s.check(size)
	s.restart(true)
	s.check(size)
	mustPut(t, s.e, "b", "small", noise(1, 100)) // this has its place elsewhere
	s.want["small"] = noise(1, 100)
	s.abort(id)
	s.goesOn(size)
	s.fill(size)
	s.delete(2)
	s.goesOn(size)
	s.sound()
	s.fill(size)
	s.check(size)
	s.delete(1)
	waitFor(t, "all space", func() bool { return s.e.Store(0).Stats().Shards == 0 })
	s.goesOn(size)
	s.sound()
	closeEngine(t, s.e)
}

// TestFullMetadata fills the metadata file systems, with bodies so small that they are there.
func TestFullMetadata(t *testing.T) {
	if testing.Short() {
		t.Skip("needs thousands of objects")
	}
	const size = 4 << 10
	s := newFullScene(t, 3, 32<<20, 4<<20, 12<<20)
	id := s.upload(3, size)
	s.fill(size)
	first := len(s.want)
	s.check(size)
	s.restart(false)
	s.check(size)
	s.restart(true)
	s.check(size)
	s.abort(id)
	s.delete(2)
	s.goesOn(size)
	s.sound()
	s.fill(size)
	t.Logf("%d objects, %d later", first, len(s.want))
	s.delete(1)
	s.goesOn(size)
	s.sound()
	closeEngine(t, s.e)
}

// TestFullOfYoungBodies deletes before any file of bodies is old enough to be rewritten: that must be thought of later,
// though nothing is written any more.
func TestFullOfYoungBodies(t *testing.T) {
	if testing.Short() {
		t.Skip("needs thousands of objects")
	}
	s := newFullScene(t, 3, 32<<20, 4<<20, 12<<20)
	s.fill(4 << 10)
	s.delete(2)
	s.goesOn(4 << 10)
	s.sound()
	closeEngine(t, s.e)
}

// TestOneFullDrive: one drive has less space for metadata than the others. It is not made to take what they took out of its
// reserve until that is used up, and objects that don't need it are stored.
func TestOneFullDrive(t *testing.T) {
	if testing.Short() {
		t.Skip("needs thousands of objects")
	}
	s := newFullScene(t, 5, 64<<20, 4<<20, 12<<20, 1<<30)
	const small, large = 4 << 10, 100 << 10
	taken := map[int]int{}
	refused := map[int]int{}
	for refused[small] < 2000 {
		size := small
		if refused[small] > 0 && s.made%20 == 0 {
			size = large
		}
		key, body := s.next(size)
		switch _, err := put(s.e, "b", key, body); {
		case err == nil:
			s.want[key] = body
			if refused[small] > 0 {
				taken[size]++
			}
		case errors.Is(err, store.ErrFull):
			refused[size]++
		default:
			t.Fatalf("Put(%q) = %v; want nil or ErrFull", key, err)
		}
	}
	t.Logf("%d objects; since one drive is full: taken %v, refused %v", len(s.want), taken, refused)
	if taken[small] == 0 || taken[large] == 0 || taken[large] < refused[large]/2 {
		t.Errorf("taken %v, refused %v; want objects to be stored that the full drive has no part in", taken, refused)
	}
	s.sound()
	s.restart(true)
	s.sound()
	closeEngine(t, s.e)
}
