package object_test

import (
	"math/rand/v2"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// weather is what happens to the drives of a scene while clients call it.
type weather struct {
	name   string
	change func(*scene, *rand.Rand) // nil: nothing
}

func weathers() []weather {
	return []weather{
		{"calm", nil},
		{"drives drop out", func(s *scene, rng *rand.Rand) { s.dropOne(rng) }},
		{"drives drop out and return", func(s *scene, rng *rand.Rand) {
			if rng.IntN(2) == 0 {
				s.dropOne(rng)
				return
			}
			s.restart(rng, rng.IntN(2) == 0)
		}},
		{"power cuts", func(s *scene, rng *rand.Rand) {
			switch rng.IntN(3) {
			case 0:
				s.dropOne(rng)
			case 1:
				s.restart(rng, true)
			default:
				s.cut(rng)
			}
		}},
	}
}

// newPower is a supply that does not fail.
func newPower(main *power) *power {
	p := &power{main: main}
	p.left.Store(1 << 40)
	return p
}

// jitter lets some changes of drives wait a little, so that calls overlap in more ways.
func jitter(seed uint64) func(int64) {
	return func(n int64) {
		if r := rand.New(rand.NewPCG(seed, uint64(n))); r.IntN(8) == 0 {
			time.Sleep(time.Duration(r.IntN(1000)) * time.Microsecond)
		}
	}
}

// away counts the drives that are not well.
func (s *scene) away() int {
	n := 0
	for _, d := range s.b.drives {
		if d.absent.Load() || d.gone || s.failed[d] {
			n++
		}
	}
	return n
}

// dropOne takes a drive away, if the pool can spare one more: it is pulled, or fails in the middle of something.
func (s *scene) dropOne(rng *rand.Rand) {
	d := s.b.drives[rng.IntN(len(s.b.drives))]
	if s.away() >= 2 || d.absent.Load() || d.gone || s.failed[d] {
		return
	}
	switch rng.IntN(3) {
	case 0:
		d.absent.Store(true)
	case 1:
		s.failed[d] = true
		d.fault.Vanish()
	default:
		s.failed[d] = true
		d.power.left.Store(rng.Int64N(20))
	}
}

// restart ends the engine between two calls and opens another. Drives that were away come back, all or some.
func (s *scene) restart(rng *rand.Rand, all bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.e.Close() // with drives that failed it can't end well
	s.reopen(rng, all, false)
}

// cut fails the power of the whole box in the middle of calls, and brings it back.
func (s *scene) cut(rng *rand.Rand) {
	s.main.left.Store(rng.Int64N(30))
	for range 50 {
		if s.main.left.Load() < 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.main.left.Store(0)
	_ = s.e.Close()
	s.reopen(rng, true, true)
}

func (s *scene) reopen(rng *rand.Rand, all, dark bool) {
	keep := rng.IntN(101)
	s.main = newPower(nil)
	s.main.slow = jitter(rng.Uint64())
	for _, d := range s.b.drives {
		away := d.absent.Load() || d.gone || s.failed[d]
		if dark || s.failed[d] {
			d.mem = d.mem.CrashClone(rng, keep)
			d.fs = d.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: keep, RNG: rng})
		}
		delete(s.failed, d)
		d.power = newPower(s.main)
		d.gone = away && !all && rng.IntN(2) == 0
	}
	e, err := s.b.tryOpen()
	if err != nil {
		s.t.Errorf("open after a restart = %v; want nil", err)
		panic(err)
	}
	s.e = e
}
