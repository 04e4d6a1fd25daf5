package rdma

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/s3/gateway"
	"github.com/millrace/millrace/s3/store"
	"github.com/millrace/millrace/verbs"
)

// Limits of the memory that clients of hipobj-rc-v2 write into: of one pair, and of all together. All of it is never more
// than what is registered anyway.
const (
	maxStagingBytes   = 256 << 20
	totalStagingBytes = 1 << 30
)

// pair implements gateway.Pair. It serves one request at a time.
type pair struct {
	t       *Transport
	setup   verbs.RCSetup
	conn    verbs.Conn
	queue   *verbs.Queue // of the RECV that the client's immediate value consumes
	staging []byte       // what a PUT is written into; nil for a GET
	region  verbs.Region
	binding verbs.Binding
}

// Pair implements gateway.RDMAPairs.
func (t *Transport) Pair(_ context.Context, r gateway.PairRequest) (gateway.Pair, error) {
	dev, ok := t.cfg.Device.(verbs.RCDevice)
	if !ok {
		return nil, &gateway.Declined{
			Reason: DeclinedProvider, Err: fmt.Errorf("the provider %q has no reliable connections of that kind", t.info.Provider),
		}
	}
	addr := netip.AddrFrom16(r.GID).Unmap()
	if !t.mayReach(addr, r.Peer) {
		return nil, &gateway.Declined{
			Reason: DeclinedPeer, Err: fmt.Errorf("the token is of %v, the request of %v", addr, r.Peer),
		}
	}
	p := &pair{t: t}
	var err error
	if p.setup, err = dev.PrepareRC(addr); err == nil && r.StagingBytes > 0 {
		err = p.stage(r.StagingBytes)
	}
	if err != nil {
		p.Close()
		if errors.Is(err, verbs.ErrLimit) {
			err = fmt.Errorf("%w: %w", store.ErrOverloaded, err)
		}
		return nil, err
	}
	return p, nil
}

// Pairs tells whether the transport's device makes reliable connections whose addresses others exchange.
func (t *Transport) Pairs() bool {
	_, ok := t.cfg.Device.(verbs.RCDevice)
	return ok
}

// stage makes memory that the client may write into. It is registered for one transfer: the protocol wants all of an object
// in one piece.
func (p *pair) stage(n int64) error {
	all := min(totalStagingBytes, int64(len(p.t.cfg.Memory)))
	if n > min(maxStagingBytes, all) {
		return fmt.Errorf("%d bytes in one transfer: %w", n, verbs.ErrTooLarge)
	}
	if p.t.staged.Add(n) > all {
		p.t.staged.Add(-n)
		return fmt.Errorf("%d bytes for PUTs by RDMA: %w", all, store.ErrOverloaded)
	}
	mem, err := unix.Mmap(-1, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		p.t.staged.Add(-n)
		return fmt.Errorf("map %d bytes: %w", n, err)
	}
	p.staging = mem
	if p.region, err = p.t.cfg.Device.Register(p.staging); err == nil {
		p.binding, err = p.region.Bind(0, n, verbs.RemoteWrite)
	}
	return err
}

// Local implements gateway.Pair.
func (p *pair) Local() verbs.RCAddress { return p.setup.Local() }

// Staging implements gateway.Pair.
func (p *pair) Staging() verbs.Window {
	if p.binding == nil {
		return verbs.Window{}
	}
	return p.binding.Window(verbs.Endpoint{})
}

// Connect implements gateway.Pair.
func (p *pair) Connect(ctx context.Context, remote verbs.RCAddress) error {
	conn, err := p.setup.Connect(ctx, remote)
	if err != nil {
		return err
	}
	p.conn = conn
	if p.staging == nil {
		return nil
	}
	p.queue = verbs.NewQueue(1)
	return conn.Post(&verbs.WorkRequest{Op: verbs.OpRecv}, p.queue)
}

// Transfer implements gateway.Pair.
func (p *pair) Transfer(ctx context.Context, window verbs.Window, imm uint32) (gateway.RDMATransfer, error) {
	if err := p.t.enter(ctx); err != nil {
		return nil, err
	}
	if p.staging == nil {
		x := p.t.begin(ctx, window, window.SizeBytes, p.conn)
		x.imm, x.hasImm = imm, true
		return x, nil
	}
	return &arrival{pair: p, ctx: ctx, imm: imm}, nil
}

// Close implements gateway.Pair. The queue pair goes before the memory that it may write to.
func (p *pair) Close() {
	if p.conn != nil {
		_ = p.conn.Close()
	} else if p.setup != nil {
		_ = p.setup.Close()
	}
	if p.binding != nil {
		_ = p.binding.Close()
	}
	if p.region != nil {
		_ = p.region.Deregister()
	}
	if p.staging != nil {
		p.t.staged.Add(-int64(len(p.staging)))
		_ = unix.Munmap(p.staging)
		p.staging = nil
	}
	p.binding, p.region = nil, nil
}

// arrival is the gateway.RDMATransfer of a PUT: the client writes all, then its immediate value tells that it has.
type arrival struct {
	pair *pair
	ctx  context.Context
	imm  uint32
	come bool
	at   int
	err  error
}

// Read implements io.Reader. The bytes are copied out of the memory of this transfer, and counted.
func (a *arrival) Read(b []byte) (int, error) {
	if !a.come && a.err == nil {
		a.err = a.wait()
		a.come = a.err == nil
	}
	if a.err != nil {
		return 0, a.err
	}
	n := copy(b, a.pair.staging[a.at:])
	if a.at += n; n == 0 && len(b) > 0 {
		return 0, io.EOF
	}
	a.pair.t.copied.Add(uint64(n))
	return n, nil
}

// wait returns when the immediate value has come, after which nothing may be written.
func (a *arrival) wait() error {
	done, err := a.pair.queue.Wait(a.ctx)
	switch {
	case err != nil:
		return err
	case done.Err != nil:
		return done.Err
	case !done.HasImm || done.Imm != a.imm:
		return fmt.Errorf("the immediate value is not the cookie: %w", verbs.ErrPeer)
	}
	return a.pair.binding.Close()
}

// Write implements io.Writer: there is nothing to write in a PUT.
func (a *arrival) Write([]byte) (int, error) { return 0, verbs.ErrAccess }

// Flush implements gateway.RDMATransfer.
func (a *arrival) Flush() (bool, error) { return true, a.err }

// Close implements gateway.RDMATransfer.
func (a *arrival) Close() {
	if a.pair != nil {
		a.pair.Close()
		<-a.pair.t.slots
		a.pair = nil
	}
}
