package object_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/millrace/millrace/appliance/erasure"
	"github.com/millrace/millrace/appliance/object"
	"github.com/millrace/millrace/nvme/blockdev"
	"github.com/millrace/millrace/nvme/shardstore"
)

// replace puts a freshly formatted drive in the place of a drive, and returns the old one.
func (b *box) replace(slot int) (old *boxDrive) {
	b.t.Helper()
	old = b.drives[slot]
	s := b.openStore(old)
	label := s.Label()
	if err := s.Close(); err != nil {
		b.t.Fatal(err)
	}
	d := &boxDrive{fs: vfs.NewCrashableMem(), mem: blockdev.NewMem(driveBytes), isNew: true}
	label = shardstore.Label{Drive: shardstore.NewDriveID(), Pool: label.Pool, Slot: slot}
	if err := shardstore.Format(context.Background(), b.options(d), label); err != nil {
		b.t.Fatal(err)
	}
	b.drives[slot] = d
	return old
}

// TestReplaceDrive replaces a drive, and lets as many of the others go as the pool can lose.
func TestReplaceDrive(t *testing.T) {
	for _, moved := range []bool{false, true} {
		t.Run(fmt.Sprintf("moved=%v", moved), func(t *testing.T) { replaceDrive(t, moved) })
	}
}

func replaceDrive(t *testing.T, moved bool) {
	b := newBox(t, erasure.Scheme{Data: 2, Parity: 2}, 6)
	if moved {
		b.relocateAfter = 1
	}
	e := b.open()
	mustBucket(t, e, "b")
	want := mustPuts(t, e, 40, 100<<10)
	share := e.Store(2).Stats().Shards
	closeEngine(t, e)
	b.drives[2].gone = true
	e = b.open()
	want["small"] = noise(77, 100)
	mustPut(t, e, "b", "small", want["small"])
	if moved {
		waitFor(t, "the shards on the others", func() bool { return e.Map().Slots[2].State != "out" && redundancy(t, e) == 4 })
	}
	closeEngine(t, e)

	old := b.replace(2)
	b.configure = func(c *object.Config) { c.MaxDamagedShards = 1 } // what it does not have yet is not damage
	e = b.open()
	for key, body := range want {
		wantBytes(t, e, "b", key, body)
	}
	waitFor(t, "whole redundancy", func() bool {
		return e.Map().CountIn() == 6 && !e.Map().NeedsFill() && redundancy(t, e) == 4
	})
	waitFor(t, "its share on the new drive", func() bool { return e.Store(2).Stats().Shards >= share*3/4 })
	checkPool(t, e)
	closeEngine(t, e)

	// The old one comes back, in a place of its own: it is left out.
	b.drives[2].isNew, old.gone = false, false
	b.drives = append(b.drives, old)
	b.drives[0].gone, b.drives[5].gone = true, true
	e = b.open()
	for key, body := range want {
		wantBytes(t, e, "b", key, body)
	}
	closeEngine(t, e)
}

// TestReplacePowerCut cuts the power at any moment of a replacement whose slot's shards had moved to the others.
func TestReplacePowerCut(t *testing.T) {
	seed := seedOfCrashes(t)
	rng := rand.New(rand.NewPCG(seed, 0))
	points := *crashPoints / 3
	if testing.Short() {
		points = 3
	}
	cuts := 0
	for range points {
		if replaceCut(t, rng, 1+rng.Int64N(300)) {
			cuts++
		}
		if t.Failed() {
			t.Fatalf("-crash-seed %d", seed)
		}
	}
	t.Logf("tally: crash_points=%d", cuts)
}

func replaceCut(t *testing.T, rng *rand.Rand, k int64) (cut bool) {
	b := newBox(t, erasure.Scheme{Data: 2, Parity: 2}, 5)
	b.relocateAfter = 1
	e := b.open()
	mustBucket(t, e, "b")
	want := mustPuts(t, e, 12, 20<<10)
	closeEngine(t, e)
	b.drives[2].gone = true
	e = b.open()
	waitFor(t, "the shards on the others", func() bool { return redundancy(t, e) == 4 })
	closeEngine(t, e)
	b.replace(2)
	p := &power{}
	p.left.Store(k)
	b.power = p
	if e, err := b.tryOpen(); err == nil {
		for n := p.left.Load(); n >= 0; n = p.left.Load() {
			time.Sleep(20 * time.Millisecond)
			if p.left.Load() == n { // it has come to rest
				break
			}
		}
		_ = e.Close() // without power it can't end well
	}
	cut = p.left.Load() < 0
	b.power = nil
	b.darken(rng)
	e = b.open()
	defer closeEngine(t, e)
	for key, body := range want {
		wantBytes(t, e, "b", key, body)
	}
	waitFor(t, "the new drive in", func() bool { return e.Map().CountIn() == 5 && !e.Map().NeedsFill() && redundancy(t, e) == 4 })
	checkPool(t, e)
	return cut
}

// TestReplaceWhatIsThere: a new drive does not push out one that is there.
func TestReplaceWhatIsThere(t *testing.T) {
	b := newBox(t, erasure.Scheme{Data: 2, Parity: 1}, 4)
	closeEngine(t, b.open())
	b.drives = append(b.drives, b.replace(1))
	if _, err := b.tryOpen(); !errors.Is(err, object.ErrOccupied) {
		t.Fatalf("Open with a new drive for a slot whose drive is there = %v; want ErrOccupied", err)
	}
	b.drives = b.drives[:4]
	e := b.open()
	waitFor(t, "the new drive in", func() bool { return e.Map().CountIn() == 4 && !e.Map().NeedsFill() })
	closeEngine(t, e)
}
