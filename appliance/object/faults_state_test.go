package object_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/millrace/millrace/appliance/erasure"
	"github.com/millrace/millrace/appliance/object"
	"github.com/millrace/millrace/appliance/placement"
	"github.com/millrace/millrace/nvme/blockdev"
	"github.com/millrace/millrace/nvme/shardstore"
	"github.com/millrace/millrace/s3/store"
)

// openRest opens an engine on the drives that can be opened, as a server does: the others count as missing.
func (w *ward) openRest() (*object.Engine, error) {
	cfg := object.Config{Arena: w.arena, CheckInterval: 5 * time.Millisecond, Members: w.strays}
	w.strays = nil
	for _, d := range w.drives {
		if d.gone {
			continue
		}
		if s, err := shardstore.Open(context.Background(), w.options(d)); err == nil {
			cfg.Members = append(cfg.Members, object.Member{Store: s})
		}
	}
	rand.Shuffle(len(cfg.Members), func(i, j int) { cfg.Members[i], cfg.Members[j] = cfg.Members[j], cfg.Members[i] })
	return object.Open(context.Background(), cfg)
}

// copyOf is what is on a drive now.
func (d *boxDrive) copyOf() *boxDrive {
	rng := rand.New(rand.NewPCG(1, 1))
	return &boxDrive{mem: d.mem.CrashClone(rng, 100),
		fs: d.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rng})}
}

// changes are what can happen to drives while the machine is off. They get those that it happens to.
func changes() map[string]func(*ward, []*boxDrive) {
	return map[string]func(*ward, []*boxDrive){
		"not there": func(_ *ward, drives []*boxDrive) {
			for _, d := range drives {
				d.gone = true
			}
		},
		"metadata gone": func(_ *ward, drives []*boxDrive) {
			for _, d := range drives {
				d.fs = vfs.NewCrashableMem()
			}
		},
		"data gone": func(_ *ward, drives []*boxDrive) {
			for _, d := range drives {
				d.mem = blockdev.NewMem(driveBytes)
			}
		},
		"metadata of each other": func(_ *ward, drives []*boxDrive) {
			drives[0].fs, drives[1].fs = drives[1].fs, drives[0].fs
		},
		"each in the place of the other": func(w *ward, drives []*boxDrive) {
			a, b := drives[0].copyOf(), drives[1].copyOf()
			drives[0].mem, drives[0].fs, drives[1].mem, drives[1].fs = b.mem, b.fs, a.mem, a.fs
		},
		"a twin": func(w *ward, drives []*boxDrive) {
			for _, d := range drives {
				w.strays = append(w.strays, object.Member{Store: w.openStore(d.copyOf())})
			}
		},
		"hanging from the start": func(w *ward, drives []*boxDrive) {
			hung := map[*boxDrive]bool{}
			for _, d := range drives {
				hung[d] = true
			}
			w.adjust = func(d *boxDrive, o *shardstore.Options) {
				if p := w.patients[d]; hung[d] {
					hold := p.hold
					p.meta.set(func(errorfs.Op) error { <-hold; return nil })
					o.OpDeadline, o.MetaFS = sickDeadline, errorfs.Wrap(d.fs, &p.meta)
				}
			}
		},
	}
}

// TestChangedWhileOff changes as many drives as the pool can lose while it is closed. All must be read right
// then, and writes go on.
func TestChangedWhileOff(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for name, change := range changes() {
		t.Run(name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 0))
			w := newWard(t, rng, erasure.Scheme{Data: 2, Parity: 2}, 6)
			e := w.open()
			mustBucket(t, e, "b")
			want := w.bodies(e)
			closeEngine(t, e)
			slots := rng.Perm(len(w.drives))[:2]
			change(w, []*boxDrive{w.drives[slots[0]], w.drives[slots[1]]})
			var err error
			bounded(t, "Open", func() { e, err = w.openRest() })
			if err != nil {
				t.Fatalf("Open = %v; want nil", err)
			}
			want["late"] = noise(99, 200<<10)
			mustPut(t, e, "b", "late", want["late"])
			readAll(t, e, want, nil)
			closeEngine(t, e)
			w.discharge()
			w.wantNothingLeft()
		})
	}
}

// TestTwinsOfTooMany: when too few drives are left without those that share an identity, Open says so.
func TestTwinsOfTooMany(t *testing.T) {
	w := newWard(t, rand.New(rand.NewPCG(1, 1)), erasure.Scheme{Data: 2, Parity: 1}, 3)
	for _, d := range w.drives {
		w.strays = append(w.strays, object.Member{Store: w.openStore(d.copyOf())})
	}
	if _, err := w.openRest(); !errors.Is(err, object.ErrDuplicateDrive) {
		t.Errorf("Open of three drives twice = %v; want ErrDuplicateDrive", err)
	}
}

// TestStaleReturn: drives that were away while all was changed come back as they were. Nothing old is served.
func TestStaleReturn(t *testing.T) {
	rng := rand.New(rand.NewPCG(rand.Uint64(), 0))
	w := newWard(t, rng, erasure.Scheme{Data: 2, Parity: 2}, 6)
	e := w.open()
	mustBucket(t, e, "b")
	want := w.bodies(e)
	closeEngine(t, e)
	w.drives[1].gone, w.drives[4].gone = true, true
	e = w.open()
	for key, body := range want {
		if key == "multi" {
			continue
		}
		want[key] = noise(uint64(len(body)+1), len(body)+1)
		mustPut(t, e, "b", key, want[key])
	}
	if err := e.Delete(context.Background(), store.DeleteRequest{Bucket: "b", Key: "multi"}); err != nil {
		t.Fatal(err)
	}
	delete(want, "multi")
	closeEngine(t, e)
	w.drives[1].gone, w.drives[4].gone = false, false
	e = w.open()
	defer closeEngine(t, e)
	for range 2 {
		readAll(t, e, want, nil)
		if _, err := get(e, "b", "multi"); !errors.Is(err, store.ErrNoSuchKey) {
			t.Errorf("get of what was deleted meanwhile = %v; want ErrNoSuchKey", err)
		}
		waitFor(t, "the return", func() bool { return e.Map().CountIn() == 6 && !e.Map().NeedsFill() })
	}
}

// TestLyingDriveIsTakenOut: what a drive lost is found, mended and counted; one that goes on is taken out, and the
// objects stay whole.
func TestLyingDriveIsTakenOut(t *testing.T) {
	w := newWard(t, rand.New(rand.NewPCG(1, 1)), erasure.Scheme{Data: 2, Parity: 2}, 6)
	defer w.tellIfFailed()
	log := w.configure
	w.configure = func(c *object.Config) { log(c); c.MaxDamagedShards = 5 }
	e := w.open()
	mustBucket(t, e, "b")
	w.all[2].fault.Add(blockdev.Rule{Kind: blockdev.WriteOp, Torn: true}) // every write is lost
	want := map[string][]byte{}
	for i := range 60 {
		key := fmt.Sprintf("k%d", i)
		want[key] = noise(uint64(i), 40<<10)
		mustPut(t, e, "b", key, want[key])
	}
	waitFor(t, "the drive out", func() bool {
		readAll(t, e, want, nil)
		return e.Map().Slots[2].State != placement.In
	})
	if n := e.Store(2).Stats().ChecksumErrors; n == 0 {
		t.Error("no checksum error was counted")
	}
	if n := e.Counters().MendedShards.Load(); n == 0 {
		t.Error("nothing was mended")
	}
	want["late"] = noise(99, 40<<10)
	mustPut(t, e, "b", "late", want["late"])
	readAll(t, e, want, nil)
	closeEngine(t, e)
	w.discharge()
	w.configure = log // with the usual limit
	// It is asked in once more. What was found damaged while it was out has not been moved away from it.
	e = w.open()
	defer closeEngine(t, e)
	waitFor(t, "the return", func() bool { return e.Map().CountIn() == 6 && !e.Map().NeedsFill() })
	e.StartScrub()
	waitFor(t, "scrub", scrubbed(e))
	checkPool(t, e)
	readAll(t, e, want, nil)
}
