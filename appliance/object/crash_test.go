package object_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/millrace/millrace/appliance/erasure"
	"github.com/millrace/millrace/appliance/object"
	"github.com/millrace/millrace/nvme/blockdev"
	"github.com/millrace/millrace/s3/store"
)

var (
	crashPoints = flag.Int("crash-points", 60, "how many power cuts TestPowerCut tries")
	crashSeed   = flag.Uint64("crash-seed", 0, "the seed of TestPowerCut; 0 means a fresh one")
	crashAt     = flag.Int64("crash-at", 0, "the only operation at which the power is cut; 0 means many")
)

var errPowerCut = errors.New("power cut")

// power is the supply of a whole box, or of a drive. It fails at the k-th operation that changes a drive; from
// then on nothing that any drive on it is asked for happens.
type power struct {
	left atomic.Int64
	used atomic.Int64
	main *power        // what feeds it; nil: nothing that could fail
	slow func(n int64) // called at the n-th operation; may be nil
}

func (p *power) draw() error {
	n := p.used.Add(1)
	if p.slow != nil {
		p.slow(n)
	}
	if p.left.Add(-1) < 0 {
		return errPowerCut
	}
	if p.main != nil {
		return p.main.draw()
	}
	return nil
}

// String makes a power an errorfs.Injector.
func (p *power) String() string { return "power" }

// MaybeError implements errorfs.Injector.
func (p *power) MaybeError(op errorfs.Op) error {
	if op.Kind.ReadOrWrite() == errorfs.OpIsRead {
		return nil
	}
	return p.draw()
}

// powered is a device on that supply.
type powered struct {
	blockdev.Device
	p *power
}

func (d powered) WriteAt(bufs [][]byte, off int64) error {
	if err := d.p.draw(); err != nil {
		return err
	}
	return d.Device.WriteAt(bufs, off)
}

func (d powered) Flush() error {
	if err := d.p.draw(); err != nil {
		return err
	}
	return d.Device.Flush()
}

// history is what a worker did to its own keys: for each the last acknowledged bytes (nil: none), and those
// that unacknowledged calls since may have put there.
type history struct {
	acked map[string][]byte
	maybe map[string][][]byte
}

func newHistory() *history { return &history{acked: map[string][]byte{}, maybe: map[string][][]byte{}} }

// did notes the outcome of a call that sets key to body.
func (h *history) did(key string, body []byte, err error) {
	if err == nil {
		h.acked[key] = body
		delete(h.maybe, key)
		return
	}
	h.maybe[key] = append(h.maybe[key], body)
}

// allows says whether a key may have the bytes.
func (h *history) allows(key string, got []byte) bool {
	return same(got, h.acked[key]) || slices.ContainsFunc(h.maybe[key], func(b []byte) bool { return same(got, b) })
}

// work does n random things to keys of its own, until a call fails for lack of power.
func work(e *object.Engine, h *history, worker int, rng *rand.Rand, n int) {
	ctx := context.Background()
	for i := range n {
		key := fmt.Sprintf("w%d/%d", worker, rng.IntN(5))
		size := []int{0, 100, 9000, 16 << 10, 40 << 10, 300 << 10}[rng.IntN(6)]
		body := noise(uint64(worker*1000+i), size)
		var err error
		switch rng.IntN(8) {
		case 0, 1:
			body = nil
			err = e.Delete(ctx, store.DeleteRequest{Bucket: "b", Key: key})
		case 2:
			body, err = multipart(e, key, body)
			if errors.Is(err, errAborted) {
				continue
			}
		default:
			_, err = put(e, "b", key, body)
		}
		h.did(key, body, err)
		if err != nil {
			return
		}
	}
}

var errAborted = errors.New("aborted")

// multipart uploads two parts, replaces one, leaves one out, and completes or aborts.
func multipart(e *object.Engine, key string, body []byte) ([]byte, error) {
	ctx := context.Background()
	u, err := e.CreateUpload(ctx, store.Upload{Bucket: "b", Key: key})
	if err != nil {
		return nil, errAborted
	}
	for i, number := range []int{2, 1, 2, 3} {
		p := append(bytes.Clone(body), byte(i))
		if _, err := e.PutPart(ctx, store.PartRequest{Bucket: "b", Key: key, UploadID: u.ID, Number: number,
			SizeBytes: int64(len(p)), Body: bytes.NewReader(p)}); err != nil {
			return nil, errAborted
		}
	}
	if len(body)%3 == 1 {
		_ = e.AbortUpload(ctx, "b", key, u.ID) // either way nothing of it shows
		return nil, errAborted
	}
	want := append(append(bytes.Clone(body), 1), append(bytes.Clone(body), 2)...)
	_, err = e.CompleteUpload(ctx, store.CompleteRequest{Bucket: "b", Key: key, UploadID: u.ID, Numbers: []int{1, 2}})
	return want, err
}

// crashRun runs a workload on a new box until the k-th change of a drive, cuts the power, and checks what
// is found when it is back. It says whether the power was cut at all.
func crashRun(t *testing.T, seed uint64, k int64) bool {
	rng := rand.New(rand.NewPCG(seed, uint64(k)))
	b := newBox(t, erasure.Scheme{Data: 2, Parity: 2}, 5)
	e := b.open()
	mustBucket(t, e, "b")
	closeEngine(t, e)
	p := &power{}
	p.left.Store(k)
	b.power = p
	histories := make([]*history, 3)
	if e, err := b.tryOpen(); err == nil {
		var wg sync.WaitGroup
		for i := range histories {
			histories[i] = newHistory()
			workRng := rand.New(rand.NewPCG(seed, uint64(i)))
			wg.Go(func() { work(e, histories[i], i, workRng, 12) })
		}
		wg.Wait()
		_ = e.Close() // without power it can't end well
	}
	cut := p.left.Load() < 0
	b.power = nil
	if cut {
		b.darken(rng)
	}
	e = b.open()
	defer closeEngine(t, e)
	for _, h := range histories {
		if h != nil {
			checkHistory(t, e, h)
		}
	}
	checkPool(t, e)
	return cut
}

func checkHistory(t *testing.T, e *object.Engine, h *history) {
	t.Helper()
	keys := map[string]bool{}
	for k := range h.acked {
		keys[k] = true
	}
	for k := range h.maybe {
		keys[k] = true
	}
	for key := range keys {
		got, err := get(e, "b", key)
		if errors.Is(err, store.ErrNoSuchKey) {
			got, err = nil, nil
		} else if err == nil && got == nil {
			got = []byte{}
		}
		if err != nil {
			t.Errorf("get(%q) = %v; want bytes", key, err)
			continue
		}
		if h.allows(key, got) {
			continue
		}
		t.Errorf("get(%q) gives %d bytes (there: %v); want the acknowledged %d (there: %v) or one of %d others",
			key, len(got), got != nil, len(h.acked[key]), h.acked[key] != nil, len(h.maybe[key]))
	}
}

func same(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) }

// checkPool waits until all clearing up is done, then lets the engine check itself.
func checkPool(t *testing.T, e *object.Engine) {
	t.Helper()
	waitFor(t, "quiet", e.Quiet)
	if err := e.Settle(context.Background()); err != nil {
		t.Errorf("Settle = %v; want nil", err)
	}
	r, err := e.Check(context.Background(), true)
	if err != nil {
		t.Fatalf("Check = %v; want nil", err)
	}
	if len(r.Faults) > 0 {
		t.Logf("map %+v, counters: forward %d, orphans %d, mended %d, dropped %d", e.Map(), e.Counters().RolledForward.Load(),
			e.Counters().OrphanShards.Load(), e.Counters().MendedShards.Load(), e.Counters().DroppedDrives.Load())
	}
	for _, f := range r.Faults {
		t.Errorf("check: %s", f)
	}
}

// seedOfCrashes gives the seed asked for, or a fresh one, and prints it.
func seedOfCrashes(t *testing.T) uint64 {
	seed := *crashSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d", seed)
	return seed
}

func TestPowerCut(t *testing.T) {
	seed := seedOfCrashes(t)
	steps := rand.New(rand.NewPCG(seed, 0))
	tried, points := 0, *crashPoints
	if testing.Short() {
		points = min(points, 15)
	}
	if *crashAt > 0 {
		for range points {
			crashRun(t, seed, *crashAt) // what its goroutines do first differs each time
		}
		return
	}
	for k, step := int64(1), int64(1); tried < points; k += step {
		if !crashRun(t, seed, k) {
			break
		}
		if t.Failed() {
			t.Fatalf("-crash-seed %d -crash-at %d", seed, k)
		}
		tried++
		if points < 1000 { // the short form takes a sample
			step = 1 + steps.Int64N(int64(2400/points))
		}
	}
	t.Logf("tally: crash_points=%d", tried)
}
