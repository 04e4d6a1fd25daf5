package verbs

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// CacheConfig says how many connections a Cache keeps.
type CacheConfig struct {
	// Dial makes a connection to an endpoint that is no session.
	Dial func(context.Context, Endpoint) (Conn, error)
	// MaxConns is the most connections in all, MaxPerEndpoint to one endpoint (or of one session), and
	// MaxUsers the most users of one connection at once. 0 means 4096, 8 and 16.
	MaxConns, MaxPerEndpoint, MaxUsers int
	// IdleTimeout is after what time without users a connection is closed; 0 means a minute.
	IdleTimeout time.Duration
}

// Cache keeps connections to the endpoints of windows, so that a transfer need not wait for one to be made.
// A connection is shared only when its endpoint has no more to give.
type Cache struct {
	cfg   CacheConfig
	stop  chan struct{}
	swept chan struct{}

	mu     sync.Mutex
	closed bool
	total  int // connections and dials
	byPeer map[Endpoint]*entry
}

type entry struct {
	conns   []*Lease
	dialing int
}

// Lease is a connection in a cache, with the users that it has now.
type Lease struct {
	Conn
	from  Endpoint
	users int
	idle  time.Time // since when, with no users
}

// NewCache returns an empty cache. Close must be called.
func NewCache(cfg CacheConfig) *Cache {
	setDefault := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	setDefault(&cfg.MaxConns, 4096)
	setDefault(&cfg.MaxPerEndpoint, 8)
	setDefault(&cfg.MaxUsers, 16)
	if cfg.IdleTimeout <= 0 {
		cfg.IdleTimeout = time.Minute
	}
	c := &Cache{
		cfg: cfg, stop: make(chan struct{}), swept: make(chan struct{}), byPeer: map[Endpoint]*entry{},
	}
	go c.sweep()
	return c
}

// Get returns a living connection to the endpoint: one without users, else a new one, else the one with
// the fewest users. With everything at its limit it returns ErrLimit, and for a session that nobody has
// joined ErrUnreachable. The caller must Put it back.
func (c *Cache) Get(ctx context.Context, to Endpoint) (*Lease, error) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil, ErrClosed
	}
	e := c.entry(to)
	c.dropDead(e)
	best := e.leastUsed()
	mayDial := !to.Session && len(e.conns)+e.dialing < c.cfg.MaxPerEndpoint
	if best != nil && (best.users == 0 || !mayDial || !c.room()) {
		defer c.mu.Unlock()
		if best.users >= c.cfg.MaxUsers {
			return nil, fmt.Errorf("all connections to %s are in use: %w", to, ErrLimit)
		}
		best.users++
		return best, nil
	}
	if !mayDial || !c.room() {
		defer c.mu.Unlock()
		c.forget(to, e)
		if to.Session {
			return nil, fmt.Errorf("%s has no connection: %w", to, ErrUnreachable)
		}
		return nil, fmt.Errorf("connections to %s: %w", to, ErrLimit)
	}
	c.byPeer[to] = e // room may have dropped it
	e.dialing++
	c.total++
	c.mu.Unlock()
	conn, err := c.cfg.Dial(ctx, to)
	return c.dialed(to, conn, err)
}

func (c *Cache) dialed(to Endpoint, conn Conn, err error) (*Lease, error) {
	c.mu.Lock()
	e := c.byPeer[to]
	e.dialing--
	c.total--
	if err == nil && !c.closed {
		defer c.mu.Unlock()
		l := &Lease{Conn: conn, from: to, users: 1}
		e.conns = append(e.conns, l)
		c.total++
		return l, nil
	}
	c.forget(to, e)
	c.mu.Unlock()
	if err == nil {
		_ = conn.Close()
		err = ErrClosed
	}
	return nil, err
}

// Add puts in a connection that the peer made, for windows of its session. On ErrLimit or ErrClosed the
// connection is not in the cache.
func (c *Cache) Add(of Session, conn Conn) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	to := of.Endpoint()
	if c.closed {
		return ErrClosed
	}
	e := c.entry(to)
	c.dropDead(e)
	if len(e.conns) >= c.cfg.MaxPerEndpoint || !c.room() {
		c.forget(to, e)
		return fmt.Errorf("connections of %s: %w", to, ErrLimit)
	}
	for _, l := range e.conns {
		if l.Peer().Addr.Addr() != conn.Peer().Addr.Addr() {
			return fmt.Errorf("%s was opened from another address: %w", to, ErrAccess)
		}
	}
	c.byPeer[to] = e // room may have dropped it
	e.conns = append(e.conns, &Lease{Conn: conn, from: to, idle: time.Now()})
	c.total++
	return nil
}

// Put gives a connection back. A dead one is dropped.
func (c *Cache) Put(l *Lease) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l.users--
	if l.users == 0 {
		l.idle = time.Now()
	}
	if e := c.byPeer[l.from]; e != nil && l.Err() != nil {
		c.dropDead(e)
		c.forget(l.from, e)
	}
}

// Len is the number of connections in the cache.
func (c *Cache) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.total
}

// Close closes all connections.
func (c *Cache) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	var conns []*Lease
	for _, e := range c.byPeer {
		conns = append(conns, e.conns...)
	}
	c.mu.Unlock()
	close(c.stop)
	<-c.swept
	for _, l := range conns {
		_ = l.Close()
	}
	return nil
}

func (c *Cache) entry(to Endpoint) *entry {
	e := c.byPeer[to]
	if e == nil {
		e = &entry{}
		c.byPeer[to] = e
	}
	return e
}

func (c *Cache) forget(to Endpoint, e *entry) {
	if len(e.conns) == 0 && e.dialing == 0 {
		delete(c.byPeer, to)
	}
}

func (c *Cache) dropDead(e *entry) {
	c.keep(e, func(l *Lease) bool { return l.Err() == nil })
}

// keep leaves those connections of the entry for which good is true, and returns the others.
func (c *Cache) keep(e *entry, good func(*Lease) bool) (others []*Lease) {
	kept := e.conns[:0]
	for _, l := range e.conns {
		if good(l) {
			kept = append(kept, l)
		} else {
			others = append(others, l)
		}
	}
	clear(e.conns[len(kept):])
	e.conns = kept
	c.total -= len(others)
	return others
}

func (e *entry) leastUsed() *Lease {
	var best *Lease
	for _, l := range e.conns {
		if best == nil || l.users < best.users {
			best = l
		}
	}
	return best
}

// room makes room for a new connection, if need be by closing the one that was idle for longest.
func (c *Cache) room() bool {
	if c.total < c.cfg.MaxConns {
		return true
	}
	var oldest *Lease
	for _, e := range c.byPeer {
		for _, l := range e.conns {
			if l.users == 0 && (oldest == nil || l.idle.Before(oldest.idle)) {
				oldest = l
			}
		}
	}
	if oldest == nil {
		return false
	}
	e := c.byPeer[oldest.from]
	c.keep(e, func(l *Lease) bool { return l != oldest })
	c.forget(oldest.from, e)
	go func() { _ = oldest.Close() }()
	return true
}

func (c *Cache) sweep() {
	defer close(c.swept)
	tick := time.NewTicker(max(c.cfg.IdleTimeout/4, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-c.stop:
			return
		case now := <-tick.C:
			for _, l := range c.idleSince(now.Add(-c.cfg.IdleTimeout)) {
				_ = l.Close()
			}
		}
	}
}

func (c *Cache) idleSince(t time.Time) []*Lease {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []*Lease
	for to, e := range c.byPeer {
		out = append(out, c.keep(e, func(l *Lease) bool {
			return l.Err() == nil && (l.users > 0 || l.idle.After(t))
		})...)
		c.forget(to, e)
	}
	return out
}
