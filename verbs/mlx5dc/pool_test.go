package mlx5dc

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/verbs"
	lib "github.com/millrace/millrace/verbs/ibverbs/libibverbs"
	"github.com/millrace/millrace/verbs/mlx5dc/libmlx5"
)

// TestMoreConnsThanDCIs has ten clients on two DCIs: each gets its turn, though one never stops asking.
func TestMoreConnsThanDCIs(t *testing.T) {
	b := newBench(t, Config{DCIs: 2, SendDepth: 8})
	stop := make(chan struct{})
	var greedy, polite sync.WaitGroup
	for i := range uint32(10) {
		there, w := b.addTarget(clientGID(), 100+i, 64<<10, both)
		c := b.dial(t, w)
		local := [][]byte{b.mem.mem[i<<16:][:64<<10]}
		req := verbs.NewRequester(verbs.DeviceInfo{MaxMessageBytes: 4 << 10, MaxSegments: 1, SendDepth: 8}, 8)
		if i < 2 {
			greedy.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					if err := req.Write(t.Context(), c, w, 0, local, false); err != nil {
						t.Errorf("greedy client: %v", err)
						return
					}
				}
			})
			continue
		}
		polite.Go(func() {
			for round := range 20 {
				copy(local[0], bytes.Repeat([]byte{byte(round), byte(i)}, 32<<10))
				if err := req.Write(t.Context(), c, w, 0, local, false); err != nil || !bytes.Equal(local[0], there.mem) {
					t.Errorf("client %d round %d: %v", i, round, err)
					return
				}
			}
		})
	}
	polite.Wait()
	close(stop)
	greedy.Wait()
}

// TestTurns has a client that never lets its connection run dry, and another that wants the only DCI too.
func TestTurns(t *testing.T) {
	b := newBench(t, Config{DCIs: 1})
	_, w := b.addTarget(clientGID(), 77, 1<<20, both)
	_, other := b.addTarget(clientGID(), 78, 1<<20, both)
	greedy, polite := b.dial(t, w), b.dial(t, other)
	defer b.stall()()
	q := verbs.NewQueue(16)
	post := func(c verbs.Conn, w verbs.Window, id uint64) {
		t.Helper()
		if err := c.Post(b.write(w, id, 10), q); err != nil {
			t.Fatal(err)
		}
	}
	post(greedy, w, 0)
	post(greedy, w, 1)
	post(polite, other, 100)
	for i := range uint64(4) {
		post(greedy, w, 2+i)
		b.step()
		if done := take(t, q); done.ID == 100 {
			if i != 2 {
				t.Errorf("after %d others; want the two that the DCI had already", i)
			}
			return
		}
	}
	t.Error("the second client does not get its turn")
}

// TestAllocatesNothing: an operation costs no memory of Go's.
func TestAllocatesNothing(t *testing.T) {
	b := newBench(t, Config{DCIs: 1})
	_, w := b.addTarget(clientGID(), 77, 1<<20, both)
	conn := b.dial(t, w)
	b.pool.host.MLX5.Post = func(*libmlx5.DCI, *libmlx5.Work) error { return nil }
	q := verbs.NewQueue(2)
	wr := b.write(w, 1, 4096)
	n := testing.AllocsPerRun(100, func() {
		if err := conn.Post(wr, q); err != nil {
			t.Fatal(err)
		}
		b.pool.mu.Lock()
		x := b.pool.dcis[0]
		b.pool.take(&lib.WC{WRID: x.workID(x.conn.head)})
		b.pool.mu.Unlock()
		if done, ok := q.Poll(); !ok || done.Err != nil {
			t.Fatalf("completion %+v, %v", done, ok)
		}
	})
	if n != 0 {
		t.Errorf("%v allocations for an operation; want none", n)
	}
}

// TestStaleCompletion: what a DCI had before it was reset is not taken for what it has now.
func TestStaleCompletion(t *testing.T) {
	b := newBench(t, Config{DCIs: 1})
	there, w := b.addTarget(clientGID(), 77, 1<<20, both)
	first := b.dial(t, w)
	q := verbs.NewQueue(8)
	bad := b.write(w, 1, 10)
	bad.RKey++
	if err := first.Post(bad, q); err != nil {
		t.Fatal(err)
	}
	take(t, q)
	<-first.Done()
	second := b.dial(t, w)
	resume := b.stall()
	b.mem.mem[0] = 42
	if err := second.Post(b.write(w, 2, 10), q); err != nil {
		t.Fatal(err)
	}
	b.adapter.mu.Lock()
	b.adapter.complete(lib.WC{WRID: 0}) // DCI 0, before any reset, the first of its connection
	b.adapter.mu.Unlock()
	for seen := false; !seen; time.Sleep(time.Millisecond) {
		b.adapter.mu.Lock()
		seen = len(b.cqes) == 0 && b.armed
		b.adapter.mu.Unlock()
	}
	b.pool.mu.Lock()
	if n := len(b.pool.free); n != 0 {
		t.Error("the DCI counts as free")
	}
	b.pool.mu.Unlock()
	if done, ok := q.Poll(); ok {
		t.Errorf("completion %+v before anything was done", done)
	}
	resume()
	if done := take(t, q); done.Err != nil || done.ID != 2 || there.mem[0] != 42 {
		t.Errorf("completion %+v; want the second", done)
	}
}

// TestCancel ends a transfer that the device does not get on with.
func TestCancel(t *testing.T) {
	for _, mute := range []bool{false, true} {
		patience := time.Minute
		if mute {
			patience = 50 * time.Millisecond
		}
		b := newBench(t, Config{DCIs: 1, FlushTimeout: patience})
		_, w := b.addTarget(clientGID(), 77, 1<<20, both)
		_, other := b.addTarget(clientGID(), 78, 1<<20, both)
		c, waiting := b.dial(t, w), b.dial(t, other)
		resume := b.stall()
		b.adapter.mu.Lock()
		b.mute = mute
		b.adapter.mu.Unlock()
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(5*time.Millisecond, cancel)
		err := verbs.NewRequester(b.info(), 4).Write(ctx, c, w, 0, [][]byte{b.mem.mem[:1<<20]}, false)
		if !errors.Is(err, context.Canceled) || !errors.Is(c.Err(), verbs.ErrClosed) {
			t.Errorf("mute %v: Write: %v, then %v; want Canceled and ErrClosed", mute, err, c.Err())
		}
		b.mem.mu.Lock()
		if b.mem.held != 0 {
			t.Errorf("mute %v: memory is held after the return", mute)
		}
		b.mem.mu.Unlock()
		b.adapter.mu.Lock()
		if !mute && b.flushed == 0 {
			t.Error("nothing was flushed")
		}
		b.adapter.mu.Unlock()
		resume()
		if err := verbs.NewRequester(b.info(), 4).Write(t.Context(), waiting, other, 0, [][]byte{b.mem.mem[:10]}, false); err != nil {
			t.Errorf("mute %v: the next client: %v", mute, err)
		}
	}
}

// TestCloseWhileWaiting ends a connection whose work requests have not got a DCI yet.
func TestCloseWhileWaiting(t *testing.T) {
	b := newBench(t, Config{DCIs: 1})
	_, w := b.addTarget(clientGID(), 77, 1<<20, both)
	_, other := b.addTarget(clientGID(), 78, 1<<20, both)
	c, waiting := b.dial(t, w), b.dial(t, other)
	resume := b.stall()
	q := verbs.NewQueue(8)
	for _, conn := range []verbs.Conn{c, waiting} {
		if err := conn.Post(b.write(w, 5, 10), q); err != nil {
			t.Fatal(err)
		}
	}
	if err := waiting.Close(); err != nil {
		t.Fatal(err)
	}
	if done := take(t, q); !errors.Is(done.Err, verbs.ErrClosed) {
		t.Errorf("completion %+v; want ErrClosed", done)
	}
	resume()
	if done := take(t, q); done.Err != nil || done.Bytes != 10 {
		t.Errorf("completion %+v of the other; want it done", done)
	}
}

// TestLosesAllDCIs: a device that makes no more DCIs refuses, and lets nobody wait for ever.
func TestLosesAllDCIs(t *testing.T) {
	b := newBench(t, Config{DCIs: 1})
	_, w := b.addTarget(clientGID(), 77, 1<<20, both)
	c, waiting := b.dial(t, w), b.dial(t, w)
	b.adapter.mu.Lock()
	b.noReset, b.noCreate = true, true
	b.adapter.mu.Unlock()
	resume := b.stall()
	q := verbs.NewQueue(8)
	bad := b.write(w, 1, 10)
	bad.RKey++
	if err := errors.Join(c.Post(bad, q), waiting.Post(b.write(w, 2, 10), q)); err != nil {
		t.Fatal(err)
	}
	resume()
	if first, second := take(t, q), take(t, q); !errors.Is(first.Err, verbs.ErrAccess) || !errors.Is(second.Err, syscall.ENOMEM) {
		t.Errorf("completions %v and %v; want the refused key, and what the device says", first.Err, second.Err)
	}
	if _, err := b.pool.Dial(t.Context(), w.Endpoint); !errors.Is(err, verbs.ErrUnreachable) {
		t.Errorf("Dial: %v; want ErrUnreachable", err)
	}
}

func TestPostFails(t *testing.T) {
	b := newBench(t, Config{DCIs: 1})
	_, w := b.addTarget(clientGID(), 77, 1<<20, both)
	c := b.dial(t, w)
	b.adapter.mu.Lock()
	b.postErr = failed("ibv_wr_complete", syscall.ENOMEM)
	b.adapter.mu.Unlock()
	q := verbs.NewQueue(8)
	if err := c.Post(b.write(w, 1, 10), q); err != nil {
		t.Fatal(err)
	}
	if done := take(t, q); !errors.Is(done.Err, syscall.ENOMEM) {
		t.Errorf("completion %+v; want what the library says", done)
	}
}

func TestFail(t *testing.T) {
	b := newBench(t, Config{DCIs: 1, FlushTimeout: 20 * time.Millisecond})
	_, w := b.addTarget(clientGID(), 77, 1<<20, both)
	c := b.dial(t, w)
	defer b.stall()()
	b.adapter.mu.Lock()
	b.mute, b.noReset, b.noCreate = true, true, true // a device that is gone gives nothing back
	b.adapter.mu.Unlock()
	q := verbs.NewQueue(8)
	if err := c.Post(b.write(w, 1, 10), q); err != nil {
		t.Fatal(err)
	}
	b.pool.Fail(errors.New("the device is gone"))
	if done := take(t, q); !errors.Is(done.Err, verbs.ErrPeer) {
		t.Errorf("completion %+v; want ErrPeer", done)
	}
	<-c.Done()
	if _, err := b.pool.Dial(t.Context(), w.Endpoint); !errors.Is(err, verbs.ErrUnreachable) {
		t.Errorf("Dial: %v; want ErrUnreachable", err)
	}
}

func TestCloseInMidTransfer(t *testing.T) {
	b := newBench(t, Config{DCIs: 2})
	q := verbs.NewQueue(64)
	defer b.stall()()
	for i := range uint32(4) {
		_, w := b.addTarget(clientGID(), 77+i, 1<<20, both)
		c := b.dial(t, w)
		for range 3 {
			if err := c.Post(b.write(w, 1, 10), q); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := b.pool.Close(); err != nil {
		t.Fatal(err)
	}
	for range 12 {
		if done := take(t, q); !errors.Is(done.Err, verbs.ErrClosed) {
			t.Errorf("completion %+v; want ErrClosed", done)
		}
	}
	if _, err := b.pool.Dial(t.Context(), verbs.Endpoint{GID: clientGID(), QPN: 77}); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("Dial: %v; want ErrClosed", err)
	}
}
