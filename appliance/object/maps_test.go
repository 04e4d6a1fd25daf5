package object_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/millrace/millrace/appliance/erasure"
	"github.com/millrace/millrace/appliance/placement"
	"github.com/millrace/millrace/appliance/record"
	"github.com/millrace/millrace/s3/store"
)

// TestMoreDrivesFailThanCanBeLost: a shelf loses most of its drives for a moment. Nothing may be
// acknowledged that they miss, and when they are back all is as before.
func TestMoreDrivesFailThanCanBeLost(t *testing.T) {
	b := newBox(t, erasure.Scheme{Data: 4, Parity: 2}, 6)
	for _, i := range []int{0, 2, 3, 5} {
		b.drives[i].power = &power{}
		b.drives[i].power.left.Store(1 << 40)
	}
	e := b.open()
	mustBucket(t, e, "b")
	want := map[string][]byte{}
	for i, n := range []int{100, 9000, 100 << 10, 1 << 20} {
		key := fmt.Sprintf("k%d", i)
		want[key] = noise(uint64(i), n)
		mustPut(t, e, "b", key, want[key])
	}
	for _, d := range b.drives {
		if d.power != nil {
			d.power.left.Store(0)
		}
	}
	for i := range 20 {
		key := fmt.Sprintf("later%d", i)
		body := noise(uint64(100+i), 5000)
		_, err := put(e, "b", key, body)
		switch {
		case err == nil:
			want[key] = body
		case !errors.Is(err, store.ErrUnavailable):
			t.Errorf("Put with four of six drives gone = %v; want ErrUnavailable", err)
		}
	}
	if _, err := put(e, "b", "large", noise(1, 1<<20)); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("Put of a large object with four of six drives gone = %v; want ErrUnavailable", err)
	}
	_ = e.Close() // it can't end well
	for _, d := range b.drives {
		d.power = nil
	}
	e = b.open()
	defer closeEngine(t, e)
	for key, body := range want {
		wantBytes(t, e, "b", key, body)
	}
	waitFor(t, "all in", func() bool { return e.Map().CountIn() == 6 && !e.Map().NeedsFill() })
	mustPut(t, e, "b", "after", noise(7, 1<<20))
	checkPool(t, e)
}

// TestMapThatWasNeverInForce: a power cut left a newer map on one drive only.
func TestMapThatWasNeverInForce(t *testing.T) {
	b := newBox(t, erasure.Scheme{Data: 2, Parity: 2}, 5)
	e := b.open()
	mustBucket(t, e, "b")
	mustPut(t, e, "b", "k", noise(1, 50<<10))
	stray := e.Map().Without(1).Without(2)
	closeEngine(t, e)
	s := b.openStore(b.drives[3])
	text, err := json.Marshal(stray)
	if err != nil {
		t.Fatal(err)
	}
	batch := s.NewBatch()
	batch.Set(record.MapKey(), text)
	if err := s.Commit(context.Background(), batch, true); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	e = b.open()
	if n := e.Map().CountIn(); n != 5 {
		t.Errorf("with a map on one drive only, %d slots are in; want 5", n)
	}
	closeEngine(t, e)

	// That drive is away while the map changes, and back later with its stray map.
	b.drives[3].gone = true
	e = b.open()
	mustPut(t, e, "b", "k", noise(2, 50<<10))
	closeEngine(t, e)
	b.drives[3].gone = false
	e = b.open()
	defer closeEngine(t, e)
	if m := e.Map(); m.Slots[1].State != placement.In {
		t.Errorf("slot 1 is %s; want it in", m.Slots[1].State)
	}
	waitFor(t, "all in", func() bool { return e.Map().CountIn() == 5 && !e.Map().NeedsFill() })
	wantBytes(t, e, "b", "k", noise(2, 50<<10))
	checkPool(t, e)
}
