package object_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/millrace/millrace/appliance/erasure"
	"github.com/millrace/millrace/appliance/object"
	"github.com/millrace/millrace/nvme/blockdev"
	"github.com/millrace/millrace/nvme/shardstore"
)

// placedShard is a shard on a drive.
type placedShard struct {
	slot int
	id   shardstore.ShardID
	info shardstore.ShardInfo
}

// allShards lists the shards of all drives by their segments.
func allShards(t *testing.T, e *object.Engine) map[shardstore.SegmentID][]placedShard {
	t.Helper()
	shards := map[shardstore.SegmentID][]placedShard{}
	for slot := range e.Map().Slots {
		s := e.Store(slot)
		if s == nil || s.Err() != nil {
			continue
		}
		if err := s.Shards(shardstore.ShardID{}, func(id shardstore.ShardID, info shardstore.ShardInfo) error {
			shards[id.Segment] = append(shards[id.Segment], placedShard{slot, id, info})
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	return shards
}

func deleteShard(t *testing.T, e *object.Engine, sh placedShard) {
	t.Helper()
	b := e.Store(sh.slot).NewBatch()
	b.DeleteShard(sh.id)
	if err := e.Store(sh.slot).Commit(context.Background(), b, true); err != nil {
		t.Fatal(err)
	}
}

// overwrite puts other bytes into a shard's place on the medium: a block of it, or all.
func (b *box) overwrite(sh placedShard, seed uint64, all bool) {
	b.t.Helper()
	e := sh.info.Extents[int(seed)%len(sh.info.Extents)]
	off, n := e.OffsetBytes, e.LengthBytes
	if !all {
		off, n = off+int64(seed)%(n/blockdev.AlignBytes)*blockdev.AlignBytes, blockdev.AlignBytes
	}
	junk := blockdev.AlignedBuffer(int(n))
	copy(junk, noise(seed, int(n)))
	if err := b.drives[sh.slot].mem.WriteAt([][]byte{junk}, off); err != nil {
		b.t.Fatal(err)
	}
}

// fillBox stores some objects of all kinds, and gives their bodies.
func fillBox(t *testing.T, e *object.Engine, n int) map[string][]byte {
	t.Helper()
	mustBucket(t, e, "b")
	want := map[string][]byte{}
	for i := range n {
		key := fmt.Sprintf("k%d", i)
		want[key] = noise(uint64(i), []int{500, 40 << 10, 300 << 10, 3 << 20}[i%4]+i)
		mustPut(t, e, "b", key, want[key])
	}
	body, err := multipart(e, "multi", noise(77, 60<<10))
	if err != nil {
		t.Fatal(err)
	}
	want["multi"] = body
	return want
}

func scrubbed(e *object.Engine) func() bool {
	return func() bool {
		for _, s := range e.Status().Slots {
			if s.Scrub.Finished.IsZero() || s.Scrub.Running {
				return false
			}
		}
		return true
	}
}

// TestScrubMendsEveryFault plants as many faults as the scheme can lose in every segment, and in the index, and lets
// a scrub find them.
func TestScrubMendsEveryFault(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	b := newBox(t, erasure.Scheme{Data: 2, Parity: 2}, 5)
	e := b.open()
	defer closeEngine(t, e)
	want := fillBox(t, e, 12)
	e.ClearUp()
	damaged, missing := 0, 0
	for _, shards := range allShards(t, e) {
		rng.Shuffle(len(shards), func(i, j int) { shards[i], shards[j] = shards[j], shards[i] })
		for _, sh := range shards[:2] {
			switch rng.IntN(3) {
			case 0: // flipped bits, or a write that went astray
				b.overwrite(sh, rng.Uint64N(1<<20), false)
				damaged++
			case 1: // a lost write
				b.overwrite(sh, rng.Uint64N(1<<20), true)
				damaged++
			case 2:
				deleteShard(t, e, sh)
				missing++
			}
		}
	}
	// One drive has lost all records of objects, and has older bytes for those of parts.
	batch := e.Store(2).NewBatch()
	batch.DeleteRange([]byte("o"), []byte("p"))
	if err := e.Store(2).Commit(context.Background(), batch, true); err != nil {
		t.Fatal(err)
	}
	e.StartScrub()
	waitFor(t, "scrub", scrubbed(e))
	c := e.Counters()
	waitFor(t, "mending", func() bool { return c.MendedShards.Load() >= uint64(damaged+missing) })
	// A damaged shard that the mending of another one came upon is mended before the scrub comes to it.
	if got := c.ScrubDamaged.Load(); got == 0 || got > uint64(damaged) {
		t.Errorf("scrub found %d damaged shards; want up to %d", got, damaged)
	}
	if c.ScrubDiffering.Load() == 0 || c.ScrubOrphans.Load() != 0 {
		t.Errorf("scrub found %d differing records, %d orphans; want some and none", c.ScrubDiffering.Load(), c.ScrubOrphans.Load())
	}
	checkPool(t, e)
	for key, body := range want {
		wantBytes(t, e, "b", key, body)
	}
	t.Logf("%d damaged and %d missing shards, %d differing records", damaged, missing, c.ScrubDiffering.Load())
}

// TestScrubGoesOn: a scrub that is broken off reads what is left, and nothing twice.
func TestScrubGoesOn(t *testing.T) {
	b := newBox(t, erasure.Scheme{Data: 2, Parity: 1}, 3)
	e := b.open()
	fillBox(t, e, 30)
	e.ClearUp()
	closeEngine(t, e)
	var clients atomic.Int64
	b.configure = func(c *object.Config) {
		c.ScrubInterval, c.ScrubBytesPerSecond = 1, 8<<20 // due at once
		c.Clients = clients.Load
	}
	e = b.open()
	total := uint64(0)
	for _, shards := range allShards(t, e) {
		total += uint64(len(shards))
	}
	waitFor(t, "some shards", func() bool { return e.Counters().ScrubbedShards.Load() > 5 })
	if s := e.Status().Slots[0].Scrub; !s.Running || s.TotalBytes == 0 || s.Begun.IsZero() || !s.Next.IsZero() {
		t.Errorf("scrub status = %+v; want running", s)
	}
	closeEngine(t, e)
	first := e.Counters().ScrubbedShards.Load()
	if first >= total {
		t.Fatalf("all %d shards read before the stop", total)
	}
	b.configure = func(c *object.Config) { c.ScrubInterval, c.Clients = 1<<40, clients.Load } // not due: it goes on
	clients.Store(1)
	e = b.open()
	defer closeEngine(t, e)
	waitFor(t, "scrub", scrubbed(e))
	if second := e.Counters().ScrubbedShards.Load(); first+second != total {
		t.Errorf("%d shards read before the stop, %d after it; want %d together", first, second, total)
	}
	for _, s := range e.Status().Slots {
		if s.Scrub.Damaged != 0 || s.Scrub.Next.IsZero() {
			t.Errorf("scrub status = %+v; want nothing damaged, and a next one", s.Scrub)
		}
	}
}
