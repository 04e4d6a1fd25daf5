package torture

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var (
	kills    = flag.Int("kills", 6, "how often TestKill kills the server")
	killSeed = flag.Uint64("kill-seed", 0, "the seed of TestKill; 0 means a fresh one")
)

const (
	workers   = 4
	drives    = 6
	scheme    = "4+2"
	parity    = 2
	driveSize = "128MiB"
	// fsckEvery is after how many kills the drives are checked, besides at the end.
	fsckEvery = 5
)

// scene is a virtual JBOF that outlives the servers that serve it.
type scene struct {
	t       *testing.T
	binary  string
	dir     string
	rng     *rand.Rand
	workers []*worker
	killed  atomic.Bool
	calls   atomic.Int64
	kills   int
	away    map[string]bool // names of drives that are pulled
}

// TestKill serves a pool by the real program on real files, kills that again and again while clients change
// what is stored, and wants to find all that was acknowledged.
func TestKill(t *testing.T) {
	seed := *killSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d", seed)
	s := &scene{t: t, binary: buildMillrace(t), dir: filepath.Join(t.TempDir(), "pool"),
		rng: rand.New(rand.NewPCG(seed, 0)), away: map[string]bool{}}
	for i := range workers {
		s.workers = append(s.workers, &worker{t: t, rng: rand.New(rand.NewPCG(seed, uint64(i+1))), journal: newJournal(i),
			calls: &s.calls, killed: &s.killed})
	}
	s.create()
	checks := 0
	for s.kills < *kills && !t.Failed() {
		s.round()
		if s.kills/fsckEvery > checks {
			checks = s.kills / fsckEvery
			fsck(t, s.binary, s.dir)
		}
	}
	if t.Failed() {
		t.Fatalf("seed %d, kill %d", seed, s.kills)
	}
	s.finish()
	t.Logf("tally: kills=%d kill_calls=%d", s.kills, s.calls.Load())
}

// create makes the pool and the bucket.
func (s *scene) create() {
	p := s.spawn("--drives", fmt.Sprint(drives), "--drive-size", driveSize, "--scheme", scheme)
	a := p.waitReady(s.t)
	s.workers[0].connect(a.s3)
	if err := s.workers[0].client.CreateBucket(s.t.Context(), bucket); err != nil {
		s.t.Fatal(err)
	}
	p.terminate(s.t)
}

func (s *scene) spawn(args ...string) *process {
	s.killed.Store(false)
	return spawn(s.t, s.binary, append([]string{"--dir", s.dir}, args...)...)
}

// round starts a server, perhaps after some that are killed before they serve, verifies all that is
// stored, changes it, and ends the server in one way or another.
func (s *scene) round() {
	s.moveDrives()
	for s.rng.IntN(3) == 0 {
		p := s.spawn()
		time.Sleep(time.Duration(s.rng.IntN(400)) * time.Millisecond)
		p.kill()
		s.kills++
	}
	p := s.spawn()
	a := p.waitReady(s.t)
	ended := s.load(a.s3)
	s.pause(ended)
	if s.rng.IntN(4) == 0 && len(s.away) < parity {
		s.pull()
		s.pause(ended)
	}
	s.killed.Store(true)
	if s.rng.IntN(5) == 0 {
		p.terminate(s.t)
	} else {
		p.kill()
		s.kills++
	}
	<-ended
	if s.t.Failed() {
		s.t.Logf("%s", &p.log)
	}
}

// load lets all workers verify what is theirs, and then work, until the server ends.
func (s *scene) load(endpoint string) (ended chan struct{}) {
	ended = make(chan struct{})
	var wg sync.WaitGroup
	for _, w := range s.workers {
		w.connect(endpoint)
		wg.Go(func() {
			defer w.client.Close()
			if w.verify() == nil {
				w.work()
			}
		})
	}
	go func() {
		wg.Wait()
		close(ended)
	}()
	return ended
}

// pause lets the workers work for a while.
func (s *scene) pause(ended chan struct{}) {
	select {
	case <-ended: // too early: somebody has complained
	case <-time.After(time.Duration(50+s.rng.IntN(700)) * time.Millisecond):
	}
}

func (s *scene) folder(name string) string { return filepath.Join(s.dir, "drives", name) }
func (s *scene) shelf(name string) string  { return filepath.Join(s.dir, "away-"+name) }

// moveDrives brings some drives back, and pulls others, while no server runs.
func (s *scene) moveDrives() {
	for name := range s.away {
		if s.rng.IntN(2) == 0 {
			s.giveBack(name)
		}
	}
	if s.rng.IntN(4) == 0 && len(s.away) < parity {
		s.pull()
	}
}

// pull moves the folder of a drive away.
func (s *scene) pull() {
	name := fmt.Sprintf("%02d", s.rng.IntN(drives))
	if s.away[name] {
		return
	}
	if err := os.Rename(s.folder(name), s.shelf(name)); err != nil {
		s.t.Fatal(err)
	}
	s.away[name] = true
}

func (s *scene) giveBack(name string) {
	if err := os.Rename(s.shelf(name), s.folder(name)); err != nil {
		s.t.Fatal(err)
	}
	delete(s.away, name)
}

// finish brings all drives back, verifies, ends the server cleanly, and checks the drives.
func (s *scene) finish() {
	for name := range s.away {
		s.giveBack(name)
	}
	p := s.spawn()
	a := p.waitReady(s.t)
	waitHealth(s.t, p, a.mgmt)
	for _, w := range s.workers {
		w.connect(a.s3)
		_ = w.verify() // it complains itself
		w.client.Close()
	}
	p.terminate(s.t)
	if r := fsck(s.t, s.binary, s.dir); r.Broken > 0 {
		s.t.Errorf("after a clean end %d shards of writes that were broken off are left; want 0", r.Broken)
	}
}
