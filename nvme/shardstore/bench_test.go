package shardstore

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/millrace/millrace/nvme/blockdev"
)

// benchStore opens a drive of real files, in memory if the machine has a tmpfs at /dev/shm: then
// the figures are of this package and the kernel, not of a disk.
func benchStore(b *testing.B) *Store {
	b.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "shardstore")
	if err != nil {
		dir = b.TempDir()
	}
	b.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "data")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		b.Fatal(err)
	}
	if err := os.Truncate(path, 1<<30); err != nil {
		b.Fatal(err)
	}
	dev, err := blockdev.OpenFile(path, blockdev.FileOptions{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { dev.Close() })
	o := Options{Data: dev, MetaFS: vfs.Default, MetaDir: filepath.Join(dir, "meta"), MetaReserveBytes: 1 << 20}
	o.Cache = NewCache(64<<20, 64)
	b.Cleanup(o.Cache.Close)
	if err := Format(context.Background(), o, testLabel()); err != nil {
		b.Fatal(err)
	}
	s, err := Open(context.Background(), o)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { s.Close() })
	return s
}

// benchCommitters runs fn b.N times, spread over n goroutines.
func benchCommitters(b *testing.B, n int, fn func(i uint64) error) {
	b.Helper()
	b.ReportAllocs()
	var next atomic.Uint64
	b.SetParallelism((n + 1) / 2) // of GOMAXPROCS, which is 2 where it matters
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := fn(next.Add(1)); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

func benchKey(buf []byte, i uint64) []byte {
	return binary.BigEndian.AppendUint64(append(buf, "bench key of a usual length "...), i*0x9e3779b97f4a7c15)
}

func BenchmarkCommit(b *testing.B) {
	value := make([]byte, 400)
	for _, committers := range []int{1, 8} {
		b.Run(fmt.Sprintf("store/committers=%d", committers), func(b *testing.B) {
			s := benchStore(b)
			if committers == 1 {
				b.ReportAllocs()
				for i := uint64(0); b.Loop(); i++ {
					if err := benchCommit(s, i, value); err != nil {
						b.Fatal(err)
					}
				}
				return
			}
			benchCommitters(b, committers, func(i uint64) error { return benchCommit(s, i, value) })
		})
		b.Run(fmt.Sprintf("pebble/committers=%d", committers), func(b *testing.B) {
			s := benchStore(b)
			if committers == 1 {
				b.ReportAllocs()
				for i := uint64(0); b.Loop(); i++ {
					if err := s.db.Set(benchKey([]byte{'K'}, i), value, pebble.Sync); err != nil {
						b.Fatal(err)
					}
				}
				return
			}
			benchCommitters(b, committers, func(i uint64) error {
				return s.db.Set(benchKey([]byte{'K'}, i), value, pebble.Sync)
			})
		})
	}
}

func benchCommit(s *Store, i uint64, value []byte) error {
	var key [64]byte
	batch := s.NewBatch()
	batch.Set(benchKey(key[:0], i), value)
	return s.Commit(context.Background(), batch, true)
}

func BenchmarkGet(b *testing.B) {
	s := benchStore(b)
	const records = 20000
	for i := uint64(0); i < records; i += 100 {
		batch := s.NewBatch()
		for j := range uint64(100) {
			batch.Set(benchKey(nil, i+j), make([]byte, 400))
		}
		if err := s.Commit(context.Background(), batch, false); err != nil {
			b.Fatal(err)
		}
	}
	if err := s.db.Flush(); err != nil {
		b.Fatal(err)
	}
	var key [64]byte
	var dst []byte
	b.ReportAllocs()
	for i := uint64(0); b.Loop(); i++ {
		var err error
		if dst, err = s.Get(benchKey(key[:0], i*7919%records), dst[:0]); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkReadShard(b *testing.B) {
	for _, cached := range []bool{true, false} {
		for _, n := range []int{4 << 10, 64 << 10, 1 << 20} {
			b.Run(fmt.Sprintf("cached=%v/%d", cached, n), func(b *testing.B) {
				s := benchStore(b)
				if !cached {
					s.records = newRecordCache(-1)
				}
				const shards = 100
				for i := range shards {
					putShard(b, s, ShardID{SegmentID{1, byte(i)}, 0}, shardBytes(int64(n), 1))
				}
				buf := [][]byte{blockdev.AlignedBuffer(n)}
				b.SetBytes(int64(n))
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					if err := s.ReadShard(ShardID{SegmentID{1, byte(i % shards)}, 0}, 0, buf); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkPutShard replaces shards over and over: reserve, write, commit, free the old.
func BenchmarkPutShard(b *testing.B) {
	for _, n := range []int64{4 << 10, 64 << 10, 1 << 20} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := benchStore(b)
			data := shardBytes(n, 1)
			b.SetBytes(n)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if err := tryPut(s, ShardID{SegmentID{1, byte(i)}, byte(i >> 8)}, data, true); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkOpen rebuilds the free map of a drive with many shards.
func BenchmarkOpen(b *testing.B) {
	const shards = 100_000
	d := newTestDrive(b, 1<<40)
	s := d.open(b)
	for i := uint64(0); i < shards; i++ {
		id := ShardID{Index: byte(i)}
		binary.BigEndian.PutUint64(id.Segment[:], (i+1)*0x9e3779b97f4a7c15)
		key := appendShardKey(nil, id)
		rec := &shardRecord{sizeBytes: 1 << 20, crcs: make([]uint64, 16), extents: s.space.alloc(1 << 20)}
		if err := s.db.Set(key, appendShardRecord(nil, key, rec), pebble.NoSync); err != nil {
			b.Fatal(err)
		}
	}
	if err := s.db.Flush(); err != nil {
		b.Fatal(err)
	}
	s.Close()
	for b.Loop() {
		s, err := Open(context.Background(), d.options())
		if err != nil {
			b.Fatal(err)
		}
		s.Close()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/shards, "ns/shard")
}
