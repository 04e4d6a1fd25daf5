package object_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/klauspost/reedsolomon"

	"github.com/millrace/millrace/appliance/arena"
	"github.com/millrace/millrace/appliance/erasure"
	"github.com/millrace/millrace/appliance/object"
	"github.com/millrace/millrace/nvme/blockdev"
	"github.com/millrace/millrace/nvme/shardstore"
)

// cpuSeconds is what the process has used.
func cpuSeconds() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}

func reportGiB(b *testing.B, bytes int64, wall time.Duration, cpu float64) {
	gib := float64(bytes) / (1 << 30)
	b.ReportMetric(gib/wall.Seconds(), "GiB/s")
	b.ReportMetric(cpu/gib, "cpu-s/GiB")
	b.ReportMetric(0, "ns/op")
}

const benchObject = 16 << 20

// fillBench stores n objects of 16 MiB.
func fillBench(b *testing.B, e *object.Engine, n int) {
	b.Helper()
	mustBucket(b, e, "b")
	body := noise(1, benchObject)
	for i := range n {
		mustPut(b, e, "b", fmt.Sprintf("k%d", i), body)
	}
}

// loseSlot deletes all shards of a slot.
func loseSlot(b *testing.B, e *object.Engine, slot int) {
	b.Helper()
	var ids []shardstore.ShardID
	if err := e.Store(slot).Shards(shardstore.ShardID{}, func(id shardstore.ShardID, _ shardstore.ShardInfo) error {
		ids = append(ids, id)
		return nil
	}); err != nil {
		b.Fatal(err)
	}
	batch := e.Store(slot).NewBatch()
	for _, id := range ids {
		batch.DeleteShard(id)
	}
	if err := e.Store(slot).Commit(context.Background(), batch, true); err != nil {
		b.Fatal(err)
	}
}

// fileDrives are drives whose data is in files, read and written past the page cache; metadata is in memory.
type fileDrives struct {
	b      *testing.B
	paths  []string
	metas  []*vfs.MemFS
	arena  *arena.Arena
	closes []func() error
}

func newFileDrives(b *testing.B, scheme erasure.Scheme, n int, sizeBytes int64) *fileDrives {
	b.Helper()
	a, err := arena.New(arena.Config{SizeBytes: 96 << 20})
	if err != nil {
		b.Fatal(err)
	}
	f := &fileDrives{b: b, arena: a}
	dir, pool := b.TempDir(), shardstore.NewPoolID()
	for slot := range n {
		f.paths, f.metas = append(f.paths, filepath.Join(dir, fmt.Sprint(slot))), append(f.metas, vfs.NewMem())
		if err := errors.Join(os.WriteFile(f.paths[slot], nil, 0o600), os.Truncate(f.paths[slot], sizeBytes)); err != nil {
			b.Fatal(err)
		}
	}
	f.each(func(slot int, o shardstore.Options) *shardstore.Store {
		label := shardstore.Label{Drive: shardstore.NewDriveID(), Pool: pool, Slot: slot}
		if err := shardstore.Format(context.Background(), o, label); err != nil {
			b.Fatal(err)
		}
		return nil
	})
	stores := f.stores()
	if err := object.Create(context.Background(), stores, scheme); err != nil {
		b.Fatal(err)
	}
	for _, s := range stores {
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	}
	f.close()
	return f
}

// each opens the devices and calls open with each.
func (f *fileDrives) each(open func(int, shardstore.Options) *shardstore.Store) (stores []*shardstore.Store) {
	f.close()
	for slot, path := range f.paths {
		dev, err := blockdev.OpenFile(path, blockdev.FileOptions{})
		if err != nil {
			f.b.Fatal(err)
		}
		f.closes = append(f.closes, dev.Close)
		stores = append(stores, open(slot, shardstore.Options{Data: dev, MetaFS: f.metas[slot], MetaDir: "meta", MetaReserveBytes: -1}))
	}
	return stores
}

func (f *fileDrives) stores() []*shardstore.Store {
	return f.each(func(_ int, o shardstore.Options) *shardstore.Store {
		s, err := shardstore.Open(context.Background(), o)
		if err != nil {
			f.b.Fatal(err)
		}
		return s
	})
}

func (f *fileDrives) close() {
	for _, c := range f.closes {
		if err := c(); err != nil {
			f.b.Fatal(err)
		}
	}
	f.closes = nil
}

func (f *fileDrives) open() *object.Engine {
	f.b.Helper()
	cfg := object.Config{Arena: f.arena}
	for _, s := range f.stores() {
		cfg.Members = append(cfg.Members, object.Member{Store: s})
	}
	e, err := object.Open(context.Background(), cfg)
	if err != nil {
		f.b.Fatal(err)
	}
	return e
}

// BenchmarkRebuild makes the shards of one of twelve drives anew, and beside it the bare decoding of as many bytes. The bytes
// are those made anew; for each, as many are read as there are data shards.
func BenchmarkRebuild(b *testing.B) {
	scheme := erasure.Scheme{Data: 8, Parity: 2}
	b.Run("memory", func(b *testing.B) { benchRebuild(b, newBox(b, scheme, 12).open) })
	b.Run("files", func(b *testing.B) {
		drives := newFileDrives(b, scheme, 12, 64<<20)
		benchRebuild(b, drives.open)
		drives.close()
	})
	b.Run("reedsolomon", func(b *testing.B) {
		coder, err := reedsolomon.New(scheme.Data, scheme.Parity)
		if err != nil {
			b.Fatal(err)
		}
		const unit = 256 << 10
		shards := make([][]byte, scheme.Shards())
		for i := range shards {
			shards[i] = noise(uint64(i), unit)
		}
		if err := coder.Encode(shards); err != nil {
			b.Fatal(err)
		}
		var bytes int64
		begun, used := time.Now(), cpuSeconds()
		for b.Loop() {
			for range 64 {
				shards[3] = shards[3][:0]
				if err := coder.Reconstruct(shards); err != nil {
					b.Fatal(err)
				}
				bytes += unit
			}
		}
		reportGiB(b, bytes, time.Since(begun), cpuSeconds()-used)
	})
}

func benchRebuild(b *testing.B, open func() *object.Engine) {
	e := open()
	fillBench(b, e, 16)
	var bytes int64
	var wall time.Duration
	var cpu float64
	for b.Loop() {
		loseSlot(b, e, 3)
		closeEngine(b, e)
		e = open()
		begun, used := time.Now(), cpuSeconds()
		for e.Status().Repair.SegmentsDone == 0 || e.Status().Repair.Running {
			time.Sleep(time.Millisecond)
		}
		wall, cpu = wall+time.Since(begun), cpu+cpuSeconds()-used
		bytes += e.Status().Repair.DoneBytes
	}
	closeEngine(b, e)
	reportGiB(b, bytes, wall, cpu)
}

// BenchmarkClientsDuring measures reads and writes of 1 MiB by four clients with nothing else going on, while a
// repair runs, and while a scrub does, with the default limits.
func BenchmarkClientsDuring(b *testing.B) {
	for _, work := range []string{"warm-up", "nothing", "repair", "scrub"} { // the first gets its memory from the system
		b.Run(work, func(b *testing.B) {
			box := newBox(b, erasure.Scheme{Data: 4, Parity: 2}, 8)
			var clients atomic.Int64
			box.configure = func(c *object.Config) { c.Clients, c.ScrubBytesPerSecond = clients.Load, 64<<20 }
			e := box.open()
			fillBench(b, e, 32)
			if work == "repair" {
				for slot := range 8 {
					if slot%4 == 0 {
						loseSlot(b, e, slot)
					}
				}
				closeEngine(b, e)
				clients.Store(1) // it must not be over before it is measured
				e = box.open()
				for !e.Status().Repair.Running || e.Status().Repair.Counting {
					time.Sleep(time.Millisecond)
				}
				clients.Store(0)
			}
			if work == "scrub" {
				e.StartScrub()
			}
			moved, wall, cpu := runClients(b, e, &clients)
			s := e.Status()
			closeEngine(b, e)
			reportGiB(b, moved, wall, cpu)
			scrubbed := int64(0)
			for _, slot := range s.Slots {
				scrubbed += slot.Scrub.DoneBytes
			}
			b.ReportMetric(float64(s.Repair.DoneBytes)/(1<<20)/wall.Seconds(), "repair-MiB/s")
			b.ReportMetric(float64(scrubbed)/(1<<20)/wall.Seconds(), "scrub-MiB/s")
		})
	}
}

// runClients lets four clients put and get 1 MiB in turn, as often as b says.
func runClients(b *testing.B, e *object.Engine, clients *atomic.Int64) (moved int64, wall time.Duration, cpu float64) {
	body := noise(2, 1<<20)
	var left, bytes atomic.Int64
	for i := range 4 {
		mustPut(b, e, "b", fmt.Sprintf("c%d", i), body)
	}
	begun, used := time.Now(), cpuSeconds()
	for b.Loop() {
		left.Store(40)
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				key := fmt.Sprintf("c%d", i)
				for left.Add(-1) >= 0 {
					clients.Add(1)
					if _, err := put(e, "b", key, body); err != nil {
						b.Error(err)
					}
					if _, err := get(e, "b", key); err != nil {
						b.Error(err)
					}
					clients.Add(-1)
					bytes.Add(2 << 20)
				}
			})
		}
		wg.Wait()
	}
	return bytes.Load(), time.Since(begun), cpuSeconds() - used
}
