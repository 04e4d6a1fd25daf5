// Package fabric tells what the kernel says about the RDMA devices of this machine: devices and their ports,
// the tables of GIDs, which network interface and network namespace each belongs to. From that it chooses the
// GID that a queue pair has to use. All of it comes from sysfs and from netlink, and nothing is changed.
//
// It is not a provider and opens no device: what only the driver knows (the active MTU, limits, capabilities)
// is asked through verbs. It does not judge either; verbs/preflight does.
//
// Invariant: a file that is missing, empty or odd never hides the rest. What was read wrong is in Faults, and its
// field has the zero value.
package fabric

import (
	"errors"
	"io/fs"
	"net/netip"
	"strings"
)

// LinkLayer is what a port sits on, as the kernel names it.
type LinkLayer string

// The link layers.
const (
	Ethernet   LinkLayer = "Ethernet"
	InfiniBand LinkLayer = "InfiniBand"
)

// Transport is what a device speaks on its link layer.
type Transport string

// The transports: RoCE and InfiniBand both are TransportIB.
const (
	TransportIB    Transport = "InfiniBand"
	TransportIWARP Transport = "iWARP"
	TransportOther Transport = "other"
)

// GIDType is the kind of an entry of a GID table.
type GIDType string

// The kinds of GIDs. In sysfs the first and the second have one name; the link layer tells them apart.
const (
	GIDIB     GIDType = "IB"
	GIDRoCEv1 GIDType = "RoCE v1"
	GIDRoCEv2 GIDType = "RoCE v2"
)

// Fabric is what was read.
type Fabric struct {
	Devices []Device // by name
	// NetnsMode is "shared" (every device is seen from every network namespace) or "exclusive" (each belongs
	// to one); empty if the kernel didn't tell.
	NetnsMode string
	// Faults are what could not be read, of the machine as a whole.
	Faults []error
}

// Device is one RDMA device.
type Device struct {
	Name      string // mlx5_0
	Transport Transport
	Firmware  string // as the driver gives it; may be empty
	BoardID   string // PSID of the board; may be empty
	NodeGUID  string
	// PCI is the address of the function, empty for a device in software; Driver is what drives it.
	PCI, Driver string
	NUMANode    int    // -1: none
	Parent      string // the network interface that a software device was made on, if the driver tells
	// CharDevices are the device nodes that user space needs: /dev/infiniband/uverbs0, …
	CharDevices []string
	// Foreign means that sysfs shows the device, but it belongs to another network namespace: it can't be opened.
	Foreign bool
	Ports   []Port // by number
	Faults  []error
}

// Port is one port of a device.
type Port struct {
	Device    string
	Number    int       // from 1
	State     string    // "ACTIVE", "DOWN", "INIT", "ARMED"
	PhysState string    // "LinkUp", "Disabled", "Polling", …
	LinkLayer LinkLayer // empty if not known
	// RateText is the rate as the kernel writes it, RateMbps the same as a number (10^6 bits/s); 0: not known.
	RateText string
	RateMbps int
	LID      uint16 // 0 on Ethernet
	// Netdevs are the network interfaces that the entries of the GID table are for, without doubles.
	Netdevs []Netdev
	GIDs    []GID // those that are not zero, by index
	Faults  []error
}

// Active says whether the port carries traffic.
func (p *Port) Active() bool { return p.State == "ACTIVE" }

// Netdev is a network interface below a port.
type Netdev struct {
	Name string
	// Foreign means that it is in another network namespace than this process, or is gone.
	Foreign   bool
	MTUBytes  int    // 0 if foreign or not known
	OperState string // "up", "down", …
}

// GID is an entry of a port's GID table.
type GID struct {
	Index  int
	Bytes  [16]byte
	Type   GIDType
	Netdev string // empty on InfiniBand
}

// Addr is the GID as an address: IPv4 where it is an IPv4-mapped one.
func (g GID) Addr() netip.Addr { return netip.AddrFrom16(g.Bytes).Unmap() }

// RoCEMTUBytes is the InfiniBand MTU that a port on a network interface of the given MTU ends up with: the largest that
// leaves room for the headers of RoCE, 96 bytes as the kernel counts (iboe_get_mtu in ib_addr.h); 0 if none does.
func RoCEMTUBytes(netdevMTUBytes int) int {
	const headers = 40 + 8 + 12 + 4 + 28 + 4 // GRH, UDP, BTH, XRC, AtomicETH, ICRC
	for _, mtu := range []int{4096, 2048, 1024, 512, 256} {
		if netdevMTUBytes >= mtu+headers {
			return mtu
		}
	}
	return 0
}

// Kernel answers what is not in sysfs.
type Kernel interface {
	// Devices are the names of the RDMA devices of this network namespace.
	Devices() ([]string, error)
	// NetnsMode is "shared" or "exclusive".
	NetnsMode() (string, error)
	// CharDevices are the paths of the device nodes for a device.
	CharDevices(device string) []string
}

// Read reads all devices from sys, the root of a sysfs. It fails only if sys can't be read at all; a machine
// without RDMA has no devices.
func Read(sys fs.FS, k Kernel) (*Fabric, error) {
	f := &Fabric{}
	var err error
	if f.NetnsMode, err = k.NetnsMode(); err != nil {
		f.Faults = append(f.Faults, &Error{Op: "netns mode", Err: err})
	}
	names, err := list(sys, "class/infiniband", maxDevices)
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil
	}
	if err != nil {
		return nil, &Error{Op: "read", Path: "class/infiniband", Err: err}
	}
	own, err := k.Devices()
	if err != nil {
		f.Faults = append(f.Faults, &Error{Op: "list of devices", Err: err})
	}
	here := map[string]bool{}
	for _, name := range own {
		here[name] = true
	}
	for _, name := range names {
		d := readDevice(sys, name)
		d.Foreign = err == nil && !here[name]
		d.CharDevices = k.CharDevices(name)
		f.Devices = append(f.Devices, d)
	}
	return f, nil
}

// Device returns the device of that name.
func (f *Fabric) Device(name string) (*Device, bool) {
	for i := range f.Devices {
		if f.Devices[i].Name == name {
			return &f.Devices[i], true
		}
	}
	return nil, false
}

// MLX5 says whether the driver is that of NVIDIA's adapters: mlx5_core, or mlx5_core.sf for a sub-function.
func (d *Device) MLX5() bool { return strings.HasPrefix(d.Driver, "mlx5_core") }

// Port returns the port of that number.
func (d *Device) Port(number int) (*Port, bool) {
	for i := range d.Ports {
		if d.Ports[i].Number == number {
			return &d.Ports[i], true
		}
	}
	return nil, false
}
