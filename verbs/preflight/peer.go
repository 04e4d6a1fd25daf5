package preflight

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/millrace/millrace/verbs"
)

// ErrNoProbe: this process may not send echo requests.
var ErrNoProbe = errors.New("echo requests can't be sent here")

// The sizes of IP packets that are sent to a peer: what an InfiniBand MTU of 4096 needs, and what every Ethernet takes.
const (
	jumboBytes = 4192
	plainBytes = 1500
)

// PeerFindings makes a connection to the RDMA listener of a peer, which must be of the same provider, and sends it packets that must not be fragmented. echo sends
// one of a given size and waits for the answer; Echo does it.
func PeerFindings(
	ctx context.Context, dev verbs.Device, at netip.AddrPort, echo func(context.Context, netip.Addr, int) error,
) []Finding {
	c := &checker{}
	subject := at.String()
	start := time.Now()
	to := verbs.Endpoint{GID: at.Addr().As16(), QPN: uint32(at.Port()), LID: dev.Info().LID}
	conn, err := dev.Dial(ctx, to, nil)
	if err != nil {
		c.problem("peer", subject, err.Error(), "does it serve with --rdma-listen there, and the same --rdma? then routes, firewalls, network namespaces")
	} else {
		took := time.Since(start)
		_ = conn.Close()
		c.ok("peer", subject, "%s connected in %.1f ms", dev.Info().Provider, float64(took.Microseconds())/1000)
	}
	c.path(ctx, at.Addr(), echo)
	return c.findings
}

func (c *checker) path(ctx context.Context, addr netip.Addr, echo func(context.Context, netip.Addr, int) error) {
	const check = "path"
	subject := addr.String()
	large := echo(ctx, addr, jumboBytes)
	if large == nil {
		c.ok(check, subject, "packets of %d bytes arrive unfragmented", jumboBytes)
		return
	}
	if errors.Is(large, ErrNoProbe) {
		c.warn(check, subject, "can't be probed here: "+large.Error(), "run as root, or: sysctl net.ipv4.ping_group_range='0 2147483647'")
		return
	}
	if small := echo(ctx, addr, plainBytes); small != nil {
		c.warn(check, subject, "can't be probed: no answer to echo requests: "+small.Error(), "allow ICMP echo on the peer, or measure from it")
		return
	}
	c.warn(check, subject, fmt.Sprintf("packets of %d bytes arrive, those of %d don't: %v", plainBytes, jumboBytes, large),
		"MTU of at least 4200 on both ends and on every switch between")
}
