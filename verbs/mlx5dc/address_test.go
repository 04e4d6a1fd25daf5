package mlx5dc

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"syscall"
	"testing"

	"github.com/millrace/millrace/verbs"
	"github.com/millrace/millrace/verbs/mlx5dc/libmlx5"
)

// counted makes address handles and counts them.
type counted struct {
	mu         sync.Mutex
	made, live int
	err        error
	wait       chan struct{}
}

func (c *counted) make(addressKey) (libmlx5.AH, error) {
	if c.wait != nil {
		<-c.wait
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return 0, c.err
	}
	c.made++
	c.live++
	return libmlx5.AH(c.made), nil
}

func (c *counted) end(libmlx5.AH) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.live--
}

func key(n byte) addressKey { return addressKey{gid: [16]byte{15: n}} }

func get(t *testing.T, s *addresses, n byte) *address {
	t.Helper()
	a, err := s.get(t.Context(), key(n))
	if err != nil {
		t.Fatalf("get(%d): %v", n, err)
	}
	return a
}

func TestAddressesAreSharedAndBounded(t *testing.T) {
	c := &counted{}
	s := newAddresses(2, c.make, c.end)
	a, same := get(t, s, 1), get(t, s, 1)
	b := get(t, s, 2)
	if a != same || c.made != 2 {
		t.Errorf("%d made; want one for each GID", c.made)
	}
	if _, err := s.get(t.Context(), key(3)); !errors.Is(err, verbs.ErrLimit) {
		t.Errorf("a third with both in use: %v; want ErrLimit", err)
	}
	s.put(b)
	s.put(get(t, s, 2)) // still kept
	if c.made != 2 {
		t.Errorf("%d made; want what was put back to be kept", c.made)
	}
	s.put(get(t, s, 3)) // in place of 2
	if c.made != 3 || c.live != 2 {
		t.Errorf("%d made, %d live; want 3 and 2", c.made, c.live)
	}
	s.put(a)
	s.put(same)
	s.put(get(t, s, 1))
	if c.made != 3 {
		t.Errorf("%d made; want the one that was used last to be kept", c.made)
	}
	s.close()
	if c.live != 0 {
		t.Errorf("%d live after close", c.live)
	}
}

func TestAddressIsForgotten(t *testing.T) {
	c := &counted{}
	s := newAddresses(8, c.make, c.end)
	old := get(t, s, 1)
	s.forget(old)
	fresh := get(t, s, 1)
	if fresh == old || c.made != 2 || c.live != 2 {
		t.Errorf("%d made, %d live; want a new one beside that in use", c.made, c.live)
	}
	s.put(old)
	if c.live != 1 {
		t.Errorf("%d live; want the old one gone with its last user", c.live)
	}
	s.put(fresh)
	s.close()
	if c.live != 0 {
		t.Errorf("%d live after close", c.live)
	}
}

func TestAddressFails(t *testing.T) {
	c := &counted{err: syscall.ETIMEDOUT}
	s := newAddresses(1, c.make, c.end)
	for range 3 { // an error is not kept, nor does it use up the limit
		if _, err := s.get(t.Context(), key(1)); !errors.Is(err, syscall.ETIMEDOUT) {
			t.Errorf("get: %v; want ETIMEDOUT", err)
		}
	}
	s.tasks.Wait()
	c.err = nil
	s.put(get(t, s, 1))
	s.close()
}

// TestAddressCancelled gives up while the kernel looks for the neighbour; the handle is kept for the next.
func TestAddressCancelled(t *testing.T) {
	c := &counted{wait: make(chan struct{})}
	s := newAddresses(1, c.make, c.end)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.get(ctx, key(1)); !errors.Is(err, context.Canceled) {
		t.Errorf("get: %v; want Canceled", err)
	}
	close(c.wait)
	s.put(get(t, s, 1))
	s.close()
	if c.made != 1 || c.live != 0 {
		t.Errorf("%d made, %d live; want 1 and 0", c.made, c.live)
	}
}

// TestPeerMoved: after a client did not answer, the way to it is found out anew.
func TestPeerMoved(t *testing.T) {
	b := newBench(t, Config{DCIs: 1})
	_, w := b.addTarget(clientGID(), 77, 100, both)
	c := b.dial(t, w)
	b.adapter.mu.Lock()
	b.targets[77].gid = netip.MustParseAddr("::ffff:192.0.2.8").As16()
	b.adapter.mu.Unlock()
	if err := verbs.NewRequester(b.info(), 1).Write(t.Context(), c, w, 0, [][]byte{b.mem.mem[:1]}, false); !errors.Is(err, verbs.ErrPeer) {
		t.Errorf("Write: %v; want ErrPeer", err)
	}
	<-c.Done()
	b.dial(t, w)
	b.adapter.mu.Lock()
	defer b.adapter.mu.Unlock()
	if b.madeHandles != 2 || len(b.handles) != 1 {
		t.Errorf("%d handles made, %d there; want 2, and the old one gone", b.madeHandles, len(b.handles))
	}
}
