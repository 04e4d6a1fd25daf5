package object_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/appliance/erasure"
	"github.com/millrace/millrace/nvme/blockdev"
)

// TestSlowDriveIsSpared: a drive that is slower than the others is noticed, reported, and asked only now and then, until
// it is as fast as they are.
func TestSlowDriveIsSpared(t *testing.T) {
	b := newBox(t, erasure.Scheme{Data: 2, Parity: 2}, 5)
	e := b.open()
	defer closeEngine(t, e)
	mustBucket(t, e, "b")
	want := map[string][]byte{}
	for i := range 8 {
		key := fmt.Sprintf("k%d", i)
		want[key] = noise(uint64(i), 80<<10)
		mustPut(t, e, "b", key, want[key])
	}
	readAll := func() {
		for key, body := range want {
			wantBytes(t, e, "b", key, body)
		}
	}
	readAll()
	isSlow := func() bool { return e.Status().Slots[1].Slow }
	if isSlow() {
		t.Error("a drive like all others is slow")
	}
	fault := b.drives[1].fault
	fault.Add(blockdev.Rule{Kind: blockdev.ReadOp, Delay: 20 * time.Millisecond})
	for deadline := time.Now().Add(time.Minute); !isSlow() && time.Now().Before(deadline); {
		readAll()
	}
	if !isSlow() {
		t.Fatal("the slow drive is not noticed")
	}
	before, rounds := fault.Count(blockdev.ReadOp), int64(40)
	for range rounds {
		readAll()
	}
	if n := fault.Count(blockdev.ReadOp) - before; n > rounds*int64(len(want))/8 {
		t.Errorf("the slow drive was asked %d times by %d reads; want few", n, rounds*int64(len(want)))
	}
	if s := e.Status(); s.Slots[0].Slow || s.Slots[2].Slow {
		t.Errorf("other drives are slow: %+v", s.Slots)
	}
	if testing.Short() {
		return
	}
	fault.Heal()
	for i := 0; i < 10_000 && isSlow(); i++ {
		readAll()
	}
	if isSlow() {
		t.Error("the drive is still slow when it is fast again")
	}
}

// TestHangingDriveDelaysFewReads: while a drive hangs, and is not dead yet, reads go on without it.
func TestHangingDriveDelaysFewReads(t *testing.T) {
	b := newBox(t, erasure.Scheme{Data: 2, Parity: 2}, 5)
	e := b.open()
	mustBucket(t, e, "b")
	body := noise(1, 200<<10)
	for i := range 8 {
		mustPut(t, e, "b", fmt.Sprintf("k%d", i), body)
	}
	hold := make(chan struct{})
	b.drives[3].fault.Add(blockdev.Rule{Kind: blockdev.ReadOp, Hold: hold})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() { wantBytes(t, e, "b", fmt.Sprintf("k%d", i), body) })
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second) // less than a drive may hang
	defer cancel()
	select {
	case <-done:
	case <-ctx.Done():
		t.Error("reads wait for a drive that hangs")
	}
	if s := e.Status().Slots[3]; s.LateReads == 0 || s.Failed != "" {
		t.Errorf("slot 3 = %+v; want late reads, and no failure", s)
	}
	close(hold)
	<-done
	waitFor(t, "an empty arena", func() bool { return b.arena.InUseBytes() == 0 })
	closeEngine(t, e)
}
