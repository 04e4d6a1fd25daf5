package fabric

import (
	"os"
	"slices"

	"github.com/Mellanox/rdmamap"
	"github.com/vishvananda/netlink"
)

// host asks the kernel of this machine.
type host struct{}

// Host returns the kernel of this machine, to be used with Read.
func Host() Kernel { return host{} }

// ReadHost reads the devices of this machine.
func ReadHost() (*Fabric, error) { return Read(os.DirFS("/sys"), Host()) }

// Devices asks by RDMA netlink, which answers for the namespace of the process; sysfs shows that of its mount.
func (host) Devices() ([]string, error) {
	links, err := netlink.RdmaLinkList()
	var names []string
	for _, l := range links {
		names = append(names, l.Attrs.Name)
	}
	return names, err
}

func (host) NetnsMode() (string, error) { return netlink.RdmaSystemGetNetnsMode() }

func (host) CharDevices(device string) []string {
	nodes := rdmamap.GetRdmaCharDevices(device)
	slices.Sort(nodes)
	return nodes
}
