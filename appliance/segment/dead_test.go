package segment

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/millrace/millrace/appliance/erasure"
)

// mortal is a shard whose calls hang from an offset on, once its drive hangs; the drive is dead at once.
type mortal struct {
	*fakeShard
	hangFrom int64
	dead     chan struct{}
	once     sync.Once
	release  chan struct{}
}

func newMortal(s *fakeShard, hangFrom int64, release chan struct{}) *mortal {
	return &mortal{fakeShard: s, hangFrom: hangFrom, dead: make(chan struct{}), release: release}
}

func (m *mortal) Dead() <-chan struct{} { return m.dead }

func (m *mortal) hang() {
	m.once.Do(func() { close(m.dead) })
	<-m.release
}

func (m *mortal) ReadShard(off int64, bufs [][]byte) error {
	if off >= m.hangFrom {
		m.hang()
		for _, b := range bufs { // a late answer
			clear(b)
		}
		return nil
	}
	return m.fakeShard.ReadShard(off, bufs)
}

func (m *mortal) WriteAt(bufs [][]byte, off int64, crcs []uint64) error {
	if off < m.hangFrom {
		return m.fakeShard.WriteAt(bufs, off, crcs)
	}
	var sum byte
	m.hang()
	for _, b := range bufs { // the drive reads them at last
		for _, c := range b {
			sum ^= c
		}
	}
	_ = sum
	return errDrive
}

// Of shards on drives that hang, up to the parity are left behind by a write, which goes on without them.
func TestWriteLeavesDeadDrives(t *testing.T) {
	for _, s := range parseSchemes(t, "1+1", "4+2") {
		for _, size := range []int64{100 << 10, 5<<20 + 77} {
			for _, from := range []int64{0, 256 << 10} {
				for hung := 1; hung <= s.Parity+1; hung++ {
					r := newRig(t, 64<<20, Config{WindowBytes: 1 << 20})
					testWriteLeaves(t, r, r.geometry(s, size), from, hung)
				}
			}
		}
	}
}

func testWriteLeaves(t *testing.T, r *rig, g erasure.Geometry, from int64, hung int) {
	release := make(chan struct{})
	defer close(release)
	data := payload(g.SizeBytes, 3)
	shards := newShards(g)
	to := writers(shards)
	for j := range hung {
		to[j] = newMortal(shards[j], from, release)
	}
	res, err := r.Write(context.Background(), g, to, bytes.NewReader(data), nil)
	if from >= g.ShardBytes() {
		hung = 0
	}
	if hung > g.Scheme.Parity {
		if !errors.Is(err, ErrTooFewShards) || !errors.Is(err, ErrLeft) {
			t.Errorf("%v, %d hung: Write = %v; want ErrTooFewShards", g.Scheme, hung, err)
		}
		return
	}
	if err != nil || res.FailedShards() != hung {
		t.Fatalf("%v, %d hung: Write = %v, %d failed", g.Scheme, hung, err, res.FailedShards())
	}
	r.wantRange(g, readers(shards, 1<<hung-1), data, 0, g.SizeBytes)
}

// A read whose shards hang on dead drives makes up for them, or ends with an error when they are too many.
func TestReadLeavesDeadDrives(t *testing.T) {
	for _, s := range parseSchemes(t, "1+0", "1+1", "2+0", "4+2") {
		for _, size := range []int64{100 << 10, 5<<20 + 77} {
			for hung := 1; hung <= s.Parity+1; hung++ {
				for _, hedge := range []bool{true, false} {
					cfg := Config{WindowBytes: 1 << 20}
					if hedge {
						cfg.HedgeAfter = hedgeAfter
					}
					r := newRig(t, 64<<20, cfg)
					testReadLeaves(t, r, r.geometry(s, size), hung)
				}
			}
		}
	}
}

func testReadLeaves(t *testing.T, r *rig, g erasure.Geometry, hung int) {
	release := make(chan struct{})
	defer close(release)
	data := payload(g.SizeBytes, 3)
	shards := r.store(g, data)
	from := readers(shards, 0)
	for j := range hung {
		from[j] = newMortal(shards[j], 0, release)
	}
	if hung <= g.Scheme.Parity {
		r.wantRange(g, from, data, 0, g.SizeBytes)
		return
	}
	var got bytes.Buffer
	_, err := r.Read(context.Background(), g, from, 0, g.SizeBytes, &got)
	if !errors.Is(err, ErrTooFewShards) || !bytes.HasPrefix(data, got.Bytes()) {
		t.Errorf("%v, %d hung: Read = %v; want ErrTooFewShards", g.Scheme, hung, err)
	}
}

// Rebuild ends with an error when a drive hangs that it reads from or writes to.
func TestRebuildLeavesDeadDrives(t *testing.T) {
	for _, s := range parseSchemes(t, "1+2", "2+2") {
		r := newRig(t, 64<<20, Config{})
		g := r.geometry(s, 9<<20)
		release := make(chan struct{})
		shards := r.store(g, payload(g.SizeBytes, 3))
		from := readers(shards, 1)
		from[1] = newMortal(shards[1], 2<<20, release)
		fresh := newFakeShard(g)
		_, err := r.Rebuild(context.Background(), g, from, []int{0}, []ShardWriter{fresh})
		if !errors.Is(err, ErrLeft) {
			t.Errorf("%v: Rebuild from a hung drive = %v; want ErrLeft", s, err)
		}
		to := newMortal(newFakeShard(g), 0, release)
		_, err = r.Rebuild(context.Background(), g, readers(shards, 1), []int{0}, []ShardWriter{to})
		if !errors.Is(err, ErrLeft) {
			t.Errorf("%v: Rebuild to a hung drive = %v; want ErrLeft", s, err)
		}
		close(release)
	}
}
