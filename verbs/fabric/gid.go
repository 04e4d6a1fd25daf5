package fabric

import (
	"errors"
	"fmt"
	"net/netip"
)

// Family is an address family.
type Family int

// The address families.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// String returns the name of the family.
func (f Family) String() string { return fmt.Sprintf("IPv%d", int(f)) }

// FamilyOf returns the family of an address; IPv4-mapped ones are IPv4.
func FamilyOf(addr netip.Addr) Family {
	if addr.Unmap().Is4() {
		return IPv4
	}
	return IPv6
}

// GIDFor returns the entry by which the port speaks as addr. On Ethernet that is the one of RoCE v2: drivers list
// an address twice with the same bytes, for RoCE v1 first, and packets of v1 are not routed. An address of the link
// (fe80::…) may carry the interface as its zone. The error is a *GIDError.
func (p *Port) GIDFor(addr netip.Addr) (GID, error) {
	want := addr.Unmap().WithZone("").As16()
	listed := false
	reason := "the address is not in the GID table: set it on the interface of this port"
	for _, g := range p.GIDs {
		if g.Bytes != want || (addr.Zone() != "" && g.Netdev != addr.Zone()) {
			continue
		}
		listed = true
		switch {
		case g.Type != GIDRoCEv2 && p.LinkLayer != InfiniBand:
			reason = "the address is listed for RoCE v1 only"
		case p.foreign(g.Netdev):
			reason = "interface " + g.Netdev + " is in another network namespace"
		default:
			return g, nil
		}
	}
	return GID{}, p.refuse(addr.String(), reason, listed)
}

// GIDOf returns the entry for an interface and a family. Of several, one that is routable goes before one of the link. Without
// an interface it is any of the port. The error is a *GIDError.
func (p *Port) GIDOf(netdev string, family Family) (GID, error) {
	var best GID
	found := false
	for _, g := range p.GIDs {
		addr := g.Addr()
		if g.Type != GIDRoCEv2 || FamilyOf(addr) != family || (netdev != "" && g.Netdev != netdev) || p.foreign(g.Netdev) {
			continue
		}
		if !found || (best.Addr().IsLinkLocalUnicast() && !addr.IsLinkLocalUnicast()) {
			best, found = g, true
		}
	}
	if found {
		return best, nil
	}
	want := family.String()
	if netdev != "" {
		want += " on " + netdev
	}
	return GID{}, p.refuse(want, "no entry of RoCE v2 in the GID table", false)
}

func (p *Port) refuse(want, reason string, listed bool) error {
	return &GIDError{Device: p.Device, Port: p.Number, Want: want, Listed: listed, Reason: reason}
}

// foreign says whether the interface is in another network namespace.
func (p *Port) foreign(netdev string) bool {
	for _, n := range p.Netdevs {
		if n.Name == netdev {
			return n.Foreign
		}
	}
	return false
}

// Place is where an address is found: a device, its port, and the entry of the GID table.
type Place struct {
	Device *Device
	Port   *Port
	GID    GID
}

// PlaceOf returns where addr, an address of this machine, can be used for RDMA. Ports that carry traffic go first.
// The error wraps ErrNoDevice if there is no device of this network namespace; else it is a *GIDError, of a port that lists the
// address if there is one.
func (f *Fabric) PlaceOf(addr netip.Addr) (Place, error) {
	return f.search(func(p *Port) (GID, error) { return p.GIDFor(addr) })
}

// Any returns a place for a family whatever the address: for a server that listens on all of them. Ports that carry
// traffic go first. The error is as of PlaceOf.
func (f *Fabric) Any(family Family) (Place, error) {
	return f.search(func(p *Port) (GID, error) { return p.GIDOf("", family) })
}

func (f *Fabric) search(choose func(*Port) (GID, error)) (Place, error) {
	last := fmt.Errorf("none of %d: %w", len(f.Devices), ErrNoDevice)
	var idle Place
	for i := range f.Devices {
		d := &f.Devices[i]
		if d.Foreign {
			continue
		}
		for j := range d.Ports {
			g, err := choose(&d.Ports[j])
			switch {
			case err != nil:
				if e := (*GIDError)(nil); !errors.As(last, &e) || !e.Listed {
					last = err
				}
			case d.Ports[j].Active():
				return Place{d, &d.Ports[j], g}, nil
			case idle.Device == nil:
				idle = Place{d, &d.Ports[j], g}
			}
		}
	}
	if idle.Device != nil {
		return idle, nil
	}
	return Place{}, last
}
