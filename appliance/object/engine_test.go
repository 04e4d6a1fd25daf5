package object_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/millrace/millrace/appliance/erasure"
	"github.com/millrace/millrace/appliance/object"
	"github.com/millrace/millrace/appliance/placement"
	"github.com/millrace/millrace/s3/store"
	"github.com/millrace/millrace/s3/store/storetest"
)

func TestConformance(t *testing.T) {
	for _, tt := range []struct {
		scheme erasure.Scheme
		drives int
	}{{erasure.Scheme{Data: 4, Parity: 2}, 6}, {erasure.Scheme{Data: 1, Parity: 0}, 1}, {erasure.Scheme{Data: 2, Parity: 1}, 5}} {
		t.Run(fmt.Sprintf("%v of %d", tt.scheme, tt.drives), func(t *testing.T) {
			open := func(t *testing.T) store.Store {
				e := newBox(t, tt.scheme, tt.drives).open()
				t.Cleanup(func() { closeEngine(t, e) })
				return e
			}
			storetest.Run(t, open)
			storetest.RunRandom(t, open, 300)
		})
	}
}

func TestRestartKeepsEverything(t *testing.T) {
	b := newBox(t, erasure.Scheme{Data: 4, Parity: 2}, 6)
	e := b.open()
	mustBucket(t, e, "b")
	want := map[string][]byte{}
	for i, n := range []int{0, 1, 4096, 16 << 10, 16<<10 + 1, 100 << 10, 1 << 20, 5<<20 + 7} {
		key := fmt.Sprintf("k%d", i)
		want[key] = noise(uint64(i), n)
		mustPut(t, e, "b", key, want[key])
	}
	closeEngine(t, e)
	e = b.open()
	defer closeEngine(t, e)
	for key, body := range want {
		wantBytes(t, e, "b", key, body)
	}
	page, err := e.List(context.Background(), store.ListRequest{Bucket: "b", MaxEntries: 100})
	if err != nil || len(page.Objects) != len(want) {
		t.Errorf("List = %d objects, %v; want %d", len(page.Objects), err, len(want))
	}
}

func TestReadsWithDrivesGone(t *testing.T) {
	b := newBox(t, erasure.Scheme{Data: 4, Parity: 2}, 6)
	e := b.open()
	mustBucket(t, e, "b")
	small, large := noise(1, 9000), noise(2, 9<<20)
	mustPut(t, e, "b", "small", small)
	mustPut(t, e, "b", "large", large)
	closeEngine(t, e)
	b.drives[1].gone, b.drives[4].gone = true, true

	e = b.open()
	wantBytes(t, e, "b", "small", small)
	wantBytes(t, e, "b", "large", large)
	later := noise(3, 3<<20)
	mustPut(t, e, "b", "later", later)
	mustPut(t, e, "b", "small", later[:8000])
	if err := e.Delete(context.Background(), store.DeleteRequest{Bucket: "b", Key: "large"}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "fill", func() bool { return !e.Map().NeedsFill() })
	closeEngine(t, e)

	// The two come back, stale: they must not speak before they are brought up to date.
	b.drives[1].gone, b.drives[4].gone = false, false
	e = b.open()
	check := func() {
		t.Helper()
		wantBytes(t, e, "b", "small", later[:8000])
		wantBytes(t, e, "b", "later", later)
		if _, err := get(e, "b", "large"); !errors.Is(err, store.ErrNoSuchKey) {
			t.Fatalf("get of a deleted key = %v; want ErrNoSuchKey", err)
		}
	}
	check()
	waitFor(t, "rejoin", func() bool { return e.Map().CountIn() == 6 && !e.Map().NeedsFill() })
	check()
	closeEngine(t, e)

	// Any other two may go now.
	b.drives[0].gone, b.drives[2].gone = true, true
	e = b.open()
	defer closeEngine(t, e)
	check()
}

func TestDriveDiesInUse(t *testing.T) {
	b := newBox(t, erasure.Scheme{Data: 4, Parity: 2}, 6)
	e := b.open()
	defer closeEngine(t, e)
	mustBucket(t, e, "b")
	first := noise(1, 8<<20)
	mustPut(t, e, "b", "first", first)
	b.drives[2].absent.Store(true)
	waitFor(t, "drop of the pulled drive", func() bool { return e.Map().Slots[2].State == placement.Out })
	second := noise(2, 2<<20)
	mustPut(t, e, "b", "second", second)
	b.drives[3].absent.Store(true)
	waitFor(t, "drop of the second drive", func() bool { return e.Map().Slots[3].State == placement.Out })
	mustPut(t, e, "b", "third", second)
	for key, want := range map[string][]byte{"first": first, "second": second, "third": second} {
		wantBytes(t, e, "b", key, want)
	}
}

func TestTooFewDrives(t *testing.T) {
	b := newBox(t, erasure.Scheme{Data: 4, Parity: 2}, 6)
	for _, i := range []int{0, 2, 5} {
		b.drives[i].gone = true
	}
	if _, err := b.tryOpen(); !errors.Is(err, object.ErrTooFewDrives) {
		t.Errorf("Open with 3 of 6 drives = %v; want ErrTooFewDrives", err)
	}
}

func TestMembersThatDoNotBelong(t *testing.T) {
	b, other := newBox(t, erasure.Scheme{Data: 2, Parity: 1}, 3), newBox(t, erasure.Scheme{Data: 2, Parity: 1}, 3)
	b.strays = []object.Member{{Store: other.openStore(other.drives[0])}}
	if _, err := b.tryOpen(); !errors.Is(err, object.ErrOtherPool) {
		t.Errorf("Open with a drive of another pool = %v; want ErrOtherPool", err)
	}
}

func TestBrokenPutLeavesNothing(t *testing.T) {
	b := newBox(t, erasure.Scheme{Data: 4, Parity: 2}, 6)
	e := b.open()
	defer closeEngine(t, e)
	mustBucket(t, e, "b")
	mustPut(t, e, "b", "k", noise(1, 100<<10))
	waitFor(t, "quiet", func() bool { return e.Quiet() })
	before := freeBytes(e)
	body := noise(2, 5<<20)
	for _, n := range []int64{0, 1, 1 << 20, 4 << 20, 5<<20 - 1} {
		_, err := e.Put(context.Background(), store.PutRequest{Bucket: "b", Key: "k", SizeBytes: 5 << 20,
			Body: &shortReader{r: bytes.NewReader(body), n: n}})
		if !errors.Is(err, errClientGone) {
			t.Errorf("Put of a body broken off at %d = %v; want errClientGone", n, err)
		}
	}
	mustPut(t, e, "b", "k2", body)
	if err := e.Delete(context.Background(), store.DeleteRequest{Bucket: "b", Key: "k2"}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "space of broken and deleted objects", func() bool { return freeBytes(e) == before })
	wantBytes(t, e, "b", "k", noise(1, 100<<10))
}

func TestReaderOutlivesItsVersion(t *testing.T) {
	b := newBox(t, erasure.Scheme{Data: 4, Parity: 2}, 6)
	e := b.open()
	defer closeEngine(t, e)
	mustBucket(t, e, "b")
	old := noise(1, 3<<20)
	mustPut(t, e, "b", "k", old)
	r, err := e.Open(context.Background(), "b", "k")
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 { // whatever is freed is used again soon
		mustPut(t, e, "b", "k", noise(uint64(10+i), 3<<20))
	}
	waitFor(t, "quiet", func() bool { return e.Quiet() })
	var got bytes.Buffer
	if err := r.WriteRange(context.Background(), &got, 0, int64(len(old))); err != nil || !bytes.Equal(got.Bytes(), old) {
		t.Errorf("read of a replaced version = %v, same bytes %v; want its own bytes", err, bytes.Equal(got.Bytes(), old))
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	waitFor(t, "the version's space", func() bool { return e.Store(0).Stats().Shards == 1 })
}
