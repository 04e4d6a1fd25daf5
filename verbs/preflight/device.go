package preflight

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/millrace/millrace/verbs/fabric"
)

// exists says whether a file or folder of sysfs is there.
func (c *checker) exists(name string) bool {
	_, err := fs.Stat(c.sys.Sys, name)
	return err == nil
}

// text is the content of a file of sysfs, "" if it can't be read.
func (c *checker) text(name string) string { return readText(c.sys.Sys, name) }

func readText(fsys fs.FS, name string) string {
	b, err := fs.ReadFile(fsys, name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func (c *checker) loads() {
	switch {
	case c.sys.Library == nil:
		c.missing("library", "libibverbs", "this build has the soft provider only", "use a build with the provider ibverbs")
	default:
		if err := c.sys.Library(); err != nil {
			c.missing("library", "libibverbs", err.Error(), "install it: Debian libibverbs1 and ibverbs-providers, RHEL libibverbs")
			return
		}
		c.ok("library", "libibverbs", "loaded")
	}
}

func (c *checker) devices() {
	if len(c.fabric.Devices) == 0 {
		c.noDevice()
		return
	}
	for i := range c.fabric.Devices {
		d := &c.fabric.Devices[i]
		switch {
		case d.Foreign:
			c.problem("netns", d.Name, "the device belongs to another network namespace",
				"move it here: rdma dev set "+d.Name+" netns NAME; or share all: rdma system set netns shared")
			continue
		case d.Transport == fabric.TransportIWARP:
			c.warn("device", d.Name, "iWARP: its queue pairs are connected by rdma_cm, which Millrace does not use",
				"use --rdma soft on this machine; it speaks iWARP too")
			continue
		}
		c.ok("device", d.Name, "%s", describe(d))
		for _, fault := range d.Faults {
			c.warn("device", d.Name, fault.Error(), "compare with: ibv_devinfo -v -d "+d.Name)
		}
		c.modules(d)
		c.nodes(d)
	}
	switch mode := c.fabric.NetnsMode; mode {
	case "":
		c.warn("netns", "", "whether devices are shared between network namespaces can't be read here", "see: rdma system show")
	default:
		c.ok("netns", "", "devices are in %s mode", mode)
	}
}

func describe(d *fabric.Device) string {
	parts := []string{fmt.Sprintf("%d port(s)", len(d.Ports))}
	for _, p := range []struct{ name, value string }{
		{"driver", d.Driver}, {"PCI", d.PCI}, {"on", d.Parent}, {"firmware", d.Firmware}, {"board", d.BoardID},
	} {
		if p.value != "" {
			parts = append(parts, p.name+" "+p.value)
		}
	}
	return strings.Join(parts, ", ")
}

// noDevice tells a machine without an adapter from one whose driver is not complete.
func (c *checker) noDevice() {
	if adapters := c.mellanox(); len(adapters) > 0 {
		c.problem("device", strings.Join(adapters, " "), "an adapter of NVIDIA is there, but no RDMA device",
			"load its driver: modprobe mlx5_ib; see whether RoCE is on: devlink dev param show pci/"+adapters[0]+" name enable_roce")
		return
	}
	c.missing("device", "", "no RDMA device", "put in an adapter with RoCE; for trials without one: rdma link add rxe0 type rxe netdev NAME")
}

// mellanox lists the PCI functions of network adapters of NVIDIA.
func (c *checker) mellanox() []string {
	const dir = "bus/pci/devices"
	entries, err := fs.ReadDir(c.sys.Sys, dir)
	if err != nil {
		return nil
	}
	var out []string
	for _, e := range entries {
		at := path.Join(dir, e.Name())
		if c.text(at+"/vendor") == "0x15b3" && strings.HasPrefix(c.text(at+"/class"), "0x02") {
			out = append(out, e.Name())
		}
	}
	return out
}

func (c *checker) modules(d *fabric.Device) {
	need := []struct{ module, instead string }{{"ib_uverbs", "class/infiniband_verbs"}}
	if d.MLX5() {
		need = append(need, struct{ module, instead string }{"mlx5_ib", ""})
	}
	for _, n := range need {
		if c.exists("module/"+n.module) || (n.instead != "" && c.exists(n.instead)) {
			c.ok("module", n.module, "loaded")
			continue
		}
		c.problem("module", n.module, "not loaded", "modprobe "+n.module+", and name it in /etc/modules-load.d/rdma.conf")
	}
	if !c.exists("module/rdma_ucm") {
		c.warn("module", "rdma_ucm", "not loaded: Millrace does without, tools such as rping and programs of peers don't",
			"modprobe rdma_ucm")
	}
}

func (c *checker) nodes(d *fabric.Device) {
	found := false
	for _, node := range d.CharDevices {
		if !strings.HasPrefix(path.Base(node), "uverbs") {
			continue
		}
		found = true
		err := c.sys.Open(node)
		switch {
		case err == nil:
			c.ok("node", node, "can be opened")
		case errors.Is(err, fs.ErrNotExist):
			c.problem("node", node, "is not there, though the kernel has the device", "give it to the container: --device "+node+"; on a host: udevadm trigger")
		case errors.Is(err, fs.ErrPermission):
			c.problem("node", node, "may not be opened by this process",
				"mode 0666 or a group for it (udev rule of rdma-core); in a container: --device "+node)
		default:
			c.problem("node", node, err.Error(), "see the kernel's log: dmesg | grep "+d.Name)
		}
	}
	if !found {
		c.problem("node", d.Name, "has no uverbs node", "modprobe ib_uverbs")
	}
}

// usable are the ports that a queue pair could use at all.
func (c *checker) usable() []*fabric.Port {
	var out []*fabric.Port
	for i := range c.fabric.Devices {
		d := &c.fabric.Devices[i]
		for j := range d.Ports {
			if !d.Foreign && d.Transport == fabric.TransportIB {
				out = append(out, &d.Ports[j])
			}
		}
	}
	return out
}

// choose returns the ports of the addresses to listen at, or all where none was named or found.
func (c *checker) choose(usable []*fabric.Port) []*fabric.Port {
	var chosen []*fabric.Port
	for _, addr := range c.cfg.Listen {
		if !addr.IsValid() || addr.IsUnspecified() {
			chosen = nil
			break
		}
		if p := c.place(addr); p != nil && !slices.Contains(chosen, p) {
			chosen = append(chosen, p)
		}
	}
	if len(chosen) > 0 {
		return chosen
	}
	if len(c.cfg.Listen) == 0 || c.cfg.Listen[0].IsUnspecified() {
		c.anyGID()
	}
	return usable
}

// place finds the port of an address.
func (c *checker) place(addr netip.Addr) *fabric.Port {
	if addr.IsLoopback() {
		c.problem("gid", addr.String(), "no RDMA device has the loopback address", "listen at an address of the fabric")
		return nil
	}
	at, err := c.fabric.PlaceOf(addr)
	if err != nil {
		c.problem("gid", addr.String(), err.Error(),
			"see what there is: rdma link, ip addr, and gid_attrs below /sys/class/infiniband/DEVICE/ports/N")
		return nil
	}
	c.ok("gid", addr.String(), "%s port %d, index %d, %s, interface %s", at.Device.Name, at.Port.Number, at.GID.Index, at.GID.Type, at.GID.Netdev)
	return at.Port
}

// anyGID wants a GID of either family; that of IPv4 is what most peers use.
func (c *checker) anyGID() {
	found := 0
	for _, family := range []fabric.Family{fabric.IPv4, fabric.IPv6} {
		at, err := c.fabric.Any(family)
		if err != nil {
			continue
		}
		found++
		c.ok("gid", family.String(), "%s port %d, index %d, %s, interface %s", at.Device.Name, at.Port.Number, at.GID.Index, at.GID.Addr(), at.GID.Netdev)
		if family == fabric.IPv4 {
			continue
		}
		if found == 1 {
			c.warn("gid", "IPv4", "no entry of RoCE v2 for an IPv4 address: peers that have only such can't be reached", "give the interface an IPv4 address")
		}
	}
	if found == 0 && c.ethernet() {
		c.problem("gid", "", "no port has a GID of RoCE v2", "give an interface of the device an address; see gid_attrs/types")
	}
}

// ethernet says whether any port is on Ethernet: only those have GIDs of RoCE.
func (c *checker) ethernet() bool {
	for _, p := range c.usable() {
		if p.LinkLayer != fabric.InfiniBand {
			return true
		}
	}
	return false
}
