package arena

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

func newTest(t testing.TB, chunks int64, wait time.Duration) *Arena {
	t.Helper()
	a, err := New(Config{SizeBytes: chunks * MaxBytes, WaitLimit: wait, Strict: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	return a
}

func mustAcquire(t testing.TB, a *Arena, sizes ...int) *Buffers {
	t.Helper()
	b, err := a.Acquire(context.Background(), sizes...)
	if err != nil {
		t.Fatalf("Acquire(%v) = %v", sizes, err)
	}
	return b
}

func TestClasses(t *testing.T) {
	for size, want := range map[int]uint8{
		1: 0, MinBytes: 0, MinBytes + 1: 1, 128 << 10: 1, 128<<10 + 1: 2, 512 << 10: 3, 512<<10 + 1: 4, MaxBytes: 4,
	} {
		if got := classOf(size); got != want {
			t.Errorf("classOf(%d) = %d; want %d", size, got, want)
		}
	}
}

func TestNewTooSmall(t *testing.T) {
	if _, err := New(Config{SizeBytes: MaxBytes - 1}); err == nil {
		t.Error("New with less than a chunk: no error")
	}
}

func TestRequestsThatNeverFit(t *testing.T) {
	a := newTest(t, 2, 0)
	for _, sizes := range [][]int{{0}, {-1}, {MaxBytes + 1}, {MaxBytes, MaxBytes, 1}} {
		if _, err := a.Acquire(context.Background(), sizes...); !errors.Is(err, ErrTooLarge) {
			t.Errorf("Acquire(%v) = %v; want ErrTooLarge", sizes, err)
		}
		if b := a.TryAcquire(sizes...); b != nil {
			t.Errorf("TryAcquire(%v) gave buffers", sizes)
		}
	}
	if _, err := a.AcquireN(context.Background(), 3, MaxBytes); !errors.Is(err, ErrTooLarge) {
		t.Errorf("AcquireN = %v; want ErrTooLarge", err)
	}
}

// From an empty arena, any request that fits by its sum fits, in any order of sizes.
func TestEmptyArenaFillsUp(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	a := newTest(t, 4, 0)
	for range 2000 {
		var sizes []int
		for left := 4 * MaxBytes; left > 0; {
			size := MinBytes << rng.IntN(topClass+1)
			if size <= left {
				sizes = append(sizes, size)
				left -= size
			}
		}
		b := a.TryAcquire(sizes...)
		if b == nil {
			t.Fatalf("seed %d: %v does not fit", seed, sizes)
		}
		if got := a.InUseBytes(); got != a.CapacityBytes() {
			t.Fatalf("seed %d: in use %d", seed, got)
		}
		b.Release()
	}
}

// Random requests against a byte map: no block is in two hands.
func TestBuffersAreDisjoint(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	a := newTest(t, 8, 0)
	owner := make([]int, 8*blocksPerChunk)
	held := map[int]*Buffers{}
	mark := func(b *Buffers, from, to int) {
		for i := range b.Len() {
			p := b.At(i)
			at := int(addressOf(p)-addressOf(a.mem)) / MinBytes
			if addressOf(p)%AlignBytes != 0 || cap(p) < len(p) || at%(cap(p)/MinBytes) != 0 {
				t.Fatalf("buffer at block %d, len %d, cap %d", at, len(p), cap(p))
			}
			for j := range cap(p) / MinBytes {
				if owner[at+j] != from {
					t.Fatalf("block %d is owned by %d; want %d", at+j, owner[at+j], from)
				}
				owner[at+j] = to
			}
		}
	}
	for id := 1; id < 20000; id++ {
		if b := a.TryAcquire(randomSizes(rng)...); b != nil {
			mark(b, 0, id)
			held[id] = b
		}
		for len(held) > rng.IntN(12) {
			for k, b := range held {
				if b.Len() > 1 && rng.IntN(2) == 0 {
					head := b.Split(1)
					mark(head, k, 0)
					head.Release()
				}
				mark(b, k, 0)
				b.Release()
				delete(held, k)
				break
			}
		}
	}
	for k, b := range held {
		mark(b, k, 0)
		b.Release()
	}
	if got := a.InUseBytes(); got != 0 {
		t.Errorf("in use at the end: %d", got)
	}
}

func randomSizes(rng *rand.Rand) []int {
	sizes := make([]int, 1+rng.IntN(12))
	for i := range sizes {
		sizes[i] = 1 + rng.IntN(MaxBytes>>rng.IntN(5))
	}
	return sizes
}

func TestReuseIsLastInFirstOut(t *testing.T) {
	a := newTest(t, 64, 0)
	for range 1000 {
		b := mustAcquire(t, a, MaxBytes, 300<<10, MinBytes)
		for i := range b.Len() {
			if at := addressOf(b.At(i)) - addressOf(a.mem); at >= 3*MaxBytes {
				t.Fatalf("buffer %d at offset %d: memory wanders", i, at)
			}
		}
		b.Release()
	}
}

func TestWaitersAreServedInOrder(t *testing.T) {
	a := newTest(t, 2, 0)
	first := mustAcquire(t, a, MaxBytes, MinBytes)
	var mu sync.Mutex
	var order []int
	var wg sync.WaitGroup
	for i, size := range []int{MaxBytes, MinBytes, MinBytes} { // the small ones would fit at once
		wg.Go(func() {
			b, err := a.Acquire(context.Background(), size, size)
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			order = append(order, i)
			mu.Unlock()
			b.Release()
		})
		for a.Stats().Waiters != i+1 {
			time.Sleep(100 * time.Microsecond)
		}
	}
	if a.TryAcquire(MinBytes) != nil {
		t.Error("TryAcquire overtook the waiters")
	}
	first.Release()
	wg.Wait()
	if order[0] != 0 {
		t.Errorf("order = %v; want the large request first", order)
	}
	if s := a.Stats(); s.Waits != 3 || s.PeakBytes != 2*MaxBytes || s.InUseBytes != 0 {
		t.Errorf("stats = %+v", s)
	}
}

func TestWaitEnds(t *testing.T) {
	a := newTest(t, 1, 5*time.Millisecond)
	all := mustAcquire(t, a, MaxBytes)
	if _, err := a.Acquire(context.Background(), 1); !errors.Is(err, ErrOverloaded) {
		t.Errorf("Acquire = %v; want ErrOverloaded", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := a.Acquire(ctx, 1); !errors.Is(err, context.Canceled) && !errors.Is(err, ErrOverloaded) {
		t.Errorf("Acquire = %v; want the context's error", err)
	}
	all.Release()
	mustAcquire(t, a, MaxBytes).Release()
	if s := a.Stats(); s.Waiters != 0 || s.Refused == 0 {
		t.Errorf("stats = %+v", s)
	}
}

func TestQueueIsBounded(t *testing.T) {
	a, err := New(Config{SizeBytes: MaxBytes, MaxWaiters: 1})
	if err != nil {
		t.Fatal(err)
	}
	all := mustAcquire(t, a, MaxBytes)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if b, err := a.Acquire(context.Background(), 1); err == nil {
			b.Release()
		}
	}()
	for a.Stats().Waiters != 1 {
		time.Sleep(100 * time.Microsecond)
	}
	if _, err := a.Acquire(context.Background(), 1); !errors.Is(err, ErrOverloaded) {
		t.Errorf("Acquire = %v; want ErrOverloaded", err)
	}
	if a.Close() == nil {
		t.Error("Close with buffers handed out: no error")
	}
	all.Release()
	<-done
	if err := a.Close(); err != nil {
		t.Error(err)
	}
}

func TestDoubleRelease(t *testing.T) {
	loose, err := New(Config{SizeBytes: MaxBytes})
	if err != nil {
		t.Fatal(err)
	}
	b := mustAcquire(t, loose, 1)
	b.Release()
	b.Release()
	if got := loose.InUseBytes(); got != 0 {
		t.Errorf("in use = %d; want 0", got)
	}
	b = mustAcquire(t, newTest(t, 1, 0), 1)
	b.Release()
	defer func() {
		if recover() == nil {
			t.Error("second Release in a strict arena: no panic")
		}
	}()
	b.Release()
}

func TestConcurrent(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	a := newTest(t, 4, 0)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(seed, uint64(g)))
			for range 500 {
				ctx, cancel := context.WithCancel(context.Background())
				if rng.IntN(8) == 0 {
					go cancel()
				}
				b, err := a.AcquireN(ctx, 1+rng.IntN(4), 1+rng.IntN(MaxBytes))
				cancel()
				if err != nil {
					continue
				}
				b.At(0)[0] = byte(g)
				b.Release()
			}
		})
	}
	wg.Wait()
	if s := a.Stats(); s.InUseBytes != 0 || s.Waiters != 0 {
		t.Errorf("stats = %+v", s)
	}
}

func BenchmarkAcquireRelease(b *testing.B) {
	a := newTest(b, 1024, 0)
	ctx := context.Background()
	b.Run("one", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			x, _ := a.Acquire(ctx, MinBytes)
			x.Release()
		}
	})
	b.Run("six", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			x, _ := a.AcquireN(ctx, 6, MaxBytes)
			x.Release()
		}
	})
}
