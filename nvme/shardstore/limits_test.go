package shardstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/millrace/millrace/nvme/blockdev"
)

// roomFS tells of as much free space as a test wants.
type roomFS struct {
	vfs.FS
	avail atomic.Uint64
}

func (fs *roomFS) GetDiskUsage(string) (vfs.DiskUsage, error) {
	return vfs.DiskUsage{AvailBytes: fs.avail.Load(), TotalBytes: 1 << 30}, nil
}

// TestMetadataFull: with its metadata file system short of space a drive opens, reads and
// deletes, and takes nothing new until there is room again.
func TestMetadataFull(t *testing.T) {
	ctx := context.Background()
	room := &roomFS{FS: newTestFS()}
	room.avail.Store(1 << 30)
	d := &testDrive{dev: blockdev.NewMem(64 << 20), fs: room}
	if err := Format(ctx, d.options(), testLabel()); err != nil {
		t.Fatal(err)
	}
	s := d.open(t)
	kept, gone := ShardID{SegmentID{1}, 0}, ShardID{SegmentID{2}, 0}
	putShard(t, s, kept, shardBytes(BlockBytes, 1))
	putShard(t, s, gone, shardBytes(BlockBytes, 2))
	set := func() error {
		b := s.NewBatch()
		b.Set([]byte("key"), make([]byte, 1<<20)) // so much that the file system is asked
		return s.Commit(ctx, b, true)
	}
	if err := set(); err != nil {
		t.Fatal(err)
	}
	room.avail.Store(minMetaReserveBytes - 1)
	if err := set(); !errors.Is(err, ErrFull) {
		t.Errorf("Set with the metadata full = %v; want ErrFull", err)
	}
	s.Close()
	s = d.open(t)
	reserved := s.Stats().FreeBytes
	if err := tryPut(s, ShardID{SegmentID{3}, 0}, shardBytes(BlockBytes, 3), true); !errors.Is(err, ErrFull) {
		t.Errorf("PutShard with the metadata full = %v; want ErrFull", err)
	}
	if got := s.Stats(); got.FreeBytes != reserved || got.MetaFreeBytes != minMetaReserveBytes-1 {
		t.Errorf("Stats after a refused put = %+v; want its space free again", got)
	}
	b := s.NewBatch()
	b.DeleteShard(gone)
	b.Delete([]byte("key"))
	if err := s.Commit(ctx, b, true); err != nil {
		t.Errorf("deletes with the metadata full = %v; want nil", err)
	}
	if _, err := readShard(s, kept, 0, BlockBytes); err != nil {
		t.Errorf("ReadShard with the metadata full = %v; want nil", err)
	}
	room.avail.Store(1 << 30)
	if err := set(); err != nil {
		t.Errorf("Set with room again = %v; want nil", err)
	}
}

// TestDataFull fills the data area to the last unit, and frees it by commits without sync.
func TestDataFull(t *testing.T) {
	s := newTestDrive(t, minDataBytes).open(t)
	const size = 256 << 10
	n := 0
	for ; ; n++ {
		err := tryPut(s, ShardID{SegmentID{1}, uint8(n)}, shardBytes(size, 1), true)
		if errors.Is(err, ErrFull) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if free := s.Stats().FreeBytes; free != 0 || n != (minDataBytes-2*reservedBytes)/size {
		t.Errorf("full with %d shards and %d bytes free", n, free)
	}
	if err := tryDelete(s, ShardID{SegmentID{1}, 3}, false); err != nil {
		t.Fatal(err)
	}
	if st := s.Stats(); st.FreeBytes != 0 || st.PendingBytes != size {
		t.Errorf("after a delete without sync: %+v; want its space pending", st)
	}
	if err := tryPut(s, ShardID{SegmentID{9}, 0}, shardBytes(size, 1), true); err != nil {
		t.Errorf("put into pending space = %v; want nil", err)
	}
}

// TestMisuse: what callers do wrong with shards is refused, and hurts nobody.
func TestMisuse(t *testing.T) {
	ctx := context.Background()
	s := newTestDrive(t, 64<<20).open(t)
	other := newTestDrive(t, 64<<20).open(t)
	id := ShardID{SegmentID{1}, 0}
	free := s.Stats().FreeBytes
	for size, want := range map[int64]error{0: ErrInvalid, -4096: ErrInvalid, 5000: ErrInvalid,
		MaxShardBytes + AllocUnitBytes: ErrTooLarge, MaxShardBytes: ErrFull} {
		if _, err := s.NewShard(ctx, id, size); !errors.Is(err, want) {
			t.Errorf("NewShard of %d bytes = %v; want %v", size, err, want)
		}
	}
	w, err := s.NewShard(ctx, id, 2*BlockBytes+AllocUnitBytes)
	if err != nil {
		t.Fatal(err)
	}
	buf := blockdev.AlignedBuffer(4 * BlockBytes)
	for _, test := range []struct{ off, n int }{
		{AllocUnitBytes, BlockBytes}, {0, AllocUnitBytes}, {0, 3 * BlockBytes}, {-BlockBytes, BlockBytes},
		{2 * BlockBytes, 2 * AllocUnitBytes}, {4 * BlockBytes, BlockBytes},
	} {
		if err := writeAt(w, [][]byte{buf[:test.n]}, int64(test.off)); !errors.Is(err, ErrInvalid) {
			t.Errorf("WriteAt of %d at %d = %v; want ErrInvalid", test.n, test.off, err)
		}
	}
	for _, n := range []int{0, 1, 3} {
		if err := w.WriteAt([][]byte{buf[:2*BlockBytes]}, 0, make([]uint64, n)); !errors.Is(err, ErrInvalid) {
			t.Errorf("WriteAt of two blocks with %d checksums = %v; want ErrInvalid", n, err)
		}
	}
	if err := writeAt(w, [][]byte{buf[:2*BlockBytes]}, 0); err != nil {
		t.Fatal(err)
	}
	if err := writeAt(w, [][]byte{buf[:BlockBytes]}, BlockBytes); !errors.Is(err, ErrInvalid) {
		t.Errorf("second WriteAt of a block = %v; want ErrInvalid", err)
	}
	commit := func(st *Store) error {
		b := st.NewBatch()
		b.PutShard(w)
		return st.Commit(ctx, b, true)
	}
	if err := commit(s); !errors.Is(err, ErrInvalid) {
		t.Errorf("Commit of a shard with a block missing = %v; want ErrInvalid", err)
	}
	if err := writeAt(w, [][]byte{buf[:AllocUnitBytes]}, 2*BlockBytes); err != nil {
		t.Fatal(err)
	}
	if err := commit(other); !errors.Is(err, ErrInvalid) {
		t.Errorf("Commit to another store = %v; want ErrInvalid", err)
	}
	if err := commit(s); err != nil {
		t.Errorf("Commit = %v; want nil", err)
	}
	w.Abort()
	if err := commit(s); !errors.Is(err, ErrInvalid) {
		t.Errorf("second Commit = %v; want ErrInvalid", err)
	}
	if err := tryDelete(s, id, true); err != nil || s.Stats().FreeBytes != free {
		t.Errorf("delete = %v, %d bytes free; want %d", err, s.Stats().FreeBytes, free)
	}
	if err := s.Err(); err != nil {
		t.Errorf("after misuse Err() = %v; want nil", err)
	}
}

// TestTooLarge: what is over a limit is refused by Commit, which leaves the drive as it was.
func TestTooLarge(t *testing.T) {
	s := newTestDrive(t, 16<<20).open(t)
	for name, fill := range map[string]func(*Batch){
		"long key":   func(b *Batch) { b.Set(make([]byte, MaxKeyBytes+1), nil) },
		"long value": func(b *Batch) { b.Set(nil, make([]byte, MaxValueBytes+1)) },
		"long batch": func(b *Batch) {
			for i := range 20 {
				b.Set([]byte{byte(i)}, make([]byte, MaxValueBytes))
			}
		},
		"many shards": func(b *Batch) {
			for range maxBatchShards + 1 {
				b.DeleteShard(ShardID{SegmentID{1}, 0})
			}
		},
	} {
		b := s.NewBatch()
		fill(b)
		if err := s.Commit(context.Background(), b, true); !errors.Is(err, ErrTooLarge) {
			t.Errorf("Commit with a %s = %v; want ErrTooLarge", name, err)
		}
	}
	if err := s.Err(); err != nil {
		t.Errorf("after misuse Err() = %v; want nil", err)
	}
}

// TestClosed: a closed store refuses work, and an open iterator keeps it from closing.
func TestClosed(t *testing.T) {
	ctx := context.Background()
	s := newTestDrive(t, 16<<20).open(t)
	it, err := s.Scan(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	early, closed := s.NewBatch(), make(chan error)
	early.Set([]byte("k"), nil)
	go func() { closed <- s.Close() }()
	for s.gate.n.Load() >= 0 {
		time.Sleep(time.Millisecond)
	}
	it.First()
	if err := it.Close(); err != nil {
		t.Errorf("iterator Close = %v; want nil", err)
	}
	if err := <-closed; err != nil {
		t.Errorf("Close = %v; want nil", err)
	}
	b := s.NewBatch()
	b.Set([]byte("k"), nil)
	_, getErr := s.Get([]byte("k"), nil)
	_, scanErr := s.Scan(nil, nil)
	_, newErr := s.NewShard(ctx, ShardID{SegmentID{1}, 0}, 4096)
	_, readErr := readShard(s, ShardID{SegmentID{1}, 0}, 0, 4096)
	_, verifyErr := s.Verify(ctx, true)
	for i, err := range []error{s.Commit(ctx, b, true), s.Commit(ctx, early, true), getErr, scanErr, newErr,
		readErr, verifyErr, s.Shards(ShardID{}, nil)} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("operation %d on a closed store = %v; want ErrClosed", i, err)
		}
	}
	if err := s.Close(); err != nil {
		t.Errorf("second Close = %v; want nil", err)
	}
}

// TestChecksums: bytes that change on the device are never returned, and the blocks are named.
func TestChecksums(t *testing.T) {
	d := newTestDrive(t, 64<<20)
	fault := blockdev.NewFault(d.dev)
	d.dev = fault
	s := d.open(t)
	id := ShardID{SegmentID{1}, 0}
	putShard(t, s, id, shardBytes(5*BlockBytes, 1))
	info, err := s.ShardInfo(id)
	if err != nil {
		t.Fatal(err)
	}
	at := info.Extents[0].OffsetBytes
	fault.Add(blockdev.Rule{Kind: blockdev.ReadOp, FlipAt: []int64{at + BlockBytes + 5, at + 4*BlockBytes - 1}})
	_, err = readShard(s, id, 0, 5*BlockBytes)
	var bad *ChecksumError
	if !errors.As(err, &bad) || !errors.Is(err, ErrCorrupt) || !slices.Equal(bad.Blocks, []int{1, 3}) {
		t.Errorf("ReadShard with two bits flipped = %v; want blocks 1 and 3", err)
	}
	if n := s.Stats().ChecksumErrors; n != 2 {
		t.Errorf("checksum errors = %d; want 2", n)
	}
	if _, err := readShard(s, id, 2*BlockBytes, BlockBytes); err != nil {
		t.Errorf("ReadShard of a good block = %v; want nil", err)
	}
	report, err := s.Verify(context.Background(), true)
	if err != nil || len(report.Problems) != 1 || !errors.Is(report.Problems[0], ErrCorrupt) {
		t.Errorf("deep Verify = %+v, %v; want the shard named", report, err)
	}
	if s.Err() != nil {
		t.Errorf("a bad block killed the drive")
	}
}

// TestBytesThatChangeBeforeTheyAreWritten: what the checksum was not taken of is never returned.
func TestBytesThatChangeBeforeTheyAreWritten(t *testing.T) {
	s := newTestDrive(t, 64<<20).open(t)
	id := ShardID{SegmentID{1}, 0}
	w, err := s.NewShard(context.Background(), id, 2*BlockBytes)
	if err != nil {
		t.Fatal(err)
	}
	data := shardBytes(2*BlockBytes, 1)
	var crcs []uint64
	eachBlock([][]byte{data}, func(_ int, crc uint64) { crcs = append(crcs, crc) })
	data[BlockBytes+7] ^= 1
	if err := w.WriteAt([][]byte{data}, 0, crcs); err != nil {
		t.Fatal(err)
	}
	b := s.NewBatch()
	b.PutShard(w)
	if err := s.Commit(context.Background(), b, true); err != nil {
		t.Fatal(err)
	}
	_, err = readShard(s, id, 0, 2*BlockBytes)
	var bad *ChecksumError
	if !errors.As(err, &bad) || !slices.Equal(bad.Blocks, []int{1}) {
		t.Errorf("ReadShard of bytes that changed = %v; want block 1", err)
	}
}

// TestHang: an operation that the drive does not answer can be seen in Stats.
func TestHang(t *testing.T) {
	d := newTestDrive(t, 64<<20)
	fault := blockdev.NewFault(d.dev)
	d.dev = fault
	s := d.open(t)
	id := ShardID{SegmentID{1}, 0}
	putShard(t, s, id, shardBytes(BlockBytes, 1))
	if age := s.Stats().OldestOp; age != 0 {
		t.Errorf("OldestOp at rest = %v; want 0", age)
	}
	hold, done := make(chan struct{}), make(chan error)
	fault.Add(blockdev.Rule{Kind: blockdev.ReadOp, Hold: hold})
	go func() {
		_, err := readShard(s, id, 0, BlockBytes)
		done <- err
	}()
	for s.Stats().OldestOp < 5*time.Millisecond {
		time.Sleep(time.Millisecond)
	}
	close(hold)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if age := s.Stats().OldestOp; age != 0 {
		t.Errorf("OldestOp after all = %v; want 0", age)
	}
}

// TestDamagedMetadata damages each file in several ways. Opening, and reading all, gives an error
// or works; the process lives.
func TestDamagedMetadata(t *testing.T) {
	base := newTestDrive(t, 64<<20)
	s := base.open(t)
	for i := range 50 {
		putShard(t, s, ShardID{SegmentID{1}, uint8(i)}, shardBytes(AllocUnitBytes, 1))
		if i == 25 {
			if err := s.db.Flush(); err != nil {
				t.Fatal(err)
			}
		}
	}
	s.Close()
	names, err := base.fs.List("meta")
	if err != nil {
		t.Fatal(err)
	}
	opened, failed := 0, 0
	for _, name := range names {
		for _, damage := range []string{"remove", "empty", "half", "flip"} {
			d := &testDrive{dev: base.dev, fs: newTestFS()}
			if _, err := vfs.Clone(base.fs, d.fs, "meta", "meta"); err != nil {
				t.Fatal(err)
			}
			if err := damageFile(d.fs, "meta/"+name, damage); err != nil {
				t.Fatal(fmt.Errorf("%s of %s: %w", damage, name, err))
			}
			s, err := Open(context.Background(), d.options())
			if err == nil {
				_, err = s.Verify(context.Background(), false)
				s.Close()
			}
			if err == nil {
				opened++
				continue
			}
			failed++
			if strings.HasSuffix(name, ".sst") && damage == "flip" && !errors.Is(err, ErrCorrupt) {
				t.Errorf("Open with a flipped bit in %s = %v; want ErrCorrupt", name, err)
			}
		}
	}
	if opened == 0 || failed == 0 {
		t.Errorf("%d opened, %d failed; want some of both", opened, failed)
	}
}

func damageFile(fs vfs.FS, name, damage string) error {
	f, err := fs.Open(name)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	b := make([]byte, info.Size())
	if len(b) > 0 {
		if _, err := f.ReadAt(b, 0); err != nil {
			return err
		}
	}
	f.Close()
	switch damage {
	case "remove":
		return fs.Remove(name)
	case "empty":
		b = nil
	case "half":
		b = b[:len(b)/2]
	case "flip":
		if len(b) > 0 {
			b[len(b)/3] ^= 0x40
		}
	}
	out, err := fs.Create(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	if _, err := out.Write(b); err != nil {
		return err
	}
	return out.Close()
}
