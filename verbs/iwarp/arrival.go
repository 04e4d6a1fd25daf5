package iwarp

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/millrace/millrace/verbs"
)

// arrivals counts the bytes that peers have written through a binding: those whose FPDU was whole and had the
// right CRC. With it an owner can tell by itself that a transfer is done, and the peer needs no fence.
type arrivals struct {
	bytes  atomic.Int64
	lost   atomic.Bool // a connection that wrote here has ended
	waiter atomic.Pointer[waiter]
}

// waiter waits for n bytes.
type waiter struct {
	n    int64
	wake chan struct{} // holds one
}

func (a *arrivals) add(n int64) {
	total := a.bytes.Add(n)
	if w := a.waiter.Load(); w != nil && total >= w.n {
		w.tell()
	}
}

// lose says that no more bytes come by the connection that wrote last.
func (a *arrivals) lose() {
	a.lost.Store(true)
	if w := a.waiter.Load(); w != nil {
		w.tell()
	}
}

func (w *waiter) tell() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Placed returns when peers have written n bytes through the binding, each byte written being counted. It fails
// with verbs.ErrPeer when the connection that wrote here has ended before. One goroutine may wait at a time.
func (b *binding) Placed(ctx context.Context, n int64) error {
	a := &b.arrivals
	if a.bytes.Load() >= n {
		return nil
	}
	w := &waiter{n: n, wake: make(chan struct{}, 1)}
	a.waiter.Store(w)
	for a.bytes.Load() < n {
		if a.lost.Load() && a.bytes.Load() < n {
			return b.region.dev.fault("wait", fmt.Errorf("%d of %d bytes have come: %w", a.bytes.Load(), n, verbs.ErrPeer))
		}
		select {
		case <-w.wake:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
