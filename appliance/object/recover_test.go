package object_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/millrace/millrace/appliance/erasure"
	"github.com/millrace/millrace/appliance/object"
	"github.com/millrace/millrace/s3/store"
)

// crash replaces the drives by what a power cut leaves of them now. What the engine on them does later is lost.
func (b *box) crash() {
	rng := rand.New(rand.NewPCG(rand.Uint64(), 0))
	for _, d := range b.drives {
		d.mem = d.mem.CrashClone(rng, 0)
		d.fs = d.fs.CrashClone(vfs.CrashCloneCfg{RNG: rng})
	}
}

// TestStandInIsNoSource: a drive that stood in for another while that was away keeps the op-log entries, and not the
// records, once it is swept. What is rolled forward to the one that is back must come from others.
func TestStandInIsNoSource(t *testing.T) {
	b := newBox(t, erasure.Scheme{Data: 2, Parity: 2}, 5)
	e := b.open()
	mustBucket(t, e, "b")
	closeEngine(t, e)
	back := b.drives[4]
	back.gone = true
	e = b.open()
	mustPut(t, e, "b", "first", noise(0, 20<<10))
	mustPut(t, e, "b", "first", noise(0, 20<<10)) // something is freed: that is when the watermark is raised
	waitFor(t, "fill of the others", func() bool { return !e.Map().NeedsFill() && !e.Map().Unswept && e.Quiet() })
	for i := range 40 {
		mustPut(t, e, "b", fmt.Sprint(i), noise(uint64(i), 100))
	}
	b.crash() // before the watermark is raised again
	closeEngine(t, e)
	back.gone = false
	e = b.open()
	waitFor(t, "all in", func() bool { return e.Map().CountIn() == 5 && !e.Map().NeedsFill() && !e.Map().Unswept })
	b.crash() // again
	closeEngine(t, e)
	e = b.open()
	defer closeEngine(t, e)
	for i := range 40 {
		wantBytes(t, e, "b", fmt.Sprint(i), noise(uint64(i), 100))
	}
	checkPool(t, e)
}

// TestFreedWhileFilling: a drive that is being filled has a free record, and not yet the parts that it is about. It is
// not asked what that frees.
func TestFreedWhileFilling(t *testing.T) {
	const objects = 30
	b := newBox(t, erasure.Scheme{Data: 2, Parity: 2}, 5)
	e := b.open()
	mustBucket(t, e, "b")
	for i := range 1500 { // so that the fill takes a while
		mustPut(t, e, "b", fmt.Sprint("small", i), noise(1, 10))
	}
	closeEngine(t, e)
	b.drives[0].gone, b.drives[1].gone = true, true
	e = b.open()
	for i := range objects {
		putParts(t, e, fmt.Sprint("parts", i))
	}
	closeEngine(t, e)
	b.drives[0].gone, b.drives[1].gone = false, false
	e = b.open()
	waitFor(t, "return", func() bool { return e.Map().CountIn() == 5 })
	var readers []store.Reader
	for i := range objects {
		key := fmt.Sprint("parts", i)
		r, err := e.Open(context.Background(), "b", key)
		if err != nil {
			t.Fatal(err)
		}
		readers = append(readers, r) // as long as it is read nothing is freed
		if err := e.Delete(context.Background(), store.DeleteRequest{Bucket: "b", Key: key}); err != nil {
			t.Fatal(err)
		}
	}
	if !e.Map().NeedsFill() {
		t.Log("the fill was faster than the deletes: nothing is tested")
	}
	b.crash()
	for _, r := range readers {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
	closeEngine(t, e)
	e = b.open()
	defer closeEngine(t, e)
	waitFor(t, "all in", func() bool { return e.Map().CountIn() == 5 && !e.Map().NeedsFill() })
	checkPool(t, e)
}

// putParts stores an object of two parts that have shards.
func putParts(t *testing.T, e *object.Engine, key string) {
	t.Helper()
	ctx := context.Background()
	u, err := e.CreateUpload(ctx, store.Upload{Bucket: "b", Key: key})
	if err != nil {
		t.Fatal(err)
	}
	for number := 1; number <= 2; number++ {
		p := noise(uint64(number), 40<<10)
		if _, err := e.PutPart(ctx, store.PartRequest{Bucket: "b", Key: key, UploadID: u.ID, Number: number,
			SizeBytes: int64(len(p)), Body: bytes.NewReader(p)}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := e.CompleteUpload(ctx, store.CompleteRequest{Bucket: "b", Key: key, UploadID: u.ID,
		Numbers: []int{1, 2}}); err != nil {
		t.Fatal(err)
	}
}

// TestUploadsClearedWhileAway: a drive comes back to objects that were replaced while it was away, and are replaced again
// while it is brought up to date. The parts of what it had go, though none of its records names them any more.
func TestUploadsClearedWhileAway(t *testing.T) {
	const objects = 100
	b := newBox(t, erasure.Scheme{Data: 2, Parity: 2}, 5)
	e := b.open()
	mustBucket(t, e, "b")
	for i := range objects {
		if _, err := multipart(e, fmt.Sprint(i), noise(uint64(i), 99)); err != nil {
			t.Fatal(err)
		}
	}
	waitFor(t, "quiet", e.Quiet)
	closeEngine(t, e)
	b.drives[4].gone = true
	e = b.open()
	for i := range objects {
		mustPut(t, e, "b", fmt.Sprint(i), noise(uint64(i), 10))
	}
	closeEngine(t, e)
	b.drives[4].gone = false
	e = b.open()
	defer closeEngine(t, e)
	waitFor(t, "return", func() bool {
		for i := range objects {
			mustPut(t, e, "b", fmt.Sprint(i), noise(uint64(i), 20))
		}
		return e.Map().CountIn() == 5 && !e.Map().NeedsFill()
	})
	waitFor(t, "sweep", func() bool { return !e.Map().Unswept })
	checkPool(t, e)
}
