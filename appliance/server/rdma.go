package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/millrace/millrace/appliance/config"
	"github.com/millrace/millrace/mgmt/metrics"
	"github.com/millrace/millrace/s3/gateway"
	"github.com/millrace/millrace/s3/rdma"
	"github.com/millrace/millrace/verbs"
	verbsfabric "github.com/millrace/millrace/verbs/fabric"
	"github.com/millrace/millrace/verbs/ibverbs"
	"github.com/millrace/millrace/verbs/iwarp"
	"github.com/millrace/millrace/verbs/mlx5dc"
	"github.com/millrace/millrace/verbs/nullverbs"
	"github.com/millrace/millrace/verbs/preflight"
)

// fabric is the RDMA of an appliance: one provider or several. It is empty where there is none.
type fabric struct{ paths []path }

// path is one provider.
type path struct {
	name      string // in the ready line
	device    verbs.Device
	listen    string          // where clients make sessions, or ""
	transport *rdma.Transport // nil until there is memory to move bytes from and to
}

// dialLimit is for making a connection: whoever can't be reached is told so while its client still waits.
const dialLimit = 3 * time.Second

// openFabric opens the devices that the configuration asks for.
func openFabric(c *config.Config, log *slog.Logger) (*fabric, error) {
	f := &fabric{}
	soft := func() {
		dev := iwarp.Open(iwarp.Config{NoCRC: !c.RDMACRC, StartTimeout: dialLimit})
		f.paths = append(f.paths, path{name: iwarp.Provider, device: dev, listen: c.RDMAListen})
	}
	switch c.RDMA {
	case config.RDMAOff:
	case config.RDMANull:
		log.Warn("RDMA moves no bytes: objects that are put by it are garbage; this is for measuring only")
		f.paths = append(f.paths, path{name: "null(moves-no-bytes)", device: nullverbs.Open(), listen: c.RDMAListen})
	case config.RDMAVerbs:
		if err := f.addHardware(c, c.RDMAListen, log, preflight.Err); err != nil {
			return nil, fmt.Errorf("open RDMA: %w", err)
		}
	case config.RDMAAuto:
		warn := func(findings []preflight.Finding) error {
			if e := preflight.Err(findings); e != nil {
				log.Warn("RDMA hardware may fail or be slow", "error", e)
			}
			return nil
		}
		if err := f.addHardware(c, "", log, warn); errors.Is(err, ibverbs.ErrNoLibrary) || errors.Is(err, verbsfabric.ErrNoDevice) {
			log.Info("no RDMA hardware, soft RDMA only: " + err.Error())
		} else if err != nil {
			log.Warn("RDMA hardware is there but can't be used, soft RDMA only: see millrace rdma check", "error", err)
		}
		soft()
	default:
		soft()
	}
	return f, nil
}

// addHardware opens the RDMA device that has the address of the S3 endpoint, or any if that is on all addresses, unless judge
// has an error for what the preflight has found.
func (f *fabric) addHardware(c *config.Config, listen string, log *slog.Logger, judge func([]preflight.Finding) error) error {
	class := uint8(c.RDMATrafficClass)
	cfg := ibverbs.Config{StartTimeout: dialLimit, Transport: ibverbs.Transport{TrafficClass: class}, DC: &mlx5dc.Config{}}
	check := preflight.Config{Mode: preflight.Mode(c.RDMA), ArenaBytes: int64(c.ArenaSize), TrafficClass: class}
	if at, err := listenAddress(c.Listen); err == nil && !at.Addr().Unmap().IsUnspecified() {
		cfg.Address = at.Addr().Unmap()
		check.Listen = []netip.Addr{cfg.Address}
	}
	if err := judge(preflight.Check(preflight.Host(library), check)); err != nil {
		return err
	}
	if devices, err := ibverbs.Devices(); err != nil {
		return err
	} else if len(devices) == 0 {
		return verbsfabric.ErrNoDevice
	}
	dev, err := ibverbs.Open(cfg)
	if err != nil {
		return err
	}
	if notice := dev.Notice(); notice != "" {
		log.Warn(notice)
	}
	name := fmt.Sprintf("%s(%s)", ibverbs.Provider, dev.Info().Name)
	f.paths = append(f.paths, path{name: name, device: dev, listen: listen})
	return nil
}

// library tries to load libibverbs.
func library() error {
	_, err := ibverbs.Devices()
	return err
}

// attach registers memory, the arena, with each device, and listens. Without it f is good for nothing but close.
func (f *fabric) attach(c *config.Config, memory []byte) error {
	networks, err := c.RDMANetworks()
	if err != nil {
		return err
	}
	for i := range f.paths {
		p := &f.paths[i]
		at, err := listenAddress(p.listen)
		if err == nil {
			p.transport, err = rdma.New(rdma.Config{
				Device: p.device, Memory: memory, Listen: at, Allow: networks, MaxTransfers: c.RDMATransfers,
			})
		}
		if err != nil {
			return fmt.Errorf("open RDMA: %s: %w", p.name, err)
		}
	}
	return nil
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
	if len(f.paths) == 0 {
		return config.RDMAOff
	}
	var names []string
	listen := ""
	for _, p := range f.paths {
		names = append(names, p.name)
		if e := p.transport.Endpoint(); e != (verbs.Endpoint{}) {
			listen = " rdma-listen=" + netip.AddrPortFrom(e.Addr(), uint16(e.QPN)).String()
		}
	}
	return strings.Join(names, "+") + listen
}

// front is what the S3 front uses; nil if there is none.
func (f *fabric) front() gateway.RDMA {
	if len(f.paths) == 0 {
		return nil
	}
	return f
}

// Open implements gateway.RDMA: the first provider that makes connections to such endpoints has the transfer. One that
// none can reach is declined by the last.
func (f *fabric) Open(ctx context.Context, r gateway.RDMARequest) (gateway.RDMATransfer, error) {
	last := len(f.paths) - 1
	for _, p := range f.paths[:last] {
		if p.transport.Reaches(r.Window.Endpoint) {
			return p.transport.Open(ctx, r)
		}
	}
	return f.paths[last].transport.Open(ctx, r)
}

// Pair implements gateway.RDMAPairs, with the provider that has such connections.
func (f *fabric) Pair(ctx context.Context, r gateway.PairRequest) (gateway.Pair, error) {
	for _, p := range f.paths {
		if p.transport.Pairs() {
			return p.transport.Pair(ctx, r)
		}
	}
	return nil, &gateway.Declined{Reason: gateway.DeclinedPairs, Err: errors.New("no RDMA hardware")}
}

// traffic reads the counters.
func (f *fabric) traffic() []metrics.RDMATraffic {
	var all []metrics.RDMATraffic
	for _, p := range f.paths {
		c := p.device.Counters()
		all = append(all, metrics.RDMATraffic{
			Provider: c.Provider,
			ReadOps:  c.Initiated.ReadOps, ReadBytes: c.Initiated.ReadBytes,
			WriteOps: c.Initiated.WriteOps, WriteBytes: c.Initiated.WriteBytes,
			Failed: c.Failed, Connections: c.Live,
			BouncedBytes: p.transport.CopiedBytes(), DeviceCopiedBytes: c.CopiedBytes,
		})
	}
	return all
}

// close ends all connections. No request may be running.
func (f *fabric) close() error {
	var errs []error
	for _, p := range f.paths {
		if p.transport != nil {
			errs = append(errs, p.transport.Close())
		}
		errs = append(errs, p.device.Close())
	}
	f.paths = nil
	return errors.Join(errs...)
}
