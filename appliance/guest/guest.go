// Package guest boots virtual machines for tests: Debian's kernel for arm64 or amd64 under QEMU, with an init program
// of ours, emulated NVMe drives, and a network between guests. It emulates the processor always, so that times in a
// guest say nothing about hardware, and it is no manager of machines: a guest lives as long as its test. Nothing is
// left of a guest when its context ends, when Close returns, or when the process that started it dies.
//
// What a guest needs is taken from the machine's own Debian mirror and kept in a Cache.
package guest

import (
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/appliance/guest/agent"
)

// Arch is a processor architecture, as Go and Debian both name it.
type Arch string

// The architectures that there are guests for.
const (
	ARM64 Arch = "arm64"
	AMD64 Arch = "amd64"
)

// Command, Interface, Link and ExitError are those of the agent.
type (
	// Command is a program to run in a guest.
	Command = agent.Command
	// Interface is a network interface of a guest.
	Interface = agent.Interface
	// Link is a software RDMA device over a network interface.
	Link = agent.Link
	// ExitError is a command that ended with another status than 0.
	ExitError = agent.ExitError
)

// Config is what Start makes a guest of. The zero values of all but Arch are good.
type Config struct {
	Arch      Arch
	CPUs      int // 1
	MemoryMiB int // 512
	// Deadline is when the guest is killed at the latest, counted from its start: 10 minutes.
	Deadline time.Duration
	// Dir keeps console.log and qemu.log. "": a temporary folder, which Close removes.
	Dir string

	// Modules are kernel modules by name, or files of this machine by absolute path (Cache.SIW), each perhaps with
	// parameters ("nvme_core io_timeout=5"). What they depend on is loaded before them; those for the emulated devices are
	// loaded anyway.
	Modules []string
	Sets    []Set
	Files   []File

	Drives []Drive
	// Forward are TCP ports of the guest that can be reached from outside, at VM.Forwarded.
	Forward []int
	// Fabric is a second network interface, eth1, that leads to one other guest. (eth0 leads outside.)
	Fabric *Fabric
	// Interfaces are configured in addition to eth0 and eth1.
	Interfaces []Interface
	Links      []Link
	// KernelArgs are appended to the kernel's command line.
	KernelArgs []string
}

// A File is put into the guest from outside. A dynamically linked program brings its libraries, if the packages of a
// Set have them.
type File struct {
	Path   string // in the guest
	Source string // on this machine
	Mode   uint32 // 0: 0755
}

// A Drive is an emulated NVMe drive with one namespace, on a PCIe port of its own. The n-th of a configuration has
// the device ID "nvme<n>", counted from 0, and usually the same name in the guest.
type Drive struct {
	// Source is a raw file, or "unix:PATH" for an NBD server at that socket. "" leaves the port empty, for PlugDrive.
	Source      string
	Serial      string // "": DRIVE<n>
	SectorBytes int    // 512 or 4096; 0: 512
}

// A Fabric is one end of a cable between two guests.
type Fabric struct {
	// Socket is the path of a Unix socket, at most 107 bytes, the same at both ends. The guest with Listen has to be
	// started first.
	Socket    string
	Listen    bool
	Addresses []string // of eth1, as in 192.0.2.1/24
	MTU       int      // 0: 9000
}

// A Set is software from Debian packages.
type Set struct {
	Packages []string // what they depend on is fetched as well
	// Paths are patterns (path.Match) of what goes from the packages into the guest, with the libraries needed.
	Paths   []string
	Modules []string
}

// BusyBox gives the guest a shell and the usual small programs.
func BusyBox() Set { return Set{Packages: []string{"busybox-static"}, Paths: []string{"/bin/busybox"}} }

// GLibc gives the guest what a dynamically linked program needs at least.
func GLibc() Set {
	s := Set{Packages: []string{"libc6", "libgcc-s1"}}
	for _, lib := range []string{"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "libgcc_s.so.1"} {
		s.Paths = append(s.Paths, "/lib/*-linux-gnu/"+lib)
	}
	return s
}

// Verbs gives the guest libibverbs and librdmacm with the providers of the software devices, the programs that test
// them (ibv_rc_pingpong, ib_write_bw, rping and so on), and the modules of Soft-RoCE.
func Verbs() Set {
	s := GLibc()
	s.Packages = append(s.Packages, "libibverbs1", "ibverbs-providers", "librdmacm1", "ibverbs-utils", "rdmacm-utils", "perftest")
	s.Paths = append(s.Paths,
		"/usr/lib/*-linux-gnu/libibverbs.so.1", "/usr/lib/*-linux-gnu/librdmacm.so.1",
		"/usr/lib/*-linux-gnu/libibverbs/librxe-*.so", "/usr/lib/*-linux-gnu/libibverbs/libsiw-*.so",
		"/etc/libibverbs.d/rxe.driver", "/etc/libibverbs.d/siw.driver",
		"/usr/bin/ibv_devinfo", "/usr/bin/ibv_rc_pingpong", "/usr/bin/rping",
		"/usr/bin/ib_write_bw", "/usr/bin/ib_read_bw", "/usr/bin/ib_send_bw", "/usr/bin/ib_read_lat")
	s.Modules = []string{"rdma_rxe", "ib_uverbs", "rdma_ucm"}
	return s
}

// FileSystems gives the guest what it takes to make and mount ext4.
func FileSystems() Set {
	return Set{Packages: []string{"e2fsprogs"}, Paths: []string{"/sbin/mke2fs", "/sbin/mkfs.ext4", "/sbin/e2fsck",
		"/etc/mke2fs.conf"}, Modules: []string{"ext4"}}
}

// withDefaults gives a copy with all set that Start needs, or says what is wrong with it.
func (c Config) withDefaults() (Config, error) {
	if c.Arch != ARM64 && c.Arch != AMD64 {
		return c, fmt.Errorf("guest: no architecture %q", c.Arch)
	}
	if c.CPUs == 0 {
		c.CPUs = 1
	}
	if c.MemoryMiB == 0 {
		c.MemoryMiB = 512
	}
	if c.Deadline == 0 {
		c.Deadline = 10 * time.Minute
	}
	c.Drives = slices.Clone(c.Drives)
	for i := range c.Drives {
		d := &c.Drives[i]
		if d.SectorBytes == 0 {
			d.SectorBytes = 512
		}
		if d.Serial == "" {
			d.Serial = fmt.Sprintf("DRIVE%d", i)
		}
	}
	if c.Fabric != nil {
		f := *c.Fabric
		if f.MTU == 0 {
			f.MTU = 9000
		}
		if len(f.Socket) > maxSocketPath {
			return c, fmt.Errorf("guest: the path of the fabric's socket has more than %d bytes: %s", maxSocketPath, f.Socket)
		}
		c.Fabric = &f
	}
	return c, nil
}

// maxSocketPath is what sockaddr_un holds (unix(7)).
const maxSocketPath = 107
