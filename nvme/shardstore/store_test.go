package shardstore

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/millrace/millrace/nvme/blockdev"
)

// testDrive is a drive in memory that tests can open again and again.
type testDrive struct {
	dev  blockdev.Device
	fs   vfs.FS
	opts Options
}

func newTestDrive(t testing.TB, sizeBytes int64) *testDrive {
	t.Helper()
	d := &testDrive{dev: blockdev.NewMem(sizeBytes), fs: vfs.NewMem()}
	if err := Format(context.Background(), d.options(), testLabel()); err != nil {
		t.Fatal(err)
	}
	return d
}

func testLabel() Label { return Label{Drive: DriveID{1, 2}, Pool: PoolID{3}, Slot: 4} }

func (d *testDrive) options() Options {
	o := d.opts
	o.Data, o.MetaFS, o.MetaDir = d.dev, d.fs, "meta"
	return o
}

func (d *testDrive) open(t testing.TB) *Store {
	t.Helper()
	s, err := Open(context.Background(), d.options())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// shardBytes are the bytes of a test shard: the ID and a seed say what they are.
func shardBytes(n int64, seed uint64) []byte {
	b := blockdev.AlignedBuffer(int(n))
	rng := rand.New(rand.NewPCG(seed, 1))
	for i := 0; i < len(b); i += 512 {
		b[i] = byte(rng.Uint32())
		b[i+1] = byte(rng.Uint32())
	}
	return b
}

func putShard(t testing.TB, s *Store, id ShardID, data []byte) {
	t.Helper()
	if err := tryPut(s, id, data, true); err != nil {
		t.Fatal(err)
	}
}

// writeAt is WriteAt with the checksums that the bytes have.
func writeAt(w *ShardWriter, bufs [][]byte, off int64) error {
	var crcs []uint64
	eachBlock(bufs, func(_ int, crc uint64) { crcs = append(crcs, crc) })
	return w.WriteAt(bufs, off, crcs)
}

func tryPut(s *Store, id ShardID, data []byte, sync bool) error {
	w, err := s.NewShard(context.Background(), id, int64(len(data)))
	if err != nil {
		return err
	}
	defer w.Abort()
	if err := writeAt(w, [][]byte{data}, 0); err != nil {
		return err
	}
	b := s.NewBatch()
	b.PutShard(w)
	return s.Commit(context.Background(), b, sync)
}

func tryDelete(s *Store, id ShardID, sync bool) error {
	b := s.NewBatch()
	b.DeleteShard(id)
	return s.Commit(context.Background(), b, sync)
}

func readShard(s *Store, id ShardID, off int64, n int) ([]byte, error) {
	b := blockdev.AlignedBuffer(n)
	return b, s.ReadShard(id, off, [][]byte{b})
}

func TestShardRoundTrip(t *testing.T) {
	d := newTestDrive(t, 64<<20)
	s := d.open(t)
	free := s.Stats().FreeBytes
	id := ShardID{SegmentID{9}, 3}
	data := shardBytes(3*BlockBytes+8192, 1)
	putShard(t, s, id, data)
	for range 2 {
		got, err := readShard(s, id, 0, len(data))
		if err != nil || !bytes.Equal(got, data) {
			t.Fatalf("ReadShard = %v, equal %v; want the bytes written", err, bytes.Equal(got, data))
		}
		got, err = readShard(s, id, 2*BlockBytes, BlockBytes)
		if err != nil || !bytes.Equal(got, data[2*BlockBytes:3*BlockBytes]) {
			t.Fatalf("ReadShard of block 2 = %v; want its bytes", err)
		}
		s.Close()
		s = d.open(t)
	}
	if err := tryDelete(s, id, true); err != nil {
		t.Fatal(err)
	}
	if _, err := readShard(s, id, 0, BlockBytes); !errors.Is(err, ErrNotFound) {
		t.Errorf("ReadShard of a deleted shard = %v; want ErrNotFound", err)
	}
	if got := s.Stats().FreeBytes; got != free {
		t.Errorf("free bytes = %d; want %d", got, free)
	}
}

func TestRecords(t *testing.T) {
	s := newTestDrive(t, 16<<20).open(t)
	b := s.NewBatch()
	for _, k := range []string{"a", "b", "c", "d", ""} {
		b.Set([]byte(k), []byte("value of "+k))
	}
	if err := s.Commit(context.Background(), b, true); err != nil {
		t.Fatal(err)
	}
	got, err := s.Get([]byte("b"), []byte("x"))
	if string(got) != "xvalue of b" || err != nil {
		t.Errorf("Get(b) = %q, %v; want it appended", got, err)
	}
	if _, err := s.Get([]byte("e"), nil); !errors.Is(err, ErrNotFound) {
		t.Errorf("Get(e) = %v; want ErrNotFound", err)
	}
	for _, test := range []struct{ lo, hi, want string }{
		{"", "", ",a,b,c,d"}, {"b", "d", "b,c"}, {"b", "", "b,c,d"}, {"d", "b", ""}, {"b", "b", ""},
	} {
		if got := scanKeys(t, s, test.lo, test.hi); got != test.want {
			t.Errorf("Scan(%q, %q) = %q; want %q", test.lo, test.hi, got, test.want)
		}
	}
	b = s.NewBatch()
	b.DeleteRange([]byte("b"), nil)
	b.Set([]byte("z"), nil)
	b.Delete(nil)
	if err := s.Commit(context.Background(), b, false); err != nil {
		t.Fatal(err)
	}
	if got := scanKeys(t, s, "", ""); got != "a,z" {
		t.Errorf("after DeleteRange: keys %q; want a,z", got)
	}
}

// scanKeys lists keys; an empty hi means no bound.
func scanKeys(t testing.TB, s *Store, lo, hi string) string {
	t.Helper()
	var upper []byte
	if hi != "" {
		upper = []byte(hi)
	}
	it, err := s.Scan([]byte(lo), upper)
	if err != nil {
		t.Fatal(err)
	}
	var keys [][]byte
	for ok := it.First(); ok; ok = it.Next() {
		keys = append(keys, bytes.Clone(it.Key()))
	}
	if err := it.Close(); err != nil {
		t.Fatal(err)
	}
	return string(bytes.Join(keys, []byte(",")))
}

func newTestFS() vfs.FS { return vfs.NewMem() }
