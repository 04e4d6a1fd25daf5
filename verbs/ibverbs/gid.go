package ibverbs

import (
	"fmt"
	"net"
	"net/netip"
	"sync"

	"github.com/millrace/millrace/verbs/fabric"
)

// gidTable remembers the GID table of the port until something changes.
type gidTable struct {
	mu   sync.Mutex
	port *fabric.Port
}

func (t *gidTable) forget() {
	t.mu.Lock()
	t.port = nil
	t.mu.Unlock()
}

// find looks a GID up, and looks again in a fresh table if there is none: entries come with addresses.
func (d *Device) find(look func(*fabric.Port) (fabric.GID, error)) (fabric.GID, error) {
	t := &d.gids
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.port != nil {
		if g, err := look(t.port); err == nil {
			return g, nil
		}
	}
	f, err := d.read()
	if err != nil {
		return fabric.GID{}, err
	}
	dev, ok := f.Device(d.name)
	if !ok {
		return fabric.GID{}, fmt.Errorf("%s: %w", d.name, fabric.ErrNoDevice)
	}
	port, ok := dev.Port(int(d.port))
	if !ok {
		return fabric.GID{}, fmt.Errorf("port %d of %s: %w", d.port, d.name, fabric.ErrNoDevice)
	}
	t.port = port
	return look(port)
}

func (d *Device) gidFor(addr netip.Addr) (fabric.GID, error) {
	return d.find(func(p *fabric.Port) (fabric.GID, error) { return p.GIDFor(addr) })
}

// linkLocal is the GID for a peer on the same link.
func linkLocal(p *fabric.Port) (fabric.GID, error) {
	for _, g := range p.GIDs {
		if addr := g.Addr(); addr.Is6() && addr.IsLinkLocalUnicast() {
			if _, err := p.GIDFor(addr); err == nil && g.Type == fabric.GIDRoCEv2 {
				return g, nil
			}
		}
	}
	return fabric.GID{}, &fabric.GIDError{Device: p.Device, Port: p.Number, Want: "fe80::", Reason: "no address of the link"}
}

// gidTowards is the GID for a connection that this side makes to an address; an invalid one stands for any.
func (d *Device) gidTowards(to netip.Addr) (fabric.GID, error) {
	own := d.cfg.Address
	if own.IsValid() && (!to.IsValid() || fabric.FamilyOf(own) == fabric.FamilyOf(to)) {
		return d.gidFor(own)
	}
	if !to.IsValid() {
		g, err := d.find(func(p *fabric.Port) (fabric.GID, error) { return p.GIDOf("", fabric.IPv4) })
		if err != nil {
			if g6, err6 := d.find(func(p *fabric.Port) (fabric.GID, error) { return p.GIDOf("", fabric.IPv6) }); err6 == nil {
				return g6, nil
			}
		}
		return g, err
	}
	if to.Is6() && to.IsLinkLocalUnicast() {
		return d.find(linkLocal) // a GID has no zone, which routes would need
	}
	// Connecting a UDP socket sends nothing, and tells the address that the kernel would take.
	if c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, 4791))); err == nil {
		from := c.LocalAddr().(*net.UDPAddr).AddrPort().Addr()
		_ = c.Close()
		if g, err := d.gidFor(from); err == nil {
			return g, nil
		}
	}
	return d.find(func(p *fabric.Port) (fabric.GID, error) { return p.GIDOf("", fabric.FamilyOf(to)) })
}
