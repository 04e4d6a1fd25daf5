package ibverbs

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"

	"github.com/millrace/millrace/verbs"
	lib "github.com/millrace/millrace/verbs/ibverbs/libibverbs"
	"github.com/millrace/millrace/verbs/mlx5dc"
	"github.com/millrace/millrace/verbs/mlx5dc/libmlx5"
)

// openDC makes the DC initiators, if they are wanted and the device is of the kind. What their configuration leaves open is
// as for reliable connections. If it fails the device goes on without, and Notice says why. What Info says holds for
// connections of both kinds.
func (d *Device) openDC(dev *lib.DeviceAttr) {
	if d.cfg.DC == nil || !d.isMLX5 {
		return
	}
	calls, err := d.mlx5()
	if err == nil {
		d.dc, err = mlx5dc.Open(d.dcHost(dev, calls), d.dcConfig())
	}
	if err != nil {
		d.dcFault = err
		return
	}
	bytes, segments, depth := d.dc.Limits()
	d.info.MaxMessageBytes = min(d.info.MaxMessageBytes, bytes)
	d.info.MaxSegments = min(d.info.MaxSegments, segments)
	d.info.SendDepth = min(d.info.SendDepth, depth)
	d.info.Dials |= verbs.KindHardware
}

func (d *Device) dcConfig() mlx5dc.Config {
	cfg, t := *d.cfg.DC, d.cfg.Transport
	cfg.HopLimit, cfg.TrafficClass = cmp.Or(cfg.HopLimit, t.HopLimit), cmp.Or(cfg.TrafficClass, t.TrafficClass)
	cfg.TimeoutExponent, cfg.Retries = cmp.Or(cfg.TimeoutExponent, t.TimeoutExponent), cmp.Or(cfg.Retries, t.Retries)
	return cfg
}

func (d *Device) dcHost(dev *lib.DeviceAttr, calls *libmlx5.Calls) mlx5dc.Host {
	return mlx5dc.Host{
		Provider: Provider, Verbs: d.calls, MLX5: calls, Context: d.ctx, PD: d.pd, Port: d.port,
		MaxReads: uint8(min(max(dev.MaxQPInitRDAtom, 0), 255)), MaxMessageBytes: d.info.MaxMessageBytes,
		Memory: dcMemory{d}, Meter: &d.meter, PathMTU: d.mtu.Load,
		SourceGID: func(to [16]byte) (uint8, error) {
			g, err := d.gidTowards(netip.AddrFrom16(to).Unmap())
			return uint8(g.Index), err
		},
	}
}

// dcMemory is the memory of a device as DC uses it.
type dcMemory struct{ dev *Device }

func (m dcMemory) Hold(local [][]byte, sges []lib.SGE) (int, error) { return m.dev.hold(local, sges) }
func (m dcMemory) Release(local [][]byte)                           { m.dev.regions.Release(local) }

func (d *Device) dialDC(ctx context.Context, to verbs.Endpoint, private []byte) (verbs.Conn, error) {
	if len(private) > 0 {
		return nil, d.failed("dial", fmt.Errorf("a DC target takes no private data: %w", verbs.ErrUnreachable))
	}
	ctx, cancel := context.WithTimeout(ctx, d.cfg.StartTimeout)
	defer cancel()
	return d.dc.Dial(ctx, to)
}

// Notice is what the log has to say of the device at the start; mostly nothing.
func (d *Device) Notice() string {
	switch {
	case d.dcFault != nil:
		return fmt.Sprintf("no RDMA by DC on %s, tokens that name DC targets are declined: %v", d.name, d.dcFault)
	case d.dc != nil:
		return mlx5dc.Notice
	}
	return ""
}

// DC says whether targets of DC can be reached: nil if so, else why not.
func (d *Device) DC() error {
	switch {
	case d.dc != nil:
		return nil
	case d.dcFault != nil:
		return d.dcFault
	}
	return mlx5dc.ErrUnsupported
}
