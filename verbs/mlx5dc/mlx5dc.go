// Package mlx5dc initiates RDMA by DC, the dynamically connected transport of NVIDIA's adapters (mlx5): it reaches windows
// whose tokens name a DC target, as the clients of GPU hosts send them. There is no handshake and no connection on either side;
// a pool of DC initiators (DCIs), queue pairs that turn to one target at a time, serves all clients.
//
// It is the active side only: it has no targets, so nobody can reach memory of this side through it. Devices, memory and GIDs
// are those of the device that it is opened for (verbs/ibverbs). It has not been run on hardware yet: Notice says so.
//
// Invariant: a DCI has work requests of one connection at a time, so what fails takes nobody else with it; a work request
// completes when the device has said so, or after its DCI was reset or destroyed, never before.
package mlx5dc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/millrace/millrace/verbs"
	lib "github.com/millrace/millrace/verbs/ibverbs/libibverbs"
	"github.com/millrace/millrace/verbs/mlx5dc/libmlx5"
)

// Notice is for the log, whenever DC is in use.
const Notice = "RDMA by DC (mlx5) has not been run on hardware yet: see the checklist for the first run in docs/rdma.md"

// DefaultDCKey is what clients of the ecosystem give to their targets. It is no secret.
const DefaultDCKey = 0xffeeddcc

// Config holds the limits. Zero values mean the defaults.
type Config struct {
	// DCIs is how many targets can be busy at a time, 128 by default. More connections than that take turns.
	DCIs int
	// DCKey must be that of the targets; DefaultDCKey by default.
	DCKey uint64
	// HopLimit is 64 by default; TrafficClass is DSCP × 4, 0 by default.
	HopLimit, TrafficClass uint8
	// TimeoutExponent: an answer is waited for 4.096 µs × 2^n; 14 (67 ms) by default. Retries is how often, 7 by default.
	TimeoutExponent, Retries uint8
	// OutstandingReads is how many READs a DCI may have outstanding: 16 by default, and no more than the device takes.
	OutstandingReads uint8
	// MaxMessageBytes is the most of one work request: 1 GiB by default and at most.
	MaxMessageBytes int64
	// MaxSegments and SendDepth of a connection: 16 and 64 by default.
	MaxSegments, SendDepth int
	// MaxAddresses is how many address handles are kept, one for each GID of a client: 4096 by default. MaxConns are the most
	// connections: 4096 by default.
	MaxAddresses, MaxConns int
	// FlushTimeout is how long the device may take to give back what a failed DCI had: 2 s by default.
	FlushTimeout time.Duration
}

func (c Config) withDefaults() Config {
	c.DCIs = within(c.DCIs, 128, 1, 1<<14)
	if c.DCKey == 0 {
		c.DCKey = DefaultDCKey
	}
	c.HopLimit = within(c.HopLimit, 64, 1, 255)
	c.TimeoutExponent = within(c.TimeoutExponent, 14, 1, 31)
	c.Retries = within(c.Retries, 7, 1, 7)
	c.OutstandingReads = within(c.OutstandingReads, 16, 1, 128)
	c.MaxMessageBytes = within(c.MaxMessageBytes, 1<<30, 1, 1<<30)
	c.MaxSegments = within(c.MaxSegments, 16, 1, 30)
	c.SendDepth = within(c.SendDepth, 64, 1, 1024)
	c.MaxAddresses = within(c.MaxAddresses, 4096, 1, 1<<20)
	c.MaxConns = within(c.MaxConns, 4096, 1, 1<<20)
	c.FlushTimeout = within(c.FlushTimeout, 2*time.Second, time.Millisecond, time.Minute)
	return c
}

func within[T int | int64 | uint8 | time.Duration](v, unset, least, most T) T {
	if v == 0 {
		return unset
	}
	return min(max(v, least), most)
}

// Memory is the registered memory of the device.
type Memory interface {
	// Hold marks the memory of a work request as in use and describes it, one element for each slice that isn't empty. It
	// returns how many there are, or verbs.ErrNotRegistered.
	Hold(local [][]byte, sges []lib.SGE) (int, error)
	Release(local [][]byte)
}

// Host is the open device that the initiators are for.
type Host struct {
	Provider string // in errors
	Verbs    *lib.Calls
	MLX5     *libmlx5.Calls
	Context  lib.Context
	PD       lib.PD
	Port     uint8
	// MaxReads and MaxMessageBytes are what the device takes; 0: it doesn't say.
	MaxReads        uint8
	MaxMessageBytes int64
	Memory          Memory
	Meter           *verbs.Meter
	// SourceGID is the index of the entry of RoCE v2 by which a peer's GID is reached, of the same family.
	SourceGID func(to [16]byte) (uint8, error)
	// PathMTU is the active MTU of the port (enum ibv_mtu).
	PathMTU func() uint32
}

// ErrUnsupported: the device is not driven by mlx5.
var ErrUnsupported = errors.New("no DC: not a device of mlx5")

// Initiators is the pool of DCIs of a device.
type Initiators struct {
	cfg         Config
	host        Host
	tasks       sync.WaitGroup
	addresses   *addresses
	completions *lib.Completions

	mu     sync.Mutex
	closed bool
	fault  error  // why nothing can be initiated any more
	dcis   []*dci // by index
	alive  int    // of them, those that can be used or are being mended
	free   []*dci
	queue  []*conn // those that have work and no DCI
	conns  map[*conn]struct{}
}

// Open makes the DCIs. Errors wrap ErrUnsupported or are *libibverbs.Error.
func Open(host Host, cfg Config) (*Initiators, error) {
	s := &Initiators{cfg: cfg.withDefaults(), host: host, conns: map[*conn]struct{}{}}
	if host.MaxReads > 0 {
		s.cfg.OutstandingReads = min(s.cfg.OutstandingReads, host.MaxReads)
	}
	if host.MaxMessageBytes > 0 {
		s.cfg.MaxMessageBytes = min(s.cfg.MaxMessageBytes, host.MaxMessageBytes)
	}
	s.addresses = newAddresses(s.cfg.MaxAddresses, s.newAH, func(ah libmlx5.AH) { _ = host.MLX5.DestroyAH(ah) })
	if !host.MLX5.Supported(host.Context) {
		return nil, s.failed("open", ErrUnsupported)
	}
	var err error
	if s.completions, err = lib.NewCompletions(host.Verbs, host.Context, s.cfg.DCIs*s.cfg.SendDepth, 64); err != nil {
		return nil, s.failed("open", err)
	}
	s.tasks.Go(s.watch)
	for i := range s.cfg.DCIs {
		x := &dci{index: uint16(i)}
		if err := s.create(x); err != nil {
			return nil, errors.Join(s.failed("open", fmt.Errorf("DCI %d of %d: %w", i, s.cfg.DCIs, err)), s.Close())
		}
		s.mu.Lock()
		s.dcis = append(s.dcis, x)
		s.free = append(s.free, x)
		s.alive++
		s.mu.Unlock()
	}
	return s, nil
}

// Limits are those of a connection.
func (s *Initiators) Limits() (maxMessageBytes int64, maxSegments, sendDepth int) {
	return s.cfg.MaxMessageBytes, s.cfg.MaxSegments, s.cfg.SendDepth
}

// Dial returns a connection to a DC target. Nothing is sent, so whether there is one shows with the first work request.
func (s *Initiators) Dial(ctx context.Context, to verbs.Endpoint) (verbs.Conn, error) {
	c, err := s.dial(ctx, to)
	if err != nil {
		return nil, &verbs.Error{Op: "dial", Provider: s.host.Provider, Peer: to.String(), Err: err}
	}
	return c, nil
}

// Reaches says whether an endpoint is of the kind that DC reaches: neither a session nor one of another provider.
func Reaches(to verbs.Endpoint) bool {
	return !to.Session && to.Kind() == verbs.KindHardware
}

func (s *Initiators) dial(ctx context.Context, to verbs.Endpoint) (*conn, error) {
	const maxDCTN = 1<<24 - 1
	switch {
	case !Reaches(to):
		return nil, fmt.Errorf("no DC target: %w", verbs.ErrUnreachable)
	case to.QPN == 0 || to.QPN > maxDCTN || to.GID == [16]byte{}:
		return nil, fmt.Errorf("no number or no GID of a DC target: %w", verbs.ErrUnreachable)
	}
	if err := s.usable(); err != nil {
		return nil, err
	}
	a, err := s.addresses.get(ctx, addressKey{to.GID, to.LID})
	if err != nil {
		return nil, err
	}
	c := s.newConn(to, a)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		err = verbs.ErrClosed
	case len(s.conns) >= s.cfg.MaxConns:
		err = fmt.Errorf("%d connections: %w", len(s.conns), verbs.ErrLimit)
	}
	if err != nil {
		s.addresses.put(a)
		return nil, err
	}
	s.conns[c] = struct{}{}
	s.host.Meter.Connections.Add(1)
	s.host.Meter.Live.Add(1)
	return c, nil
}

func (s *Initiators) usable() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return verbs.ErrClosed
	}
	if s.fault != nil {
		return fmt.Errorf("%w: %w", verbs.ErrUnreachable, s.fault)
	}
	return nil
}

// newAH makes the address handle of a GID.
func (s *Initiators) newAH(key addressKey) (libmlx5.AH, error) {
	index, err := s.host.SourceGID(key.gid)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", verbs.ErrUnreachable, err)
	}
	ah, err := s.host.MLX5.CreateAH(s.host.PD, &lib.AHAttr{
		GRH: lib.GlobalRoute{
			DGID: key.gid, SGIDIndex: index, HopLimit: s.cfg.HopLimit, TrafficClass: s.cfg.TrafficClass,
		},
		DLID: key.lid, IsGlobal: 1, PortNum: s.host.Port,
	})
	if err != nil {
		return 0, fmt.Errorf("%w: %w", verbs.ErrUnreachable, err)
	}
	return ah, nil
}

// Fail ends all connections because the device is gone or of no use any more. No new ones can be made.
func (s *Initiators) Fail(why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fault == nil {
		s.fault = why
	}
	for c := range s.conns {
		s.fail(c, fmt.Errorf("%w: %w", verbs.ErrPeer, why))
	}
}

// Close ends all connections, waits for them, and destroys the DCIs.
func (s *Initiators) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	var conns []*conn
	for c := range s.conns {
		s.fail(c, verbs.ErrClosed)
		conns = append(conns, c)
	}
	s.mu.Unlock()
	for _, c := range conns {
		<-c.ended
	}
	s.completions.Stop()
	s.tasks.Wait() // those that mend, too
	var err error
	for _, x := range s.dcis {
		if x.calls.QP != 0 {
			err = errors.Join(err, s.host.Verbs.DestroyQP(x.calls.QP))
		}
	}
	s.addresses.close()
	return errors.Join(err, s.completions.Destroy())
}

func (s *Initiators) failed(op string, err error) error {
	return &verbs.Error{Op: op, Provider: s.host.Provider, Err: err}
}
