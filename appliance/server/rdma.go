package server

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/millrace/millrace/appliance/config"
	"github.com/millrace/millrace/mgmt/metrics"
	"github.com/millrace/millrace/s3/gateway"
	"github.com/millrace/millrace/s3/rdma"
	"github.com/millrace/millrace/verbs"
	"github.com/millrace/millrace/verbs/iwarp"
	"github.com/millrace/millrace/verbs/nullverbs"
)

// fabric is the RDMA of an appliance; nil where it has none.
type fabric struct {
	device    verbs.Device
	transport *rdma.Transport
	name      string // of the ready line
}

// openFabric opens the device that the configuration asks for, and registers memory, the arena, with it.
func openFabric(c *config.Config, memory []byte, log *slog.Logger) (*fabric, error) {
	f := &fabric{}
	switch c.RDMA {
	case config.RDMAOff:
		return nil, nil
	case config.RDMANull:
		log.Warn("RDMA moves no bytes: objects that are put by it are garbage; this is for measuring only")
		f.device, f.name = nullverbs.Open(), "null(moves-no-bytes)"
	default:
		// Whoever can't be reached in 3 s is told so while its client still waits.
		f.device, f.name = iwarp.Open(iwarp.Config{NoCRC: !c.RDMACRC, StartTimeout: 3 * time.Second}), iwarp.Provider
	}
	networks, err := c.RDMANetworks()
	if err != nil {
		return nil, errors.Join(err, f.device.Close())
	}
	at, err := listenAddress(c.RDMAListen)
	if err == nil {
		f.transport, err = rdma.New(rdma.Config{
			Device: f.device, Memory: memory, Listen: at, Allow: networks, MaxTransfers: c.RDMATransfers,
		})
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open RDMA: %w", err), f.device.Close())
	}
	return f, nil
}

// listenAddress resolves the address of a listener; not valid if it is "".
func listenAddress(text string) (netip.AddrPort, error) {
	if text == "" {
		return netip.AddrPort{}, nil
	}
	at, err := net.ResolveTCPAddr("tcp", text)
	if err != nil {
		return netip.AddrPort{}, err
	}
	if at.IP == nil {
		return netip.AddrPortFrom(netip.IPv6Unspecified(), uint16(at.Port)), nil
	}
	return at.AddrPort(), nil
}

// ready is what the ready line says of it.
func (f *fabric) ready() string {
	switch {
	case f == nil:
		return config.RDMAOff
	case f.transport.Endpoint() != verbs.Endpoint{}:
		e := f.transport.Endpoint()
		return f.name + " rdma-listen=" + netip.AddrPortFrom(e.Addr(), uint16(e.QPN)).String()
	}
	return f.name
}

// front is what the S3 front uses; nil if there is none.
func (f *fabric) front() gateway.RDMA {
	if f == nil {
		return nil
	}
	return f.transport
}

// traffic reads the counters.
func (f *fabric) traffic() metrics.RDMATraffic {
	if f == nil {
		return metrics.RDMATraffic{}
	}
	c := f.device.Counters()
	return metrics.RDMATraffic{
		Provider: c.Provider,
		ReadOps:  c.Initiated.ReadOps, ReadBytes: c.Initiated.ReadBytes,
		WriteOps: c.Initiated.WriteOps, WriteBytes: c.Initiated.WriteBytes,
		Failed: c.Failed, Connections: c.Live,
		BouncedBytes: f.transport.CopiedBytes(), DeviceCopiedBytes: c.CopiedBytes,
	}
}

// close ends all connections. No request may be running.
func (f *fabric) close() error {
	if f == nil {
		return nil
	}
	return errors.Join(f.transport.Close(), f.device.Close())
}
