package object_test

import (
	"errors"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/millrace/millrace/appliance/erasure"
	"github.com/millrace/millrace/appliance/object"
	"github.com/millrace/millrace/s3/store"
)

// awayRun is a crashRun of a box of which a drive is away in one start and back in the next: the power
// fails while others are given what it had, and again while it is brought up to date. It says whether it was
// cut at all.
func awayRun(t *testing.T, seed uint64, k int64) (cut bool) {
	rng := rand.New(rand.NewPCG(seed, uint64(k)))
	b := newBox(t, erasure.Scheme{Data: 2, Parity: 2}, 5)
	histories := []*history{newHistory(), newHistory(), newHistory()}
	e := b.open()
	mustBucket(t, e, "b")
	round := func(n int) {
		var wg sync.WaitGroup
		for i, h := range histories {
			workRng := rand.New(rand.NewPCG(seed, rng.Uint64()))
			wg.Go(func() { work(e, h, i, workRng, n) })
		}
		wg.Wait()
	}
	round(10)
	closeEngine(t, e)
	away := b.drives[rng.IntN(len(b.drives))]
	for _, gone := range []bool{true, false} {
		away.gone = gone
		p := &power{}
		p.left.Store(rng.Int64N(2 * k))
		b.power = p
		var err error
		if e, err = b.tryOpen(); err == nil {
			for _, h := range histories {
				h.settle(t, e)
			}
			round(4)
			_ = e.Close() // without power it can't end well
		}
		b.power = nil
		if p.left.Load() < 0 {
			cut = true
			b.darken(rng)
		}
	}
	e = b.open()
	defer closeEngine(t, e)
	waitFor(t, "all in", func() bool { return e.Map().CountIn() == len(b.drives) && !e.Map().NeedsFill() })
	for _, h := range histories {
		checkHistory(t, e, h)
	}
	checkPool(t, e)
	return cut
}

// settle takes what is found of the keys in doubt as what is there from now on. One that can't be read stays in doubt.
func (h *history) settle(t *testing.T, e *object.Engine) {
	for key := range h.maybe {
		got, err := get(e, "b", key)
		if errors.Is(err, store.ErrNoSuchKey) {
			got, err = nil, nil
		} else if err == nil && got == nil {
			got = []byte{}
		}
		switch {
		case err != nil:
		case h.allows(key, got):
			h.did(key, got, nil)
		default:
			t.Errorf("get(%q) after a power cut gives %d bytes (there: %v); want those of the last calls",
				key, len(got), got != nil)
		}
	}
}

// darken leaves of every drive that is here what a power cut leaves.
func (b *box) darken(rng *rand.Rand) {
	keep := rng.IntN(101)
	for _, d := range b.drives {
		if !d.gone {
			d.mem = d.mem.CrashClone(rng, keep)
			d.fs = d.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: keep, RNG: rng})
		}
	}
}

// awaySpan is the number of changes of drives in a start of awayRun, or somewhat more.
const awaySpan = 700

func TestPowerCutWithADriveAway(t *testing.T) {
	seed := seedOfCrashes(t)
	cuts := 0
	for i := range *crashPoints / 4 {
		k := 1 + int64(i)*7%awaySpan
		if *crashAt > 0 {
			k = *crashAt
		}
		if awayRun(t, seed+uint64(i), k) {
			cuts++
		}
		if t.Failed() {
			t.Fatalf("-crash-seed %d -crash-at %d", seed+uint64(i), k)
		}
	}
	t.Logf("tally: absence_crash_points=%d", cuts)
}
