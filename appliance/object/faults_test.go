package object_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/millrace/millrace/appliance/erasure"
	"github.com/millrace/millrace/appliance/object"
	"github.com/millrace/millrace/s3/store"
)

var (
	faultRuns = flag.Int("fault-runs", 5, "how many random pairs of failing drives TestFaults tries")
	faultSeed = flag.Uint64("fault-seed", 0, "the seed of TestFaults; 0 means a fresh one")
)

// TestFaults lets each thing that can go wrong with a drive happen to one, then random pairs of them to two, which is
// what the pool can lose, all while clients work. The short form tries a third of them, in pairs.
func TestFaults(t *testing.T) {
	seed := *faultSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d", seed)
	list, refused := ailments(), 0
	pick := rand.New(rand.NewPCG(seed, 0))
	var runs [][]ailment
	if testing.Short() {
		pick.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		runs = slices.Collect(slices.Chunk(list[:len(list)/3], 2))
	} else {
		runs = slices.Collect(slices.Chunk(list, 1))
		for range *faultRuns {
			runs = append(runs, []ailment{list[pick.IntN(len(list))], list[pick.IntN(len(list))]})
		}
	}
	for i, chosen := range runs {
		name := chosen[0].name
		if len(chosen) > 1 {
			name += " and " + chosen[1].name
		}
		t.Run(name, func(t *testing.T) { refused += faultRun(t, rand.New(rand.NewPCG(seed, uint64(1+i))), chosen) })
	}
	t.Logf("%d runs, %d calls refused", len(runs), refused)
}

// faultRun strikes a drive with each of the ailments. All that was acknowledged, before or while the drives
// are ill, must be read right while they are, and when they are well again; then a scrub finds all that is damaged. It
// gives the number of calls that were refused.
func faultRun(t *testing.T, rng *rand.Rand, chosen []ailment) int {
	w := newWard(t, rng, erasure.Scheme{Data: 2, Parity: 2}, 6)
	defer w.tellIfFailed()
	slots := rng.Perm(len(w.drives))[:len(chosen)]
	if rng.IntN(3) == 0 {
		w.relocateAfter = 1 // a drive that is out is given up at once, and its shards are made anew elsewhere
	}
	e, want := w.begin(slots)
	for i, a := range chosen {
		a.strike(w.all[slots[i]], e)
	}
	var ledgers []*ledger
	refused := 0
	bounded(t, "work on failing drives", func() { ledgers = workIll(t, e, rng, want) })
	for _, l := range ledgers {
		refused += len(l.refused)
		for _, err := range l.refused {
			t.Logf("refused: %v", err)
		}
	}
	bounded(t, "reading from failing drives", func() { readAll(t, e, want, ledgers) })
	bounded(t, "Close with failing drives", func() { _ = e.Close() })
	if rng.IntN(2) == 0 {
		w.restartIll(want, ledgers)
	}
	w.discharge()
	w.wantNothingLeft() // a store that was left behind holds its drive until it has ended
	e = w.open()
	readAll(t, e, want, ledgers)
	waitFor(t, "all drives in", func() bool { return e.Map().CountIn() == len(w.drives) && !e.Map().NeedsFill() })
	e.StartScrub()
	waitFor(t, "scrub", scrubbed(e))
	checkPool(t, e)
	readAll(t, e, want, ledgers)
	closeEngine(t, e)
	w.wantNothingLeft()
	return refused
}

// restartIll opens the pool while its drives fail, and reads all.
func (w *ward) restartIll(want map[string][]byte, ledgers []*ledger) {
	t := w.t.(*testing.T)
	bounded(t, "a restart with failing drives", func() {
		e, err := w.openRest()
		if err != nil {
			t.Errorf("Open with failing drives = %v; want nil", err)
			return
		}
		readAll(t, e, want, ledgers)
		_ = e.Close() // the failing ones can't end well
	})
}

// ledger is what a worker did to its own keys: for each, all that it may hold now; nil is nothing.
type ledger struct {
	may     map[string][][]byte
	refused []error
}

// did notes the outcome of a call that sets key to body.
func (l *ledger) did(key string, body []byte, err error) {
	if len(l.may[key]) == 0 {
		l.may[key] = [][]byte{nil}
	}
	if err == nil {
		l.may[key] = nil
	} else {
		l.refused = append(l.refused, err)
	}
	l.may[key] = append(l.may[key], body)
}

// check reads a key.
func (l *ledger) check(t *testing.T, e *object.Engine, key string) {
	got, err := get(e, "b", key)
	switch {
	case errors.Is(err, store.ErrNoSuchKey):
		got, err = nil, nil
	case err == nil && got == nil:
		got = []byte{}
	}
	if err != nil || !slices.ContainsFunc(l.may[key], func(b []byte) bool { return same(b, got) }) {
		t.Errorf("get(%q) = %d bytes (there: %v), %v; want one of %d others", key, len(got), got != nil, err, len(l.may[key]))
	}
}

// workIll lets workers put, get and delete while others read what was there before.
func workIll(t *testing.T, e *object.Engine, rng *rand.Rand, want map[string][]byte) []*ledger {
	ledgers := make([]*ledger, 3)
	var wg sync.WaitGroup
	for i := range ledgers {
		ledgers[i] = &ledger{may: map[string][][]byte{}}
		workRng := rand.New(rand.NewPCG(rng.Uint64(), uint64(i)))
		wg.Go(func() { workOn(t, e, ledgers[i], i, workRng, 12) })
	}
	wg.Go(func() { readAll(t, e, want, nil) })
	wg.Wait()
	return ledgers
}

// workOn is work that goes on after a call that failed.
func workOn(t *testing.T, e *object.Engine, l *ledger, worker int, rng *rand.Rand, n int) {
	for i := range n {
		key := fmt.Sprintf("w%d/%d", worker, rng.IntN(6))
		body := noise(uint64(worker*1000+i), []int{100, 9000, 40 << 10, 300 << 10}[rng.IntN(4)])
		var err error
		switch rng.IntN(6) {
		case 0:
			body, err = nil, e.Delete(context.Background(), store.DeleteRequest{Bucket: "b", Key: key})
		case 1:
			if body, err = multipart(e, key, body); errors.Is(err, errAborted) {
				continue
			}
		default:
			_, err = put(e, "b", key, body)
		}
		l.did(key, body, err)
		if err != nil && !clearError(err) {
			t.Errorf("change of %q = %v; want nil or that it can't be done now", key, err)
		}
		l.check(t, e, key)
	}
}

// wantRightOrNone reads what should be there: the right bytes, or a clear error. A listing has it all, or a clear error.
func wantRightOrNone(t *testing.T, e *object.Engine, want map[string][]byte) {
	for key, body := range want {
		if got, err := get(e, "b", key); err == nil && !bytes.Equal(got, body) {
			t.Errorf("get(%q) = %d wrong bytes", key, len(got))
		} else if err != nil && !clearError(err) {
			t.Errorf("get(%q) = %v; want a clear error", key, err)
		}
	}
	page, err := e.List(context.Background(), store.ListRequest{Bucket: "b", MaxEntries: 1000})
	if err != nil && !clearError(err) {
		t.Errorf("List = %v; want a clear error", err)
	}
	if err == nil {
		wantListed(t, page, want)
	}
}

func wantListed(t *testing.T, page store.ListPage, want map[string][]byte) {
	sizes := map[string]int64{}
	for _, o := range page.Objects {
		sizes[o.Key] = o.SizeBytes
	}
	for key, body := range want {
		if n, ok := sizes[key]; !ok || n != int64(len(body)) {
			t.Errorf("listing has %q with %d bytes (there: %v); want %d", key, n, ok, len(body))
		}
	}
}

// readAll reads what must be there, and what workers put, and lists it.
func readAll(t *testing.T, e *object.Engine, want map[string][]byte, ledgers []*ledger) {
	for key, body := range want {
		if got, err := get(e, "b", key); err != nil || !bytes.Equal(got, body) {
			t.Errorf("get(%q) = %d bytes, %v; want its %d", key, len(got), err, len(body))
		}
	}
	page, err := e.List(context.Background(), store.ListRequest{Bucket: "b", MaxEntries: 1000})
	if err != nil {
		t.Errorf("List = %v; want nil", err)
		return
	}
	wantListed(t, page, want)
	for _, l := range ledgers {
		for key, may := range l.may {
			l.check(t, e, key)
			listed := slices.ContainsFunc(page.Objects, func(o store.Object) bool { return o.Key == key })
			if !slices.ContainsFunc(may, func(b []byte) bool { return (b != nil) == listed }) {
				t.Errorf("%q is in the listing: %v; want the opposite", key, listed)
			}
		}
	}
}

// TestMoreFaultsThanParity: beyond what the pool can lose, reads give the right bytes or an error, not others, and
// nothing hangs.
func TestMoreFaultsThanParity(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	list := ailments()
	if testing.Short() {
		rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		list = list[:4]
	}
	for _, a := range list {
		switch {
		case strings.Contains(a.name, "slow"), strings.Contains(a.name, "full"):
			continue // no drive is lost
		}
		t.Run(a.name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 0))
			w := newWard(t, rng, erasure.Scheme{Data: 2, Parity: 1}, 4)
			defer w.tellIfFailed()
			slots := rng.Perm(len(w.drives))[:3]
			e, want := w.begin(slots)
			for _, slot := range slots {
				a.strike(w.all[slot], e)
			}
			bounded(t, "calls with too many failing drives", func() {
				wantRightOrNone(t, e, want)
				if _, err := put(e, "b", "late", want["base3"]); err != nil && !clearError(err) {
					t.Errorf("put = %v; want a clear error", err)
				}
			})
			bounded(t, "Close", func() { _ = e.Close() })
			w.discharge()
			w.wantNothingLeft()
			e = w.open()
			wantRightOrNone(t, e, want)
			closeEngine(t, e)
		})
	}
}
