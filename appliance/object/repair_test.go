package object_test

import (
	"context"
	"errors"
	"testing"

	"github.com/millrace/millrace/appliance/erasure"
	"github.com/millrace/millrace/appliance/object"
	"github.com/millrace/millrace/nvme/blockdev"
	"github.com/millrace/millrace/nvme/shardstore"
	"github.com/millrace/millrace/s3/store"
)

// redundancy gives the least number of readable shards of any segment.
func redundancy(t *testing.T, e *object.Engine) int {
	t.Helper()
	count := map[shardstore.SegmentID]int{}
	for slot := range e.Map().Slots {
		s := e.Store(slot)
		if s == nil || s.Err() != nil {
			continue
		}
		err := s.Shards(shardstore.ShardID{}, func(id shardstore.ShardID, _ shardstore.ShardInfo) error {
			count[id.Segment]++
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	least := 1 << 20
	for _, n := range count {
		least = min(least, n)
	}
	return least
}

func TestLostDriveMovesToTheOthers(t *testing.T) {
	b := newBox(t, erasure.Scheme{Data: 2, Parity: 2}, 6)
	b.relocateAfter = 1
	e := b.open()
	mustBucket(t, e, "b")
	want := mustPuts(t, e, 20, 100<<10)
	body, err := multipart(e, "multi", noise(99, 60<<10))
	if err != nil {
		t.Fatal(err)
	}
	want["multi"] = body
	closeEngine(t, e)
	b.drives[0].gone, b.drives[3].gone = true, true
	e = b.open()
	waitFor(t, "whole redundancy on four drives", func() bool { return redundancy(t, e) == 4 })
	closeEngine(t, e)

	// Two more may go now; the two that are left can be read, and are not written to.
	b.drives[1].gone, b.drives[4].gone = true, true
	e = b.open()
	for key, body := range want {
		wantBytes(t, e, "b", key, body)
	}
	if _, err := put(e, "b", "new", nil); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("Put with two of six drives = %v; want ErrUnavailable", err)
	}
	closeEngine(t, e)

	// All come back: what moved must not be there twice.
	for _, d := range b.drives {
		d.gone = false
	}
	b.relocateAfter = 0
	e = b.open()
	defer closeEngine(t, e)
	waitFor(t, "all in", func() bool { return e.Map().CountIn() == 6 && !e.Map().NeedsFill() })
	checkPool(t, e)
	for key, body := range want {
		wantBytes(t, e, "b", key, body)
	}
}

func TestDamagedShardIsHealed(t *testing.T) {
	b := newBox(t, erasure.Scheme{Data: 2, Parity: 1}, 3)
	e := b.open()
	defer closeEngine(t, e)
	mustBucket(t, e, "b")
	body := noise(1, 1<<20)
	mustPut(t, e, "b", "k", body)
	// Every byte of one drive's data turns bad at rest.
	junk := blockdev.AlignedBuffer(1 << 20)
	for off := int64(2 << 20); off < driveBytes-(4<<20); off += 1 << 20 {
		if err := b.drives[1].mem.WriteAt([][]byte{junk}, off); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 { // a shard of parity alone isn't read as long as all is well
		wantBytes(t, e, "b", "k", body)
	}
	if e.Counters().DegradedReads.Load() > 0 {
		waitFor(t, "mending", func() bool { return e.Counters().MendedShards.Load() > 0 })
		checkPool(t, e)
	}
	wantBytes(t, e, "b", "k", body)
	if err := e.Delete(context.Background(), store.DeleteRequest{Bucket: "b", Key: "k"}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "space", func() bool { return e.Store(0).Stats().Shards+e.Store(1).Stats().Shards == 0 })
}
