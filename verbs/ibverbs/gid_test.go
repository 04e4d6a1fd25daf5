package ibverbs

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/millrace/millrace/verbs/fabric"
)

// gidDevice is a device of which only the GID table is known, and the number of times that it was read.
func gidDevice(own string, addrs ...string) (*Device, *int) {
	reads := 0
	d := &Device{name: "mlx5_0", port: 1}
	if own != "" {
		d.cfg.Address = netip.MustParseAddr(own)
	}
	d.read = func() (*fabric.Fabric, error) {
		reads++
		p := fabric.Port{Device: "mlx5_0", Number: 1, LinkLayer: fabric.Ethernet}
		for i, a := range addrs {
			bytes := netip.MustParseAddr(a).As16()
			for j, kind := range []fabric.GIDType{fabric.GIDRoCEv1, fabric.GIDRoCEv2} {
				p.GIDs = append(p.GIDs, fabric.GID{Index: 2*i + j, Bytes: bytes, Type: kind, Netdev: "eth1"})
			}
		}
		return &fabric.Fabric{Devices: []fabric.Device{{Name: "mlx5_0", Ports: []fabric.Port{p}}}}, nil
	}
	return d, &reads
}

func TestGIDTowards(t *testing.T) {
	addrs := []string{"fe80::1", "198.51.100.1", "2001:db8::1", "198.51.100.2"}
	for _, tc := range []struct{ own, to, want string }{
		{"", "198.51.100.9", "198.51.100.1"},
		{"198.51.100.2", "198.51.100.9", "198.51.100.2"},
		{"198.51.100.2", "", "198.51.100.2"},
		{"198.51.100.2", "2001:db8::9", "2001:db8::1"},
		{"", "2001:db8::9", "2001:db8::1"},
		{"", "fe80::9", "fe80::1"},
		{"", "", "198.51.100.1"},
	} {
		d, reads := gidDevice(tc.own, addrs...)
		to := netip.Addr{}
		if tc.to != "" {
			to = netip.MustParseAddr(tc.to)
		}
		for range 2 {
			g, err := d.gidTowards(to)
			if err != nil || g.Addr() != netip.MustParseAddr(tc.want) || g.Type != fabric.GIDRoCEv2 {
				t.Errorf("gidTowards(%q) of %q = %+v, %v; want %s by RoCE v2", tc.to, tc.own, g, err, tc.want)
			}
		}
		if tc.own == tc.want && *reads != 1 {
			t.Errorf("the table was read %d times; want once", *reads)
		}
	}
}

func TestGIDIsLookedUpAgain(t *testing.T) {
	d, reads := gidDevice("", "192.0.2.1")
	var missing *fabric.GIDError
	if _, err := d.gidFor(netip.MustParseAddr("192.0.2.7")); !errors.As(err, &missing) || *reads != 1 {
		t.Errorf("gidFor = %v after %d reads; want a GIDError after one", err, *reads)
	}
	// An address that has come since is found in a fresh table.
	later, _ := gidDevice("", "192.0.2.1", "192.0.2.7")
	d.read = later.read
	if g, err := d.gidFor(netip.MustParseAddr("192.0.2.7")); err != nil || g.Index != 3 {
		t.Errorf("gidFor = %+v, %v; want the entry of RoCE v2, 3", g, err)
	}
	// After an event the table is not trusted, though it has an entry.
	d.gids.forget()
	d.read = func() (*fabric.Fabric, error) { return &fabric.Fabric{}, nil }
	if _, err := d.gidFor(netip.MustParseAddr("192.0.2.7")); !errors.Is(err, fabric.ErrNoDevice) {
		t.Errorf("gidFor of a device that is gone = %v; want ErrNoDevice", err)
	}
}
