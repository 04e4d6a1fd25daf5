package ibverbs_test

import (
	"flag"
	"net/netip"
	"testing"

	"github.com/millrace/millrace/verbs"
	"github.com/millrace/millrace/verbs/fabric"
	"github.com/millrace/millrace/verbs/ibverbs"
	"github.com/millrace/millrace/verbs/verbstest"
)

var deviceName = flag.String("device", "", "RDMA device to test on; without it, tests that need one are skipped where there is none")

// hardware returns the name of a device and an address of its port.
func hardware(t testing.TB) (string, netip.Addr) {
	t.Helper()
	devices, err := ibverbs.Devices()
	if *deviceName == "" && len(devices) == 0 {
		t.Skipf("no RDMA device (%v)", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range devices {
		if *deviceName != "" && d.Name != *deviceName {
			continue
		}
		for i := range d.Ports {
			for _, family := range []fabric.Family{fabric.IPv4, fabric.IPv6} {
				if g, err := d.Ports[i].GIDOf("", family); err == nil {
					return d.Name, g.Addr()
				}
			}
		}
	}
	t.Fatalf("no port of %q has a GID of RoCE v2 in %+v", *deviceName, devices)
	return "", netip.Addr{}
}

func suite(t testing.TB, cfg ibverbs.Config) verbstest.Suite {
	name, addr := hardware(t)
	return verbstest.Suite{
		Listen: netip.AddrPortFrom(addr, 0),
		Open: func(t testing.TB, o verbstest.Options) verbs.Device {
			cfg.Device, cfg.MaxMessageBytes, cfg.StallTimeout = name, o.MaxMessageBytes, o.StallTimeout
			d, err := ibverbs.Open(cfg)
			if err != nil {
				t.Fatal(err)
			}
			return d
		},
	}
}

// TestConformance runs the suite on two devices of this process, which are the same one of the machine.
func TestConformance(t *testing.T) { suite(t, ibverbs.Config{}).Run(t) }
