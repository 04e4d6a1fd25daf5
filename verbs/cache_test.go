package verbs_test

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/millrace/millrace/verbs"
)

// fakeConn is a connection that only lives and dies.
type fakeConn struct {
	err    error
	closed bool
	addr   netip.AddrPort
}

func (c *fakeConn) Post(*verbs.WorkRequest, *verbs.Queue) error { return c.err }
func (c *fakeConn) Peer() verbs.Peer                            { return verbs.Peer{Addr: c.addr} }
func (c *fakeConn) Done() <-chan struct{}                       { return nil }
func (c *fakeConn) Err() error                                  { return c.err }
func (c *fakeConn) Close() error                                { c.closed, c.err = true, verbs.ErrClosed; return nil }

func endpoint(n uint32) verbs.Endpoint { return verbs.Endpoint{GID: [16]byte{15: 1}, QPN: n} }

func newCache(t *testing.T, cfg verbs.CacheConfig) (*verbs.Cache, *int) {
	t.Helper()
	dials := 0
	cfg.Dial = func(_ context.Context, to verbs.Endpoint) (verbs.Conn, error) {
		if to.QPN == 666 {
			return nil, verbs.ErrUnreachable
		}
		dials++
		return &fakeConn{}, nil
	}
	c := verbs.NewCache(cfg)
	t.Cleanup(func() { _ = c.Close() })
	return c, &dials
}

func get(t *testing.T, c *verbs.Cache, to verbs.Endpoint) *verbs.Lease {
	t.Helper()
	l, err := c.Get(context.Background(), to)
	if err != nil {
		t.Fatalf("Get(%s): %v", to, err)
	}
	return l
}

func TestCacheReuses(t *testing.T) {
	c, dials := newCache(t, verbs.CacheConfig{MaxPerEndpoint: 2, MaxUsers: 2})
	a := get(t, c, endpoint(1))
	b := get(t, c, endpoint(1))
	if a == b || *dials != 2 {
		t.Fatalf("%d dials for two users; want a connection for each", *dials)
	}
	third, fourth := get(t, c, endpoint(1)), get(t, c, endpoint(1))
	if third == fourth || *dials != 2 {
		t.Errorf("%d dials for four users of two connections; want 2, shared evenly", *dials)
	}
	if _, err := c.Get(context.Background(), endpoint(1)); !errors.Is(err, verbs.ErrLimit) {
		t.Errorf("fifth Get = %v; want ErrLimit", err)
	}
	c.Put(third)
	c.Put(fourth)
	c.Put(a)
	if got := get(t, c, endpoint(1)); got != a {
		t.Error("Get took another connection than the one without users")
	}
}

func TestCacheDropsTheDead(t *testing.T) {
	c, dials := newCache(t, verbs.CacheConfig{})
	a := get(t, c, endpoint(1))
	a.Conn.(*fakeConn).err = verbs.ErrPeer
	c.Put(a)
	if b := get(t, c, endpoint(1)); b == a || *dials != 2 || c.Len() != 1 {
		t.Errorf("%d dials, %d connections; want a new one for the dead one", *dials, c.Len())
	}
}

func TestCacheLimit(t *testing.T) {
	c, _ := newCache(t, verbs.CacheConfig{MaxConns: 2})
	a, b := get(t, c, endpoint(1)), get(t, c, endpoint(2))
	if _, err := c.Get(context.Background(), endpoint(3)); !errors.Is(err, verbs.ErrLimit) {
		t.Errorf("Get with all connections in use = %v; want ErrLimit", err)
	}
	c.Put(b)
	get(t, c, endpoint(3))
	if c.Len() != 2 || a.Err() != nil {
		t.Errorf("%d connections, the one in use %v; want the idle one gone", c.Len(), a.Err())
	}
	if _, err := c.Get(context.Background(), endpoint(666)); err == nil {
		t.Error("Get of what can't be dialled succeeds")
	}
}

func TestCacheFailedDial(t *testing.T) {
	c, _ := newCache(t, verbs.CacheConfig{})
	for range 3 {
		if _, err := c.Get(context.Background(), endpoint(666)); !errors.Is(err, verbs.ErrUnreachable) {
			t.Errorf("Get = %v; want what Dial returned", err)
		}
	}
	if c.Len() != 0 {
		t.Errorf("Len() = %d after failed dials; want 0", c.Len())
	}
}

func TestCacheIdle(t *testing.T) {
	c, _ := newCache(t, verbs.CacheConfig{IdleTimeout: 4 * time.Millisecond})
	used, idle := get(t, c, endpoint(1)), get(t, c, endpoint(2))
	c.Put(idle)
	for c.Len() > 1 {
		time.Sleep(time.Millisecond)
	}
	if used.Err() != nil {
		t.Error("the connection in use was closed")
	}
	if err := c.Close(); err != nil || used.Err() == nil {
		t.Error("Close left a connection")
	}
	if _, err := c.Get(context.Background(), endpoint(1)); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("Get after Close = %v; want ErrClosed", err)
	}
}

func TestCacheSessions(t *testing.T) {
	c, dials := newCache(t, verbs.CacheConfig{MaxPerEndpoint: 2})
	id := verbs.Session{1, 15: 2}
	from := func(s string) *fakeConn { return &fakeConn{addr: netip.MustParseAddrPort(s)} }
	for _, tc := range []struct {
		from string
		want error
	}{{"192.0.2.1:1000", nil}, {"192.0.2.2:1000", verbs.ErrAccess}, {"192.0.2.1:1001", nil}, {"192.0.2.1:1002", verbs.ErrLimit}} {
		if err := c.Add(id, from(tc.from)); !errors.Is(err, tc.want) {
			t.Errorf("Add from %s = %v; want %v", tc.from, err, tc.want)
		}
	}
	if a, b := get(t, c, id.Endpoint()), get(t, c, id.Endpoint()); a == b || *dials != 0 {
		t.Errorf("%d dials; want both connections of the session, and none", *dials)
	}
}

func TestSession(t *testing.T) {
	id := verbs.Session{1, 2, 3}
	if got, ok := verbs.SessionOf(id.Private()); !ok || got != id {
		t.Errorf("SessionOf(%x) = %x, %v", id.Private(), got, ok)
	}
	for _, bad := range [][]byte{nil, id.Private()[1:], append(id.Private(), 0), []byte("mrls\x02aaaaaaaaaaaaaaaa")} {
		if _, ok := verbs.SessionOf(bad); ok {
			t.Errorf("SessionOf(%q) = true; want false", bad)
		}
	}
}

func TestWindow(t *testing.T) {
	w := verbs.Window{Endpoint: verbs.EndpointAt(netip.MustParseAddrPort("192.0.2.1:18515")), Addr: 4096, RKey: 7, SizeBytes: 100}
	tok, err := w.Token()
	if err != nil || verbs.WindowOf(tok) != w {
		t.Errorf("WindowOf(%v) = %+v, %v; want %+v", tok, verbs.WindowOf(tok), err, w)
	}
	if got := w.Endpoint.Addr(); got != netip.MustParseAddr("192.0.2.1") || w.Endpoint.QPN != 18515 {
		t.Errorf("Addr() = %s", got)
	}
	if p, err := w.Part(60, 40); err != nil || p.Addr != 4156 || p.SizeBytes != 40 {
		t.Errorf("Part(60, 40) = %+v, %v", p, err)
	}
	for _, bad := range [][2]int64{{-1, 1}, {0, 101}, {101, 0}, {60, 41}, {1, 1<<63 - 1}} {
		if _, err := w.Part(bad[0], bad[1]); !errors.Is(err, verbs.ErrRange) {
			t.Errorf("Part(%d, %d) = %v; want ErrRange", bad[0], bad[1], err)
		}
	}
	w.SizeBytes = verbs.MaxTokenBytes + 1
	if _, err := w.Token(); !errors.Is(err, verbs.ErrTooLarge) {
		t.Errorf("Token of 4 GiB = %v; want ErrTooLarge", err)
	}
}
