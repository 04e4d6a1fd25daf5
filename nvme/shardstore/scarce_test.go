package shardstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// smallFS is a file system of a fixed size.
type smallFS struct {
	vfs.FS
	sizeBytes atomic.Int64
	refused   atomic.Int64 // writes for which there was no space
}

func (s *smallFS) usedBytes() (n int64) {
	names, err := s.FS.List("meta")
	if err != nil {
		return 0
	}
	for _, name := range names {
		if info, err := s.FS.Stat("meta/" + name); err == nil {
			n += info.Size()
		}
	}
	return n
}

// GetDiskUsage implements vfs.FS.
func (s *smallFS) GetDiskUsage(string) (vfs.DiskUsage, error) {
	used := s.usedBytes()
	return vfs.DiskUsage{AvailBytes: uint64(max(s.sizeBytes.Load()-used, 0)), TotalBytes: uint64(s.sizeBytes.Load()),
		UsedBytes: uint64(used)}, nil
}

// scarceDrive is a drive with little space for metadata: 12 MiB, of which 4 are the reserve.
func scarceDrive(t *testing.T) (*testDrive, *smallFS) {
	d := newTestDrive(t, 64<<20)
	small := &smallFS{FS: d.fs}
	small.sizeBytes.Store(12 << 20)
	d.fs = sizedFS{errorfs.Wrap(d.fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileWrite && small.usedBytes() >= small.sizeBytes.Load() {
			small.refused.Add(1)
			return syscall.ENOSPC
		}
		return nil
	})), small}
	d.opts.MetaReserveBytes, d.opts.MemTableBytes = 4<<20, 512<<10
	return d, small
}

// sizedFS is a file system that says how large it is.
type sizedFS struct {
	vfs.FS
	small *smallFS
}

// GetDiskUsage implements vfs.FS.
func (f sizedFS) GetDiskUsage(path string) (vfs.DiskUsage, error) { return f.small.GetDiskUsage(path) }

func noise(rng *rand.Rand, n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(rng.Uint32())
	}
	return p
}

// TestScarceUnderAListing: what compactions have replaced stays while a listing reads it. However many there are, they leave
// the space alone that the log and the tables from memory need, and the drive lives.
func TestScarceUnderAListing(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for compactions")
	}
	for _, sizeBytes := range []int{900, 4000} { // in the tables, and in files of their own
		t.Run(fmt.Sprint(sizeBytes), func(t *testing.T) {
			t.Parallel()
			scarceUnderAListing(t, sizeBytes)
		})
	}
}

func scarceUnderAListing(t *testing.T, sizeBytes int) {
	d, small := scarceDrive(t)
	s := d.open(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	key := func(i int) []byte { return fmt.Appendf(nil, "key%06d", i) }
	set := func(i int) error {
		b := s.NewBatch()
		b.Set(key(i), noise(rng, sizeBytes))
		return s.Commit(context.Background(), b, i%16 == 0)
	}
	n := 0
	for ; n < 100_000; n++ {
		err := set(n)
		if errors.Is(err, ErrFull) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	listing, err := s.Scan(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	// Deletes go on, and space is made, while all that they replace is being read.
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); {
		i := rng.IntN(n)
		b := s.NewBatch()
		b.Delete(key(i))
		if err := s.Commit(context.Background(), b, true); err != nil {
			t.Fatalf("Delete = %v; want nil", err)
		}
		time.Sleep(time.Millisecond)
		if err := set(i); err != nil && !errors.Is(err, ErrFull) { // which has space made, if it is refused
			t.Fatalf("Set = %v; want nil or ErrFull", err)
		}
	}
	t.Logf("%d records; %d KiB free at the end of the listing", n, s.room.freeBytes.Load()>>10)
	if err := listing.Close(); err != nil {
		t.Errorf("listing: %v", err)
	}
	began := time.Now()
	for i := range n {
		b := s.NewBatch()
		b.Delete(key(i))
		if err := s.Commit(context.Background(), b, i%16 == 0); err != nil {
			t.Fatalf("Delete = %v; want nil", err)
		}
	}
	t.Logf("deletes took %v; %d KiB free", time.Since(began), s.room.freeBytes.Load()>>10)
	began = time.Now()
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		err := set(0)
		if err == nil {
			break
		}
		if !errors.Is(err, ErrFull) || time.Now().After(end) {
			t.Fatalf("Set after the listing, with all deleted = %v; want nil at last", err)
		}
	}
	t.Logf("room after %v; %d KiB free", time.Since(began), s.room.freeBytes.Load()>>10)
	if n := small.refused.Load(); n > 0 || s.Err() != nil {
		t.Errorf("%d writes found no space, Err() = %v; want 0, nil", n, s.Err())
	}
}

// TestHasReserve: the last of the reserve is for what is in memory.
func TestHasReserve(t *testing.T) {
	d := newTestDrive(t, 64<<20)
	small := &smallFS{FS: d.fs}
	small.sizeBytes.Store(1 << 40)
	d.fs = sizedFS{d.fs, small}
	d.opts.MetaReserveBytes = 4 << 20
	s := d.open(t)
	for _, test := range []struct {
		freeBytes     int64
		room, reserve bool
	}{
		{1 << 40, true, true}, {4<<20 + 4096, true, true}, {4<<20 - 4096, false, true}, {1<<20 + 4096, false, true},
		{1<<20 - 4096, false, false}, {8 << 20, true, true},
	} {
		small.sizeBytes.Store(small.usedBytes() + test.freeBytes)
		s.room.ask() // at once
		if room, reserve := s.HasRoom(), s.HasReserve(); room != test.room || reserve != test.reserve {
			t.Errorf("with %d bytes free: HasRoom() = %v, HasReserve() = %v; want %v, %v", test.freeBytes, room, reserve,
				test.room, test.reserve)
		}
	}
}

// waitFlushing waits until ok, and has Pebble look for work meanwhile.
func waitFlushing(t *testing.T, s *Store, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(rewriteAge / 20) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain: %s", what)
		}
		if err := s.db.Flush(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCompactionThatDoesNotFit: no compaction begins that may not find space for what it writes, and the drive lives.
func TestCompactionThatDoesNotFit(t *testing.T) {
	if testing.Short() {
		t.Skip("waits until a file of bodies is old enough")
	}
	d := newTestDrive(t, 64<<20)
	small := &smallFS{FS: d.fs}
	small.sizeBytes.Store(1 << 40)
	d.fs = sizedFS{d.fs, small}
	d.opts.MetaReserveBytes = 4 << 20
	s := d.open(t)
	const records = 1000
	rng := rand.New(rand.NewPCG(1, 2))
	fill := func(sizeBytes int) {
		t.Helper()
		b := s.NewBatch()
		b.UseReserve()
		for i := range records {
			b.Set(fmt.Appendf(nil, "%d/%04d", sizeBytes, i), noise(rng, sizeBytes))
		}
		if err := s.Commit(context.Background(), b, false); err != nil {
			t.Fatal(err)
		}
		if err := s.db.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	fill(500)
	fill(500)
	fill(5000)
	used := small.usedBytes
	wait := func(what string, ok func() bool) {
		t.Helper()
		waitFlushing(t, s, what, ok)
	}
	full := func(what string) {
		t.Helper()
		small.sizeBytes.Store(used())
		wait(what+" to be refused", s.fit.refused.Load)
		small.sizeBytes.Store(1 << 40)
	}
	small.sizeBytes.Store(used())
	fill(400)
	fill(400)
	full("a compaction")
	wait("the compaction", func() bool { return !s.fit.refused.Load() && s.db.Metrics().Levels[0].Sublevels < 2 })
	b := s.NewBatch()
	for i := range records {
		if i%2 == 0 { // some in every file
			b.Delete(fmt.Appendf(nil, "5000/%04d", i))
		}
	}
	if err := s.Commit(context.Background(), b, true); err != nil {
		t.Fatal(err)
	}
	small.sizeBytes.Store(used() + 3*s.room.reserveBytes) // in which bodies are not written anew
	if err := s.db.Compact(context.Background(), []byte{prefixEngine}, []byte{prefixEngine + 1}, false); err != nil {
		t.Fatal(err)
	}
	before := used()
	full("a rewrite")
	wait("the rewrite", func() bool { return used() < before-1<<20 })
	if err := s.Err(); err != nil {
		t.Errorf("Err() = %v; want nil", err)
	}
}
