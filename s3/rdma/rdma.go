// Package rdma carries object bytes between buffers of this machine and windows of clients' memory, for
// s3/gateway, over any provider of verbs.
//
// It knows no HTTP and no objects, and it judges no signature: that a request may have what it asks for is
// decided before. What it does judge is where it will connect to: only to the host that the request came
// from, to hosts that the configuration names, or over a connection that the same client made.
//
// Invariant: bytes that lie in the registered memory are not copied; those that do not are, through a small
// pool of registered buffers, and are counted. When a transfer is closed, neither its window nor its
// memory is touched any more, however it ended.
package rdma

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/s3/gateway"
	"github.com/millrace/millrace/s3/store"
	"github.com/millrace/millrace/verbs"
)

// Reasons for which a request is declined. Together with the gateway's they are the values of the label
// of the metric.
const (
	DeclinedPeer        = "peer"        // the token names a host that is neither the client's nor allowed
	DeclinedSession     = "session"     // the token names a session that the client does not have
	DeclinedProvider    = "provider"    // the token is of a kind of network that this server is not on
	DeclinedUnreachable = "unreachable" // nobody answers where the token points
)

// Config is what a Transport works with.
type Config struct {
	Device verbs.Device
	// Memory is registered: bytes that lie in it are not copied. It may be nil.
	Memory []byte
	// Listen is where clients that can't be dialled make their connections; no such if it is not valid.
	Listen netip.AddrPort
	// Allow are networks that tokens may name besides the client's own address.
	Allow []netip.Prefix
	// MaxTransfers is how many transfers there may be at once; more wait. 0 means 256.
	MaxTransfers int
	// WaitLimit is how long a request waits for its turn; 0 means 2 s.
	WaitLimit time.Duration
	// Depth is the most work requests of one transfer at once; 0 means 16.
	Depth int
	// BounceBuffers is the number of buffers for bytes that are not in Memory; 0 means 64.
	BounceBuffers int
	// Cache has the limits of the connections; its Dial is not used.
	Cache verbs.CacheConfig
}

// bounceBytes is the size of a buffer for bytes that are elsewhere: a little more than an inline object.
const bounceBytes = 64 << 10

// maxDials is how many connections are made at once.
const maxDials = 64

// Transport implements gateway.RDMA. Make one with New.
type Transport struct {
	cfg      Config
	info     verbs.DeviceInfo
	regions  []verbs.Region
	memory   span
	bounce   chan []byte
	cache    *verbs.Cache
	listener verbs.Listener
	sessions sessions
	slots    chan struct{} // of transfers
	dials    chan struct{} // connections that are being made
	free     sync.Pool     // *verbs.Requester
	copied   atomic.Uint64
	staged   atomic.Int64 // bytes that pairs have for PUTs
}

// New registers the memory and listens. Close must be called, before the memory is unmapped. The device
// stays the caller's.
func New(cfg Config) (*Transport, error) {
	setDefault(&cfg.MaxTransfers, 256)
	setDefault(&cfg.Depth, 16)
	setDefault(&cfg.BounceBuffers, 64)
	setDefault(&cfg.Cache.MaxUsers, 64)
	if cfg.Cache.IdleTimeout <= 0 {
		cfg.Cache.IdleTimeout = 5 * time.Minute // jobs pause between their checkpoints
	}
	if cfg.WaitLimit <= 0 {
		cfg.WaitLimit = 2 * time.Second
	}
	t := &Transport{
		cfg: cfg, info: cfg.Device.Info(), bounce: make(chan []byte, cfg.BounceBuffers),
		slots: make(chan struct{}, cfg.MaxTransfers), dials: make(chan struct{}, maxDials),
	}
	t.free.New = func() any { return verbs.NewRequester(t.info, cfg.Depth) }
	cfg.Cache.Dial = t.dial
	t.cache = verbs.NewCache(cfg.Cache)
	if err := t.open(); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

func setDefault(v *int, d int) {
	if *v <= 0 {
		*v = d
	}
}

func (t *Transport) open() error {
	pool := make([]byte, t.cfg.BounceBuffers*bounceBytes)
	for _, mem := range [][]byte{t.cfg.Memory, pool} {
		if len(mem) == 0 {
			continue
		}
		r, err := t.cfg.Device.Register(mem)
		if err != nil {
			return fmt.Errorf("register %d bytes: %w", len(mem), err)
		}
		t.regions = append(t.regions, r)
	}
	t.memory = spanOf(t.cfg.Memory)
	for i := range t.cfg.BounceBuffers {
		t.bounce <- pool[i*bounceBytes : (i+1)*bounceBytes : (i+1)*bounceBytes]
	}
	if !t.cfg.Listen.IsValid() {
		return nil
	}
	var err error
	t.listener, err = t.cfg.Device.Listen(t.cfg.Listen, t.join)
	return err
}

// Endpoint is where clients make their sessions; zero if that is not possible.
func (t *Transport) Endpoint() verbs.Endpoint {
	if t.listener == nil {
		return verbs.Endpoint{}
	}
	return t.listener.Endpoint()
}

// CopiedBytes are those bytes of objects that were copied since New, because they were not in Memory.
func (t *Transport) CopiedBytes() uint64 { return t.copied.Load() }

// Close ends all connections and deregisters the memory. No transfer may be open.
func (t *Transport) Close() error {
	var errs []error
	if t.listener != nil {
		errs = append(errs, t.listener.Close())
	}
	errs = append(errs, t.cache.Close())
	for _, r := range t.regions {
		errs = append(errs, r.Deregister())
	}
	t.regions = nil
	return errors.Join(errs...)
}

// Reaches tells whether windows at the endpoint are of a kind for this transport. Those of the soft kind may have any
// token.
func (t *Transport) Reaches(to verbs.Endpoint) bool {
	if to.Session {
		return t.listener != nil
	}
	return t.info.Dials&to.Kind() != 0
}

// Open implements gateway.RDMA.
func (t *Transport) Open(ctx context.Context, r gateway.RDMARequest) (gateway.RDMATransfer, error) {
	if err := t.check(ctx, &r); err != nil {
		return nil, err
	}
	if r.SizeBytes == 0 {
		return &transfer{}, nil // nothing to connect for
	}
	lease, err := t.cache.Get(ctx, r.Window.Endpoint)
	if err != nil {
		return nil, t.unreachable(ctx, err)
	}
	// Of a session's connection only now it is known where it comes from.
	if r.Window.Endpoint.Session && !t.mayReach(lease.Peer().Addr.Addr(), r.Peer) {
		t.cache.Put(lease)
		return nil, &gateway.Declined{Reason: DeclinedSession, Err: errors.New("the session is of another host")}
	}
	// Only now, so that requests whose client does not answer are in nobody's way.
	if err := t.enter(ctx); err != nil {
		t.cache.Put(lease)
		return nil, err
	}
	x := t.begin(ctx, r.Window, r.SizeBytes, lease)
	x.lease, x.fences = lease, r.ClientFences && t.info.FenceCosts
	return x, nil
}

func (t *Transport) dial(ctx context.Context, to verbs.Endpoint) (verbs.Conn, error) {
	select {
	case t.dials <- struct{}{}:
		defer func() { <-t.dials }()
		return t.cfg.Device.Dial(ctx, to, nil)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// enter waits for a turn.
func (t *Transport) enter(ctx context.Context) error {
	select {
	case t.slots <- struct{}{}:
		return nil
	default:
	}
	timer := time.NewTimer(t.cfg.WaitLimit)
	defer timer.Stop()
	select {
	case t.slots <- struct{}{}:
		return nil
	case <-timer.C:
		return fmt.Errorf("%d transfers by RDMA: %w", t.cfg.MaxTransfers, store.ErrOverloaded)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// check judges where a token points.
func (t *Transport) check(ctx context.Context, r *gateway.RDMARequest) error {
	to := r.Window.Endpoint
	if to.Session {
		if !t.sessions.claim(ctx, verbs.Session(to.GID), r.AccessKey) {
			return &gateway.Declined{Reason: DeclinedSession, Err: errors.New("there is no such session of this access key")}
		}
		return nil
	}
	if !t.Reaches(to) {
		return &gateway.Declined{
			Reason: DeclinedProvider, Err: fmt.Errorf("this server has the provider %q only", t.info.Provider),
		}
	}
	if !t.mayReach(to.Addr(), r.Peer) {
		return &gateway.Declined{
			Reason: DeclinedPeer, Err: fmt.Errorf("the token is of %v, the request of %v", to.Addr(), r.Peer),
		}
	}
	return nil
}

// mayReach tells whether a request from peer may name a port at addr.
func (t *Transport) mayReach(addr, peer netip.Addr) bool {
	addr = addr.Unmap().WithZone("")
	if addr.IsValid() && addr == peer {
		return true
	}
	for _, p := range t.cfg.Allow {
		if p.Contains(addr) {
			return true
		}
	}
	return false
}

func (t *Transport) unreachable(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, verbs.ErrLimit):
		return fmt.Errorf("%w: %w", store.ErrOverloaded, err)
	case errors.Is(ctx.Err(), context.Canceled):
		return ctx.Err()
	}
	return &gateway.Declined{Reason: DeclinedUnreachable, Err: err}
}
