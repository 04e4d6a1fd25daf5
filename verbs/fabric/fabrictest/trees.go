// Package fabrictest has trees of sysfs as kernels with RDMA devices show them, for tests that run on machines without
// any. Each tree can be changed before it is used, so that a test says what is wrong with its machine in one line.
//
// It is not a simulation: nothing happens to a tree by itself, and only the files that Millrace reads are there.
// Invariant: a file that the kernel refuses to let be read can be opened here too, and fails when read.
package fabrictest

import (
	"fmt"
	"io/fs"
	"maps"
	"strings"
	"syscall"
	"testing/fstest"
)

// Sys is a sysfs: files by path below its root. A content that starts with "->" makes a symbolic link, Refused a
// file that can't be read.
type Sys map[string]string

// Refused is the content of a file whose reading fails with EINVAL, as attributes of empty GIDs do.
const Refused = "!EINVAL"

// With returns a copy of the tree with one file changed or added.
func (s Sys) With(name, content string) Sys {
	out := maps.Clone(s)
	out[name] = content
	return out
}

// Without returns a copy of the tree without a file, and without all that is below that name.
func (s Sys) Without(name string) Sys {
	out := maps.Clone(s)
	maps.DeleteFunc(out, func(k, _ string) bool { return k == name || strings.HasPrefix(k, name+"/") })
	return out
}

// Join returns a tree with the files of all.
func Join(trees ...Sys) Sys {
	out := Sys{}
	for _, t := range trees {
		maps.Copy(out, t)
	}
	return out
}

// FS returns the tree as a file system.
func (s Sys) FS() fs.FS {
	m := fstest.MapFS{}
	for name, content := range s {
		f := &fstest.MapFile{Data: []byte(content), Mode: 0o444}
		if target, ok := strings.CutPrefix(content, "->"); ok {
			f = &fstest.MapFile{Data: []byte(target), Mode: fs.ModeSymlink | 0o777}
		}
		m[name] = f
	}
	return refusing{m}
}

// refusing fails reads of the files that are Refused.
type refusing struct{ fstest.MapFS }

func (r refusing) Open(name string) (fs.File, error) {
	f, err := r.MapFS.Open(name)
	if err != nil {
		return nil, err
	}
	if m, ok := r.MapFS[name]; ok && string(m.Data) == Refused {
		return refused{f}, nil
	}
	return f, nil
}

type refused struct{ fs.File }

func (refused) Read([]byte) (int, error) { return 0, syscall.EINVAL }

// ReadFile hides the one of MapFS, which knows no refusal.
func (r refusing) ReadFile(name string) ([]byte, error) {
	if m, ok := r.MapFS[name]; ok && string(m.Data) == Refused {
		return nil, &fs.PathError{Op: "read", Path: name, Err: syscall.EINVAL}
	}
	return r.MapFS.ReadFile(name)
}

// Kernel answers for a tree.
type Kernel struct {
	Names    []string // of the devices of this namespace
	NamesErr error
	Mode     string
	ModeErr  error
	Nodes    map[string][]string // device nodes by device
}

// Devices returns Names.
func (k Kernel) Devices() ([]string, error) { return k.Names, k.NamesErr }

// NetnsMode returns Mode.
func (k Kernel) NetnsMode() (string, error) { return k.Mode, k.ModeErr }

// CharDevices returns the Nodes of a device.
func (k Kernel) CharDevices(device string) []string { return k.Nodes[device] }

// GID is an entry of a table.
type GID struct {
	Text, Type, Netdev string // as in the files
}

// Device returns the folder of a device with its own files.
func Device(name, nodeType string) Sys {
	dir := "class/infiniband/" + name + "/"
	return Sys{dir + "node_type": nodeType + "\n", dir + "node_guid": "0c42:a103:00d2:9b28\n"}
}

// Port returns the folder of a port with a table of GIDs and one empty entry behind it.
func Port(device string, number int, layer, rate string, gids ...GID) Sys {
	dir := fmt.Sprintf("class/infiniband/%s/ports/%d/", device, number)
	s := Sys{
		dir + "state": "4: ACTIVE\n", dir + "phys_state": "5: LinkUp\n",
		dir + "link_layer": layer + "\n", dir + "rate": rate + "\n", dir + "lid": "0x0\n",
	}
	for i, g := range append(gids, GID{"0000:0000:0000:0000:0000:0000:0000:0000", Refused, Refused}) {
		s[fmt.Sprintf("%sgids/%d", dir, i)] = g.Text + "\n"
		s[fmt.Sprintf("%sgid_attrs/types/%d", dir, i)] = line(g.Type)
		s[fmt.Sprintf("%sgid_attrs/ndevs/%d", dir, i)] = line(g.Netdev)
	}
	return s
}

func line(s string) string {
	if s == Refused {
		return s
	}
	return s + "\n"
}

// Netdev returns a network interface.
func Netdev(name string, mtuBytes int) Sys {
	dir := "class/net/" + name + "/"
	return Sys{dir + "mtu": fmt.Sprintln(mtuBytes), dir + "operstate": "up\n"}
}

// Pairs lists addresses as mlx5 does: each twice, for RoCE v1 first.
func Pairs(netdev string, gids ...string) []GID {
	var out []GID
	for _, g := range gids {
		out = append(out, GID{g, "IB/RoCE v1", netdev}, GID{g, "RoCE v2", netdev})
	}
	return out
}

// Bridge is the PCI bridge above the adapter of MLX5.
const Bridge = "0000:00:01.0"

// MLX5 is an adapter with two functions of one port each, on p0 (192.168.7.1, 2001:db8:7::1) and p1 (192.168.8.1), MTU 9000.
func MLX5() (Sys, Kernel) {
	sys := Join(
		Device("mlx5_0", "1: CA"), Device("mlx5_1", "1: CA"),
		Port("mlx5_0", 1, "Ethernet", "200 Gb/sec (4X HDR)", Pairs("p0", "fe80:0000:0000:0000:0e42:a1ff:fed2:9b28",
			"0000:0000:0000:0000:0000:ffff:c0a8:0701", "2001:0db8:0007:0000:0000:0000:0000:0001")...),
		Port("mlx5_1", 1, "Ethernet", "200 Gb/sec (4X HDR)", Pairs("p1", "fe80:0000:0000:0000:0e42:a1ff:fed2:9b29",
			"0000:0000:0000:0000:0000:ffff:c0a8:0801")...),
		Netdev("p0", 9000), Netdev("p1", 9000),
	)
	for i, name := range []string{"mlx5_0", "mlx5_1"} {
		dir := "class/infiniband/" + name + "/"
		bdf := fmt.Sprintf("0000:03:00.%d", i)
		at := "devices/pci0000:00/" + Bridge + "/" + bdf + "/"
		sys["bus/pci/devices/"+bdf] = "->../../../" + strings.TrimSuffix(at, "/")
		sys[dir+"device"] = "->../../../" + strings.TrimSuffix(at, "/")
		sys[at+"driver"] = "->../../../../bus/pci/drivers/mlx5_core"
		sys[at+"numa_node"] = "0\n"
		sys["bus/pci/drivers/mlx5_core/module"] = "->../../../../module/mlx5_core"
		sys[dir+"fw_ver"] = "32.39.1002\n"
		sys[dir+"board_id"] = "MT_0000000884\n"
	}
	return sys, Kernel{
		Names: []string{"mlx5_0", "mlx5_1"}, Mode: "shared", Nodes: map[string][]string{
			"mlx5_0": {"/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs0"},
			"mlx5_1": {"/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs1"},
		},
	}
}

// RXE is soft-RoCE on eth0 (10.0.2.15), MTU 1500.
func RXE() (Sys, Kernel) {
	sys := Join(
		Device("rxe0", "1: CA"), Netdev("eth0", 1500),
		Port("rxe0", 1, "Ethernet", "2.5 Gb/sec (1X SDR)",
			GID{"fe80:0000:0000:0000:5054:00ff:fe12:3456", "RoCE v2", "eth0"},
			GID{"0000:0000:0000:0000:0000:ffff:0a00:020f", "RoCE v2", "eth0"}),
		Sys{"class/infiniband/rxe0/parent": "eth0\n"},
	)
	return sys, Kernel{
		Names: []string{"rxe0"}, Mode: "shared",
		Nodes: map[string][]string{"rxe0": {"/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs0"}},
	}
}

// IB is an adapter on InfiniBand.
func IB() (Sys, Kernel) {
	sys := Join(
		Device("mlx5_0", "1: CA"),
		Port("mlx5_0", 1, "InfiniBand", "400 Gb/sec (4X NDR)",
			GID{"fe80:0000:0000:0000:0c42:a103:00d2:9b28", "IB/RoCE v1", Refused}),
	).With("class/infiniband/mlx5_0/ports/1/lid", "0x1c\n")
	return sys, Kernel{
		Names: []string{"mlx5_0"}, Mode: "shared",
		Nodes: map[string][]string{"mlx5_0": {"/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs0"}},
	}
}

// SIW is soft-iWARP on eth0. Its one GID is made of the hardware address.
func SIW() (Sys, Kernel) {
	sys := Join(
		Device("siw0", "4: RNIC"), Netdev("eth0", 1500),
		Port("siw0", 1, "Ethernet", "2.5 Gb/sec (1X SDR)",
			GID{"5254:0012:3456:0000:0000:0000:0000:0000", "IB/RoCE v1", Refused}),
	)
	return sys, Kernel{
		Names: []string{"siw0"}, Mode: "shared",
		Nodes: map[string][]string{"siw0": {"/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs0"}},
	}
}
