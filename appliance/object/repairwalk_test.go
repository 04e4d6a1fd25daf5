package object_test

import (
	"testing"

	"github.com/millrace/millrace/appliance/erasure"
	"github.com/millrace/millrace/appliance/object"
	"github.com/millrace/millrace/nvme/shardstore"
)

// weaken deletes two shards of some segments and one of the others.
func weaken(t *testing.T, e *object.Engine) (two, one []shardstore.SegmentID) {
	t.Helper()
	for id, shards := range allShards(t, e) {
		deleteShard(t, e, shards[0])
		if id[0]%2 == 0 {
			deleteShard(t, e, shards[1])
			two = append(two, id)
		} else {
			one = append(one, id)
		}
	}
	if len(two) == 0 || len(one) == 0 {
		t.Skip("no segments of both kinds") // once in 2^20 or so
	}
	return two, one
}

// whole counts the segments of the list that have all four shards.
func whole(t *testing.T, e *object.Engine, list []shardstore.SegmentID) int {
	t.Helper()
	n := 0
	shards := allShards(t, e)
	for _, id := range list {
		if len(shards[id]) == 4 {
			n++
		}
	}
	return n
}

// TestRepairFewestFirst: as long as segments miss two shards, none that misses one is mended, but for those that
// are at work at once. A repair that is broken off goes on where it was.
func TestRepairFewestFirst(t *testing.T) {
	const atOnce = 4 // the engine's repairWorkers
	b := newBox(t, erasure.Scheme{Data: 2, Parity: 2}, 5)
	e := b.open()
	want := fillBox(t, e, 30)
	e.ClearUp()
	two, one := weaken(t, e)
	closeEngine(t, e)

	b.configure = func(c *object.Config) { c.RepairBytesPerSecond = 16 << 20 }
	e = b.open()
	waitFor(t, "some repair", func() bool { return e.Status().Repair.SegmentsDone > int64(len(two)/2) })
	first := e.Status().Repair
	if !first.Running || first.Segments != int64(len(two)+len(one)) || first.TotalBytes == 0 || first.Counting {
		t.Errorf("repair status = %+v; want %d segments", first, len(two)+len(one))
	}
	closeEngine(t, e)
	done := e.Status().Repair.SegmentsDone
	if done >= first.Segments {
		t.Fatal("the repair was over before the stop")
	}

	e = b.open()
	defer closeEngine(t, e)
	waitFor(t, "the repair to go on", func() bool { return e.Status().Repair.Running })
	if s := e.Status().Repair; s.SegmentsDone < done || !s.Begun.Equal(first.Begun) {
		t.Errorf("repair after a restart = %+v; want to go on from %d segments, begun %v", s, done, first.Begun)
	}
	for {
		laterDone := whole(t, e, one)
		if left := len(two) - whole(t, e, two); laterDone > 0 && left > atOnce {
			t.Fatalf("%d segments that missed one shard are whole, and not all that missed two", laterDone)
		}
		if laterDone == len(one) {
			break
		}
	}
	waitFor(t, "the end", func() bool { return !e.Status().Repair.Running })
	if s := e.Status().Repair; s.SegmentsDone != s.Segments || s.DoneBytes != s.TotalBytes || s.Failed != 0 {
		t.Errorf("repair status at the end = %+v; want all done", s)
	}
	checkPool(t, e)
	for key, body := range want {
		wantBytes(t, e, "b", key, body)
	}
}

// TestRepairBrokenOff: a repair that is broken off again and again passes over no segment that was at work or queued when
// it was stopped.
func TestRepairBrokenOff(t *testing.T) {
	b := newBox(t, erasure.Scheme{Data: 2, Parity: 2}, 5)
	e := b.open()
	want := fillBox(t, e, 60)
	e.ClearUp()
	two, one := weaken(t, e)
	closeEngine(t, e)

	b.configure = func(c *object.Config) { c.RepairBytesPerSecond = 16 << 20 }
	stops, done := 0, int64(0)
	for {
		e = b.open()
		var s object.RepairStatus
		waitFor(t, "a segment or the end", func() bool {
			s = e.Status().Repair
			return s.SegmentsDone > done || s.Segments > 0 && !s.Running
		})
		if !s.Running {
			break
		}
		closeEngine(t, e)
		stops++
		if s = e.Status().Repair; !s.Running { // it came to its end meanwhile
			e = b.open()
			break
		}
		done = s.SegmentsDone
	}
	defer closeEngine(t, e)
	if stops < 2 {
		t.Errorf("the repair was broken off %d times; want more", stops)
	}
	if n := whole(t, e, two) + whole(t, e, one); n != len(two)+len(one) {
		t.Errorf("%d segments are whole at the end; want %d", n, len(two)+len(one))
	}
	for key, body := range want {
		wantBytes(t, e, "b", key, body)
	}
}
