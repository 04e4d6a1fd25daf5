package segment

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/minio/crc64nvme"

	"github.com/millrace/millrace/appliance/arena"
	"github.com/millrace/millrace/appliance/erasure"
)

// Shards that are not there or fail at any point of the write: the others are right, so is the CRC.
func TestWriteWithFailingShards(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	r := newRig(t, 64<<20, Config{WindowBytes: 1 << 20})
	for range 200 {
		s := erasure.Scheme{Data: 1 + rng.IntN(8), Parity: rng.IntN(erasure.MaxParity + 1)}
		g := r.geometry(s, 1+rng.Int64N(int64(6<<20)>>rng.IntN(8)))
		data := payload(g.SizeBytes, rng.Uint64())
		shards := newShards(g)
		bad := rng.IntN(s.Shards() + 1)
		for _, j := range rng.Perm(len(shards))[:bad] {
			if rng.IntN(3) == 0 {
				shards[j] = nil
			} else {
				shards[j].failWriteAt = rng.Int64N(g.ShardBytes())
			}
		}
		res, err := r.Write(context.Background(), g, writers(shards), bytes.NewReader(data), nil)
		r.wantIdle()
		if bad > s.Parity {
			if !errors.Is(err, ErrTooFewShards) {
				t.Fatalf("%v with %d bad shards: %v; want ErrTooFewShards", s, bad, err)
			}
			continue
		}
		if err != nil || res.FailedShards() != bad || res.CRC64NVME != crc64nvme.Checksum(data) {
			t.Fatalf("%+v with %d bad shards: %v, failed %v", g, bad, err, res.Failed)
		}
		var lost uint
		for j, err := range res.Failed {
			if err != nil {
				lost |= 1 << j
			}
		}
		r.wantRange(g, readers(shards, lost), data, 0, g.SizeBytes)
	}
}

func TestBodyTrouble(t *testing.T) {
	r := newRig(t, 32<<20, Config{WindowBytes: 1 << 20})
	errBody := errors.New("signature of the chunk does not match")
	ctx := context.Background()
	for _, size := range []int64{1, 100 << 10, 2 << 20, 7<<20 + 1} {
		g := r.geometry(erasure.Scheme{Data: 4, Parity: 2}, size)
		data := payload(size, 1)
		for _, have := range []int64{0, size / 3, size - 1} {
			_, err := r.Write(ctx, g, writers(newShards(g)), bytes.NewReader(data[:have]), nil)
			if err != ErrBodyShort {
				t.Errorf("Write of %d bytes from %d = %v; want ErrBodyShort", size, have, err)
			}
			body := io.MultiReader(bytes.NewReader(data[:have]), iotest.ErrReader(errBody))
			if _, err := r.Write(ctx, g, writers(newShards(g)), body, nil); err != errBody {
				t.Errorf("Write of %d bytes, error after %d = %v; want the body's", size, have, err)
			}
			r.wantIdle()
		}
		if _, err := r.Write(ctx, g, writers(newShards(g)), emptyReader{}, nil); err != io.ErrNoProgress {
			t.Errorf("Write from a body that gives nothing = %v", err)
		}
	}
}

type emptyReader struct{}

func (emptyReader) Read([]byte) (int, error) { return 0, nil }

func TestBadArguments(t *testing.T) {
	r := newRig(t, 8<<20, Config{})
	ctx := context.Background()
	g := r.geometry(erasure.Scheme{Data: 2, Parity: 1}, 100)
	if _, err := r.Write(ctx, g, make([]ShardWriter, 2), nil, nil); err == nil {
		t.Error("Write with 2 shards: no error")
	}
	if _, err := r.Write(ctx, erasure.Geometry{Scheme: g.Scheme}, make([]ShardWriter, 3), nil, nil); err == nil {
		t.Error("Write of no bytes: no error")
	}
	shards := readers(r.store(g, payload(100, 1)), 0)
	for _, at := range [][2]int64{{-1, 1}, {0, -1}, {0, 101}, {101, 0}, {50, 1<<63 - 1}} {
		if _, err := r.Read(ctx, g, shards, at[0], at[1], io.Discard); err == nil {
			t.Errorf("Read %d+%d of 100 bytes: no error", at[0], at[1])
		}
	}
	if _, err := r.Read(ctx, g, shards, 100, 0, nil); err != nil {
		t.Errorf("Read of nothing = %v", err)
	}
	if _, err := r.Rebuild(ctx, g, shards, []int{3}, make([]ShardWriter, 1)); err == nil {
		t.Error("Rebuild of shard 3 of 3: no error")
	}
}

func TestClientGone(t *testing.T) {
	r := newRig(t, 16<<20, Config{WindowBytes: 1 << 20})
	g := r.geometry(erasure.Scheme{Data: 4, Parity: 2}, 8<<20)
	shards := readers(r.store(g, payload(8<<20, 1)), 0)
	errGone := errors.New("connection reset")
	for _, after := range []int{0, 1, 3, 7} {
		w := &failingWriter{left: after, err: errGone}
		if _, err := r.Read(context.Background(), g, shards, 0, 8<<20, w); err != errGone {
			t.Errorf("Read = %v; want the writer's error", err)
		}
	}
	if _, err := r.Read(context.Background(), g, shards, 0, 8<<20, &failingWriter{}); err != io.ErrShortWrite {
		t.Errorf("Read to a short writer = %v", err)
	}
}

type failingWriter struct {
	left int
	err  error
}

func (w *failingWriter) Write(p []byte) (int, error) {
	if w.left--; w.left < 0 {
		return len(p) / 2, w.err
	}
	return len(p), nil
}

func TestCancel(t *testing.T) {
	r := newRig(t, 16<<20, Config{WindowBytes: 1 << 20})
	g := r.geometry(erasure.Scheme{Data: 4, Parity: 2}, 8<<20)
	data := payload(8<<20, 1)
	shards := r.store(g, data)
	for _, at := range []int64{0, 1 << 20, 4<<20 + 1} {
		ctx, cancel := context.WithCancel(context.Background())
		trip := &tripwire{left: at, trip: cancel}
		if _, err := r.Read(ctx, g, readers(shards, 0), 0, 8<<20, trip); !errors.Is(err, context.Canceled) {
			t.Errorf("Read cancelled at %d = %v", at, err)
		}
		ctx, cancel = context.WithCancel(context.Background())
		digest := func(p []byte) { (&tripwire{trip: cancel}).Write(p) }
		_, err := r.Write(ctx, g, writers(newShards(g)), bytes.NewReader(data), digest)
		if !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled Write = %v", err)
		}
		_, err = r.Rebuild(ctx, g, readers(shards, 1), []int{0}, []ShardWriter{newFakeShard(g)})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled Rebuild = %v", err)
		}
	}
	// A read that waits for a drive does not wait any longer.
	shards[1].gate = make(chan struct{})
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
	defer cancel()
	if _, err := r.Read(ctx, g, readers(shards, 0), 0, 8<<20, io.Discard); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Read of a hanging drive = %v", err)
	}
	if r.arena.InUseBytes() == 0 {
		t.Error("the memory of a call that is still running was given back")
	}
	close(shards[1].gate)
}

type tripwire struct {
	left int64
	trip func()
}

func (w *tripwire) Write(p []byte) (int, error) {
	if w.left -= int64(len(p)); w.left <= 0 {
		w.trip()
	}
	return len(p), nil
}

const hedgeAfter = 20 * time.Millisecond

// A shard that does not answer is made up for, and scribbles only where nobody looks.
func TestHedging(t *testing.T) {
	for _, s := range parseSchemes(t, "1+1", "2+2", "4+2") {
		for _, n := range []int64{1000, 9 << 20} {
			for _, others := range []bool{false, true} {
				r := newRig(t, 64<<20, Config{HedgeAfter: hedgeAfter, WindowBytes: 1 << 20})
				g := r.geometry(s, 9<<20)
				data := payload(g.SizeBytes, 1)
				shards := r.store(g, data)
				gate := make(chan struct{})
				shards[0].gate = gate
				if others && s.Parity > 1 { // another one fails meanwhile
					shards[1].failReadAt = 0
				}
				w := &openGate{gate: gate}
				report, err := r.Read(context.Background(), g, readers(shards, 0), 0, n, w)
				if err != nil || !bytes.Equal(w.got.Bytes(), data[:n]) {
					t.Fatalf("%v, %d bytes: %v, or wrong bytes", s, n, err)
				}
				if len(report.Slow) == 0 || report.Slow[0] != 0 {
					t.Errorf("%v, %d bytes: report %+v; want shard 0 slow", s, n, report)
				}
			}
		}
	}
}

// openGate lets the slow answer come in when the first bytes from after on are delivered.
type openGate struct {
	gate  chan struct{}
	after int64
	once  sync.Once
	got   bytes.Buffer
}

func (w *openGate) Write(p []byte) (int, error) {
	if int64(w.got.Len()) >= w.after {
		w.once.Do(func() {
			close(w.gate)
			time.Sleep(5 * time.Millisecond)
		})
	}
	return w.got.Write(p)
}

// With a slow shard and no other left, the slow one is asked again.
func TestSlowShardIsTheLastResort(t *testing.T) {
	for _, s := range parseSchemes(t, "1+1", "2+1", "4+1") {
		r := newRig(t, 64<<20, Config{HedgeAfter: hedgeAfter})
		g := r.geometry(s, 9<<20)
		data := payload(g.SizeBytes, 1)
		shards := r.store(g, data)
		shards[0].gate = make(chan struct{})
		shards[s.Data].failReadAt = g.ShardBytes() / 2 // the parity fails once it is needed
		report := r.wantRange(g, readers(shards, 0), data, 0, g.SizeBytes)
		if len(report.Slow) != 1 || len(report.Failed) != 1 {
			t.Errorf("%v: report = %+v", s, report)
		}
		close(shards[0].gate)
	}
}

// paced is a shard that says whether it is slow.
type paced struct {
	*fakeShard
	slow bool
	took atomic.Int64
}

func (p *paced) Took(time.Duration) { p.took.Add(1) }
func (p *paced) Slow() bool         { return p.slow }

// A shard that says that it is slow is read only if the others are too few.
func TestSlowShardIsSpared(t *testing.T) {
	for _, s := range parseSchemes(t, "1+1", "2+2", "4+2") {
		for lost := range s.Parity + 1 {
			r := newRig(t, 64<<20, Config{WindowBytes: 1 << 20})
			g := r.geometry(s, 9<<20)
			data := payload(g.SizeBytes, 1)
			from := readers(r.store(g, data), 1<<lost-1)
			slow := &paced{fakeShard: from[lost].(*fakeShard), slow: true}
			good := &paced{fakeShard: from[s.Shards()-1].(*fakeShard)}
			if from[lost] = slow; slow.fakeShard != good.fakeShard {
				from[s.Shards()-1] = good
			}
			r.wantRange(g, from, data, 0, g.SizeBytes)
			needed := lost == s.Parity
			if asked := slow.reads > 0; asked != needed || asked != (slow.took.Load() > 0) {
				t.Errorf("%v, %d lost: slow shard asked %d times, told %d; want some: %v", s, lost, slow.reads, slow.took.Load(), needed)
			}
		}
	}
}

// A degraded read in an arena that has no memory left for the scratch gives back its own and gets through.
func TestStarvedArena(t *testing.T) {
	for _, s := range parseSchemes(t, "2+2", "4+2", "8+4") {
		r := newRig(t, 8<<20, Config{})
		g := r.geometry(s, 12<<20)
		data := payload(g.SizeBytes, 1)
		shards := newShards(g)
		if _, err := r.Write(context.Background(), r.geometry(s, 1<<20), writers(newShards(r.geometry(s, 1<<20))),
			bytes.NewReader(data[:1<<20]), nil); err != nil {
			t.Fatal(err)
		}
		big := newRig(t, 64<<20, Config{})
		copy(shards, big.store(g, data))
		blocker, err := r.arena.AcquireN(context.Background(), 4, arena.MaxBytes) // the reads get 4 MiB: no scratch
		if err != nil {
			t.Fatal(err)
		}
		shards[1].failReadAt = 1 << 20
		done := make(chan struct{})
		go func() {
			defer close(done)
			for r.arena.Stats().Waiters == 0 {
				time.Sleep(100 * time.Microsecond)
			}
			blocker.Release()
		}()
		r.wantRange(g, readers(shards, 0), data, 0, g.SizeBytes)
		<-done
		r.wantIdle()
	}
}

// As above, but the shard is slow: its call still holds a window, and writes to it late.
func TestStarvedByASlowShard(t *testing.T) {
	for _, s := range parseSchemes(t, "1+1", "2+2", "4+2") {
		for window := range int64(3) {
			r := newRig(t, 10<<20, Config{HedgeAfter: hedgeAfter})
			g := r.geometry(s, 6<<20)
			data := payload(g.SizeBytes, 1)
			shards := newRig(t, 16<<20, Config{}).store(g, data)
			blocker, err := r.arena.AcquireN(context.Background(), 6, arena.MaxBytes)
			if err != nil {
				t.Fatal(err)
			}
			shards[0].gate, shards[0].gateFrom = make(chan struct{}), window*(2<<20)/int64(s.Data)
			var over atomic.Bool
			done := make(chan struct{})
			go func() {
				defer close(done)
				for r.arena.Stats().Waiters == 0 && !over.Load() {
					time.Sleep(100 * time.Microsecond)
				}
				blocker.Release()
			}()
			w := &openGate{gate: shards[0].gate, after: window * 2 << 20}
			_, err = r.Read(context.Background(), g, readers(shards, 0), 0, g.SizeBytes, w)
			if err != nil || !bytes.Equal(w.got.Bytes(), data) {
				t.Errorf("%v, slow in window %d: %v, or wrong bytes", s, window, err)
			}
			over.Store(true)
			<-done
		}
	}
}

func TestArenaTooSmall(t *testing.T) {
	r := newRig(t, 1<<20, Config{})
	g := r.geometry(erasure.Scheme{Data: 4, Parity: 2}, 8<<20)
	_, err := r.Write(context.Background(), g, writers(newShards(g)), bytes.NewReader(nil), nil)
	if !errors.Is(err, arena.ErrTooLarge) {
		t.Errorf("Write = %v; want ErrTooLarge", err)
	}
	_, err = r.Read(context.Background(), g, readers(newShards(g), 0), 0, 8<<20, io.Discard)
	if !errors.Is(err, arena.ErrTooLarge) {
		t.Errorf("Read = %v; want ErrTooLarge", err)
	}
}

// Many requests in a small arena: none is stuck, all are right.
func TestConcurrentRequests(t *testing.T) {
	r := newRig(t, 12<<20, Config{WindowBytes: 1 << 20})
	g := r.geometry(erasure.Scheme{Data: 4, Parity: 2}, 5<<20)
	data := payload(g.SizeBytes, 1)
	shards := r.store(g, data)
	shards[0].failReadAt = 700 << 10
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 6 {
				if (i+j)%3 == 0 {
					res, err := r.Write(context.Background(), g, writers(newShards(g)), bytes.NewReader(data), nil)
					if err != nil || res.FailedShards() > 0 {
						t.Error(err, res)
					}
					continue
				}
				var got bytes.Buffer
				_, err := r.Read(context.Background(), g, readers(shards, 0), 99, 4<<20, &got)
				if err != nil || !bytes.Equal(got.Bytes(), data[99:99+4<<20]) {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	r.wantIdle()
}
