package object_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/millrace/millrace/appliance/erasure"
	"github.com/millrace/millrace/appliance/object"
	"github.com/millrace/millrace/appliance/placement"
	"github.com/millrace/millrace/s3/store"
)

// change does one of each kind of mutation, and notes what is there afterwards.
func change(t *testing.T, e *object.Engine, round int, want map[string][]byte) {
	t.Helper()
	for i := range 30 {
		key := fmt.Sprintf("k%d", i)
		switch (i + round) % 3 {
		case 0:
			want[key] = noise(uint64(1000*round+i), []int{10, 9000, 70 << 10}[i%3])
			mustPut(t, e, "b", key, want[key])
		case 1:
			if err := e.Delete(context.Background(), store.DeleteRequest{Bucket: "b", Key: key}); err != nil {
				t.Fatal(err)
			}
			delete(want, key)
		}
	}
	body, err := multipart(e, "multi", noise(uint64(round), 60<<10))
	if err != nil {
		t.Fatal(err)
	}
	want["multi"] = body
	mustBucket(t, e, fmt.Sprintf("made-%d", round))
}

func wantAll(t *testing.T, e *object.Engine, want map[string][]byte) {
	t.Helper()
	for i := range 30 {
		key := fmt.Sprintf("k%d", i)
		if want[key] != nil {
			wantBytes(t, e, "b", key, want[key])
		} else if _, err := get(e, "b", key); !errors.Is(err, store.ErrNoSuchKey) {
			t.Errorf("get(%q) = %v; want ErrNoSuchKey", key, err)
		}
	}
	wantBytes(t, e, "b", "multi", want["multi"])
	page, err := e.List(context.Background(), store.ListRequest{Bucket: "b", MaxEntries: 1000})
	if err != nil || len(page.Objects) != len(want) {
		t.Errorf("List = %d objects, %v; want %d", len(page.Objects), err, len(want))
	}
}

func TestShortAbsence(t *testing.T) {
	b := newBox(t, erasure.Scheme{Data: 3, Parity: 2}, 6)
	e := b.open()
	mustBucket(t, e, "b")
	want := map[string][]byte{}
	change(t, e, 1, want)
	closeEngine(t, e)
	b.drives[2].gone = true
	e = b.open()
	change(t, e, 2, want)
	waitFor(t, "fill of the others", func() bool { return !e.Map().NeedsFill() })
	change(t, e, 3, want)
	closeEngine(t, e)
	b.drives[2].gone = false
	e = b.open()
	change(t, e, 4, want)
	waitFor(t, "all in", func() bool { return e.Map().CountIn() == 6 && !e.Map().NeedsFill() })
	if n := e.Counters().Resynced.Load(); n != 1 {
		t.Errorf("%d drives brought up to date from the op-logs; want 1", n)
	}
	checkPool(t, e)
	wantAll(t, e, want)
	closeEngine(t, e)

	// What it says now must be right, with any two others away.
	b.drives[0].gone, b.drives[4].gone = true, true
	e = b.open()
	defer closeEngine(t, e)
	wantAll(t, e, want)
}

func TestLongAbsence(t *testing.T) {
	b := newBox(t, erasure.Scheme{Data: 3, Parity: 2}, 6)
	e := b.open()
	mustBucket(t, e, "b")
	want := map[string][]byte{}
	change(t, e, 1, want)
	closeEngine(t, e)
	b.drives[2].gone, b.relocateAfter = true, 1
	e = b.open()
	change(t, e, 2, want)
	waitFor(t, "the drive to be given up", func() bool { return e.Map().Slots[2].State == placement.Lost })
	change(t, e, 3, want)
	closeEngine(t, e)
	b.drives[2].gone, b.relocateAfter = false, 0
	e = b.open()
	defer closeEngine(t, e)
	waitFor(t, "all in", func() bool { return e.Map().CountIn() == 6 && !e.Map().NeedsFill() })
	if n := e.Counters().Resynced.Load(); n != 0 {
		t.Errorf("%d drives brought up to date from the op-logs; want 0", n)
	}
	checkPool(t, e)
	wantAll(t, e, want)
}

// TestFreedWhileAway: what was freed while a drive was away for a moment must not stay on it.
func TestFreedWhileAway(t *testing.T) {
	b := newBox(t, erasure.Scheme{Data: 2, Parity: 2}, 5)
	e := b.open()
	mustBucket(t, e, "b")
	for _, key := range []string{"k1", "k2", "k3", "k4", "k5", "k6"} {
		if _, err := multipart(e, key, noise(1, 3000)); err != nil {
			t.Fatal(err)
		}
	}
	closeEngine(t, e)
	b.drives[2].gone = true
	e = b.open()
	for _, key := range []string{"k1", "k2", "k3", "k4", "k5", "k6"} {
		mustPut(t, e, "b", key, noise(2, 100))
	}
	waitFor(t, "fill of the others", func() bool { return !e.Map().NeedsFill() })
	waitFor(t, "quiet", e.Quiet)
	closeEngine(t, e)
	b.drives[2].gone = false
	e = b.open()
	defer closeEngine(t, e)
	waitFor(t, "all in", func() bool { return e.Map().CountIn() == 5 && !e.Map().NeedsFill() })
	if n := e.Counters().Resynced.Load(); n != 1 {
		t.Errorf("%d drives brought up to date from the op-logs; want 1", n)
	}
	checkPool(t, e)
}

// TestFreeRecordsWait: what is freed while a drive with shards of it is away is freed on the others, and remembered
// for it. That is no fault.
func TestFreeRecordsWait(t *testing.T) {
	b := newBox(t, erasure.Scheme{Data: 2, Parity: 2}, 5)
	e := b.open()
	mustBucket(t, e, "b")
	keys := []string{"k1", "k2", "k3", "k4", "k5", "k6"}
	for _, key := range keys {
		if _, err := multipart(e, key, noise(1, 60<<10)); err != nil {
			t.Fatal(err)
		}
	}
	closeEngine(t, e)
	b.drives[2].gone = true
	e = b.open()
	for _, key := range keys {
		mustPut(t, e, "b", key, nil)
	}
	checkPool(t, e)
	closeEngine(t, e)
	b.drives[2].gone = false
	e = b.open()
	defer closeEngine(t, e)
	waitFor(t, "all in", func() bool { return e.Map().CountIn() == 5 && !e.Map().NeedsFill() })
	checkPool(t, e)
	for slot := range b.drives {
		if n := e.Store(slot).Stats().Shards; n != 0 {
			t.Errorf("slot %d has %d shards at the end; want 0", slot, n)
		}
	}
}
