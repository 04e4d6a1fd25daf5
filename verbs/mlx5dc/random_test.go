package mlx5dc

import (
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/verbs"
)

// TestRandom has many clients on few DCIs do good and bad transfers, give up, and come back. Every work request that was
// taken completes once, in order, and in the end all DCIs are there again.
func TestRandom(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for _, noReset := range []bool{false, true} {
		b := newBench(t, Config{DCIs: 3, SendDepth: 6})
		b.noReset = noReset
		var clients sync.WaitGroup
		for i := range uint32(12) {
			_, w := b.addTarget(clientGID(), 100+i, 1<<16, both)
			r := rand.New(rand.NewPCG(seed, uint64(i)))
			clients.Go(func() {
				for range 60 {
					b.client(t, r, w)
				}
			})
		}
		clients.Wait()
		// Those that are being mended come back.
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
			b.pool.mu.Lock()
			free, conns, queue := len(b.pool.free), len(b.pool.conns), len(b.pool.queue)
			b.pool.mu.Unlock()
			if free == 3 && conns == 0 && queue == 0 {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("%d DCIs are free, %d connections and %d waiting are left; want 3, 0, 0", free, conns, queue)
			}
		}
	}
}

// client makes a connection, posts on it until something fails or it has enough, and ends it.
func (b *bench) client(t *testing.T, r *rand.Rand, w verbs.Window) {
	c, err := b.pool.Dial(t.Context(), w.Endpoint)
	if err != nil {
		t.Errorf("Dial: %v", err)
		return
	}
	q := verbs.NewQueue(6)
	posted, taken := uint64(0), uint64(0)
	receive := func() {
		done := take(t, q)
		if done.ID != taken {
			t.Errorf("completion %d; want %d", done.ID, taken)
		}
		taken++
	}
	for n := r.IntN(40); n > 0; n-- {
		wr := b.write(w, posted, r.IntN(5000))
		if r.IntN(2) == 0 {
			wr.Op = verbs.OpRead
			wr.Local = nil // READs of several clients would write the same memory
		}
		if r.IntN(50) == 0 {
			wr.RKey, wr.Local = 1, [][]byte{b.mem.mem[:1]}
			wr.Op = verbs.OpWrite
		}
		switch err := c.Post(wr, q); {
		case err == nil:
			posted++
		case errors.Is(err, verbs.ErrQueueFull):
			receive()
		default: // it has ended
			n = 1
		}
	}
	if r.IntN(2) == 0 {
		for taken < posted {
			receive()
		}
	}
	_ = c.Close()
	for taken < posted {
		receive()
	}
	if q.Outstanding() != 0 {
		t.Errorf("%d are outstanding after all", q.Outstanding())
	}
}
