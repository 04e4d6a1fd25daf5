package fabric_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/verbs/fabric"
	"github.com/millrace/millrace/verbs/fabric/fabrictest"
)

func read(t *testing.T, sys fabrictest.Sys, k fabrictest.Kernel) *fabric.Fabric {
	t.Helper()
	f, err := fabric.Read(sys.FS(), k)
	if err != nil {
		t.Fatalf("Read: %v", err)
	}
	return f
}

func noFaults(t *testing.T, f *fabric.Fabric) {
	t.Helper()
	faults := f.Faults
	for _, d := range f.Devices {
		faults = append(faults, d.Faults...)
		for _, p := range d.Ports {
			faults = append(faults, p.Faults...)
		}
	}
	if len(faults) > 0 {
		t.Errorf("faults: %v; want none", faults)
	}
}

func gid(s string) [16]byte { return netip.MustParseAddr(s).As16() }

func TestReadMLX5(t *testing.T) {
	sys, k := fabrictest.MLX5()
	f := read(t, sys, k)
	noFaults(t, f)
	if len(f.Devices) != 2 || !f.Devices[0].MLX5() {
		t.Fatalf("devices %+v; want 2 of mlx5", f.Devices)
	}
	got := f.Devices[1]
	want := fabric.Device{
		Name: "mlx5_1", Transport: fabric.TransportIB, Firmware: "32.39.1002", BoardID: "MT_0000000884",
		NodeGUID: "0c42:a103:00d2:9b28", PCI: "0000:03:00.1", Driver: "mlx5_core", NUMANode: 0,
		CharDevices: []string{"/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs1"},
		Ports: []fabric.Port{{
			Device: "mlx5_1", Number: 1, State: "ACTIVE", PhysState: "LinkUp", LinkLayer: fabric.Ethernet,
			RateText: "200 Gb/sec (4X HDR)", RateMbps: 200000,
			Netdevs: []fabric.Netdev{{Name: "p1", MTUBytes: 9000, OperState: "up"}},
			GIDs: []fabric.GID{
				{Index: 0, Bytes: gid("fe80::e42:a1ff:fed2:9b29"), Type: fabric.GIDRoCEv1, Netdev: "p1"},
				{Index: 1, Bytes: gid("fe80::e42:a1ff:fed2:9b29"), Type: fabric.GIDRoCEv2, Netdev: "p1"},
				{Index: 2, Bytes: gid("::ffff:192.168.8.1"), Type: fabric.GIDRoCEv1, Netdev: "p1"},
				{Index: 3, Bytes: gid("::ffff:192.168.8.1"), Type: fabric.GIDRoCEv2, Netdev: "p1"},
			},
		}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("mlx5_1 (-want +got):\n%s", diff)
	}
}

func TestReadOthers(t *testing.T) {
	tests := []struct {
		name      string
		tree      func() (fabrictest.Sys, fabrictest.Kernel)
		transport fabric.Transport
		layer     fabric.LinkLayer
		parent    string
		rateMbps  int
		lid       uint16
		gid       fabric.GID // the last
	}{
		{"rxe", fabrictest.RXE, fabric.TransportIB, fabric.Ethernet, "eth0", 2500, 0,
			fabric.GID{Index: 1, Bytes: gid("::ffff:10.0.2.15"), Type: fabric.GIDRoCEv2, Netdev: "eth0"}},
		{"InfiniBand", fabrictest.IB, fabric.TransportIB, fabric.InfiniBand, "", 400000, 0x1c,
			fabric.GID{Bytes: gid("fe80::c42:a103:d2:9b28"), Type: fabric.GIDIB}},
		{"siw", fabrictest.SIW, fabric.TransportIWARP, fabric.Ethernet, "", 2500, 0,
			fabric.GID{Bytes: gid("5254:12:3456::"), Type: fabric.GIDRoCEv1}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := read(t, first(tt.tree()), second(tt.tree()))
			noFaults(t, f)
			d := f.Devices[0]
			p := d.Ports[0]
			if d.Transport != tt.transport || d.Parent != tt.parent || d.PCI != "" || d.NUMANode != -1 {
				t.Errorf("transport %q, parent %q, PCI %q, node %d; want %q, %q, none, -1",
					d.Transport, d.Parent, d.PCI, d.NUMANode, tt.transport, tt.parent)
			}
			if p.LinkLayer != tt.layer || p.RateMbps != tt.rateMbps || p.LID != tt.lid || !p.Active() {
				t.Errorf("link layer %q, rate %d, LID %#x, state %q; want %q, %d, %#x, ACTIVE",
					p.LinkLayer, p.RateMbps, p.LID, p.State, tt.layer, tt.rateMbps, tt.lid)
			}
			if diff := cmp.Diff(tt.gid, p.GIDs[len(p.GIDs)-1]); diff != "" {
				t.Errorf("last GID (-want +got):\n%s", diff)
			}
		})
	}
}

func first(s fabrictest.Sys, _ fabrictest.Kernel) fabrictest.Sys     { return s }
func second(_ fabrictest.Sys, k fabrictest.Kernel) fabrictest.Kernel { return k }

func TestReadWithoutRDMA(t *testing.T) {
	f := read(t, fabrictest.Netdev("eth0", 1500), fabrictest.Kernel{ModeErr: syscall.EPROTONOSUPPORT})
	if len(f.Devices) != 0 || len(f.Faults) != 1 || !errors.Is(f.Faults[0], syscall.EPROTONOSUPPORT) {
		t.Errorf("devices %v, faults %v; want none, and the error of netlink", f.Devices, f.Faults)
	}
	if _, err := f.PlaceOf(netip.MustParseAddr("10.0.2.15")); !errors.Is(err, fabric.ErrNoDevice) {
		t.Errorf("PlaceOf: %v; want ErrNoDevice", err)
	}
}

func TestTooManyGIDs(t *testing.T) {
	sys, k := fabrictest.RXE()
	for i := range 4097 {
		sys[fmt.Sprintf("class/infiniband/rxe0/ports/1/gids/%d", i)] = "0000:0000:0000:0000:0000:0000:0000:0000\n"
	}
	p := read(t, sys, k).Devices[0].Ports[0]
	if len(p.GIDs) != 0 || len(p.Faults) != 1 || !errors.Is(p.Faults[0], fabric.ErrFormat) {
		t.Errorf("%d GIDs, faults %v; want none, and a fault", len(p.GIDs), p.Faults)
	}
}

// TestReadHost reads whatever is there: a machine without RDMA is no error.
func TestReadHost(t *testing.T) {
	if _, err := fabric.ReadHost(); err != nil {
		t.Errorf("ReadHost: %v", err)
	}
}

// TestOddFiles wants that a bad file costs its own field and nothing else.
func TestOddFiles(t *testing.T) {
	const port = "class/infiniband/rxe0/ports/1/"
	tests := []struct {
		name, file, content string
		zero                func(fabric.Device, fabric.Port) bool
		fault               string // in the text of the fault
	}{
		{"state is empty", port + "state", "", func(_ fabric.Device, p fabric.Port) bool { return p.State == "" && !p.Active() }, ""},
		{"state is half written", port + "state", "4", func(_ fabric.Device, p fabric.Port) bool { return p.State == "" }, "ports/1/state"},
		{"state can't be read", port + "state", fabrictest.Refused, func(_ fabric.Device, p fabric.Port) bool { return p.State == "" }, "ports/1/state"},
		{"rate has no number", port + "rate", "fast\n", func(_ fabric.Device, p fabric.Port) bool { return p.RateMbps == 0 }, "rate"},
		{"rate is not a number", port + "rate", "NaN Gb/sec (4X)\n", func(_ fabric.Device, p fabric.Port) bool { return p.RateMbps == 0 }, "rate"},
		{"LID is too large", port + "lid", "0x10000\n", func(_ fabric.Device, p fabric.Port) bool { return p.LID == 0 }, "lid"},
		{"GID is cut short", port + "gids/0", "fe80:0000:0000:0000:5054\n", func(_ fabric.Device, p fabric.Port) bool { return len(p.GIDs) == 1 }, "gids/0"},
		{"GID is an IPv4 address", port + "gids/0", "10.0.2.15\n", func(_ fabric.Device, p fabric.Port) bool { return len(p.GIDs) == 1 }, "gids/0"},
		{"type is new", port + "gid_attrs/types/0", "RoCE v3\n", func(_ fabric.Device, p fabric.Port) bool { return p.GIDs[0].Type == "" }, "types/0"},
		{"node type is new", "class/infiniband/rxe0/node_type", "9: quantum\n",
			func(d fabric.Device, _ fabric.Port) bool { return d.Transport == fabric.TransportOther }, ""},
		{"NUMA node is text", "class/infiniband/rxe0/device/numa_node", "none\n",
			func(d fabric.Device, _ fabric.Port) bool { return d.NUMANode == -1 }, "numa_node"},
		{"a port is not a number", "class/infiniband/rxe0/ports/one/state", "4: ACTIVE\n",
			func(d fabric.Device, _ fabric.Port) bool { return len(d.Ports) == 1 }, ""},
		{"a file is longer than a page", port + "rate", "1 Gb/sec" + strings.Repeat(" ", 10000) + "x",
			func(_ fabric.Device, p fabric.Port) bool { return len(p.RateText) == 8 && p.RateMbps == 1000 }, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			sys, k := fabrictest.RXE()
			f := read(t, sys.With(tt.file, tt.content), k)
			d := f.Devices[0]
			p := d.Ports[0]
			if !tt.zero(d, p) {
				t.Errorf("device %+v", d)
			}
			faults := append(d.Faults, p.Faults...)
			if tt.fault == "" && len(faults) > 0 {
				t.Errorf("faults %v; want none", faults)
			}
			if tt.fault != "" && (len(faults) != 1 || !strings.Contains(faults[0].Error(), tt.fault)) {
				t.Errorf("faults %v; want one about %s", faults, tt.fault)
			}
			if g, err := p.GIDFor(netip.MustParseAddr("10.0.2.15")); err != nil || g.Index != 1 {
				t.Errorf("GIDFor = %v, %v; want index 1, whatever is wrong elsewhere", g.Index, err)
			}
		})
	}
}

func TestRoCEMTUBytes(t *testing.T) {
	tests := []struct{ netdev, want int }{
		{0, 0}, {351, 0}, {352, 256}, {1500, 1024}, {2144, 2048}, {4191, 2048}, {4192, 4096}, {4200, 4096}, {9000, 4096}, {65535, 4096},
	}
	for _, tt := range tests {
		if got := fabric.RoCEMTUBytes(tt.netdev); got != tt.want {
			t.Errorf("RoCEMTUBytes(%d) = %d; want %d", tt.netdev, got, tt.want)
		}
	}
}
