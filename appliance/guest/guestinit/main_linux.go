// Command guestinit is the first process of a guest: it mounts, loads modules, configures the network, and then runs
// the agent until the guest is powered off. It is built for tests only and runs nowhere else: as anything but process
// 1 it refuses to start. What fails of the setup is told by the agent to whoever started the guest.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/millrace/millrace/appliance/guest/agent"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// appearTimeout is how long a device may take to appear after its module was loaded.
const appearTimeout = 2 * time.Minute

func main() {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "guestinit: only for the first process of a guest")
		os.Exit(2)
	}
	err := setUp()
	if err != nil {
		fmt.Println("guestinit:", err)
	}
	listener, listenErr := net.Listen("tcp", fmt.Sprintf(":%d", agent.Port))
	if listenErr != nil {
		fmt.Println("guestinit:", listenErr)
		off()
	}
	fmt.Println("guestinit: ready")
	s := &agent.Server{SetupErr: err, Off: off}
	fmt.Println("guestinit:", s.Serve(listener))
	off()
}

func off() {
	unix.Sync()
	unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

func setUp() error {
	if err := mounts(); err != nil {
		return err
	}
	for name, value := range map[string]string{"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "TMPDIR": "/tmp"} {
		os.Setenv(name, value)
	}
	text, err := os.ReadFile(agent.SetupPath)
	if err != nil {
		return err
	}
	var s agent.Setup
	if err := json.Unmarshal(text, &s); err != nil {
		return fmt.Errorf("%s: %w", agent.SetupPath, err)
	}
	var errs []error // go on after an error: with a network, it can be told
	for _, m := range s.Modules {
		errs = append(errs, load(m))
	}
	errs = append(errs, network(s))
	if s.Namespaces > 0 {
		errs = append(errs, appear(func() bool {
			found, _ := filepath.Glob("/dev/nvme*n[0-9]*")
			return len(found) >= s.Namespaces
		}, fmt.Sprintf("%d NVMe namespaces", s.Namespaces)))
	}
	return errors.Join(errs...)
}

func mounts() error {
	for _, m := range []struct{ kind, dir string }{
		{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}, {"tmpfs", "/tmp"}, {"tmpfs", "/run"},
		{"tmpfs", "/dev/shm"}, {"debugfs", "/sys/kernel/debug"},
	} {
		if err := os.MkdirAll(m.dir, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.kind, m.dir, m.kind, 0, ""); err != nil && !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("mount %s: %w", m.dir, err)
		}
	}
	return nil
}

func load(m agent.Module) error {
	f, err := os.Open(m.Path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.FinitModule(int(f.Fd()), m.Params, 0); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("load %s: %w", m.Path, err)
	}
	return nil
}

func network(s agent.Setup) error {
	for _, i := range append([]agent.Interface{{Name: "lo"}}, s.Interfaces...) {
		if err := configure(i); err != nil {
			return fmt.Errorf("interface %s: %w", i.Name, err)
		}
	}
	for _, l := range s.Links {
		if err := netlink.RdmaLinkAdd(l.Name, l.Type, l.NetDev); err != nil {
			return fmt.Errorf("RDMA link %s of type %s over %s: %w", l.Name, l.Type, l.NetDev, err)
		}
	}
	return nil
}

func configure(i agent.Interface) error {
	var link netlink.Link
	found := func() bool {
		var err error
		link, err = netlink.LinkByName(i.Name)
		return err == nil
	}
	if err := appear(found, "it"); err != nil {
		return err
	}
	if i.MTU != 0 {
		if err := netlink.LinkSetMTU(link, i.MTU); err != nil {
			return fmt.Errorf("MTU %d: %w", i.MTU, err)
		}
	}
	for _, a := range i.Addresses {
		addr, err := netlink.ParseAddr(a)
		if err != nil {
			return err
		}
		addr.Flags = unix.IFA_F_NODAD // nobody else is on this network: use it at once
		if err := netlink.AddrAdd(link, addr); err != nil {
			return fmt.Errorf("address %s: %w", a, err)
		}
	}
	return netlink.LinkSetUp(link)
}

func appear(there func() bool, what string) error {
	for end := time.Now().Add(appearTimeout); !there(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Errorf("%s did not appear in %v", what, appearTimeout)
		}
	}
	return nil
}
