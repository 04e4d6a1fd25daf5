package guest

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/millrace/millrace/appliance/guest/agent"
)

func (c Config) emulator() string {
	if c.Arch == ARM64 {
		return "qemu-system-aarch64"
	}
	return "qemu-system-x86_64"
}

// arguments is QEMU's command line.
func (c Config) arguments(img image, dir string) []string {
	machine, cpu := "virt", "cortex-a72"
	if c.Arch == AMD64 {
		machine, cpu = "q35", "max"
	}
	args := []string{
		"-M", machine, "-cpu", cpu, "-accel", "tcg,thread=multi",
		"-smp", strconv.Itoa(c.CPUs), "-m", strconv.Itoa(c.MemoryMiB),
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-serial", "file:" + filepath.Join(dir, consoleName),
		"-qmp", "unix:" + filepath.Join(dir, qmpName) + ",server=on,wait=off",
		"-kernel", img.kernel, "-initrd", img.initramfs, "-append", c.kernelLine(),
		"-device", "virtio-rng-pci",
	}
	forward := "user,id=outside,restrict=off"
	for _, port := range append([]int{agent.Port}, c.Forward...) {
		forward += fmt.Sprintf(",hostfwd=tcp:127.0.0.1:0-:%d", port)
	}
	args = append(args, "-netdev", forward, "-device", "virtio-net-pci,netdev=outside,romfile=")
	if c.Fabric != nil {
		args = append(args, c.Fabric.arguments()...)
	}
	for i, d := range c.Drives {
		args = append(args, "-device", fmt.Sprintf("pcie-root-port,id=port%d,chassis=%d,slot=%d", i, i+1, i+1))
		if d.Source != "" {
			args = append(args, "-blockdev", commandLine(d.backend(i)), "-device", commandLine(d.device(i)))
		}
	}
	return args
}

func (f *Fabric) arguments() []string {
	server, mac := "off", "52:54:00:00:01:02"
	if f.Listen {
		server, mac = "on", "52:54:00:00:01:01"
	}
	return []string{
		"-netdev", fmt.Sprintf("stream,id=fabric,server=%s,addr.type=unix,addr.path=%s", server, f.Socket),
		"-device", "virtio-net-pci,netdev=fabric,romfile=,mac=" + mac,
	}
}

// backend is the block device of QEMU behind a drive, as QMP's blockdev-add takes it. A flush of the guest's is one of
// the file, or of the NBD server.
func (d Drive) backend(n int) map[string]any {
	if socket, ok := strings.CutPrefix(d.Source, "unix:"); ok {
		return map[string]any{"driver": "nbd", "node-name": nodeName(n), "server": map[string]any{"type": "unix", "path": socket}}
	}
	return map[string]any{"driver": "raw", "node-name": nodeName(n),
		"file": map[string]any{"driver": "file", "filename": d.Source}}
}

// device is the drive itself, as QMP's device_add takes it.
func (d Drive) device(n int) map[string]any {
	return map[string]any{"driver": "nvme", "id": driveID(n), "bus": fmt.Sprintf("port%d", n), "drive": nodeName(n),
		"serial": d.Serial, "logical_block_size": d.SectorBytes, "physical_block_size": max(d.SectorBytes, 4096)}
}

// commandLine is a value that QEMU's options take in place of "key=value,…".
func commandLine(value map[string]any) string {
	b, _ := json.Marshal(value) // maps of strings and numbers can't fail
	return string(b)
}

func nodeName(n int) string { return fmt.Sprintf("node%d", n) }
func driveID(n int) string  { return fmt.Sprintf("nvme%d", n) }

func (c Config) kernelLine() string {
	console := "ttyAMA0"
	if c.Arch == AMD64 {
		console = "ttyS0"
	}
	// nokaslr: with it the arm64 kernel isolates its page tables, which is dear when emulated.
	words := []string{"console=" + console, "panic=-1", "quiet", "nokaslr", "net.ifnames=0"}
	return strings.Join(append(words, c.KernelArgs...), " ")
}

// The files in a guest's folder.
const (
	consoleName   = "console.log"
	qemuLogName   = "qemu.log"
	qmpName       = "qmp"
	initName      = "init"
	initramfsName = "initramfs"
)

// forwards reads the answer to "info usernet": which port outside leads to each port of the guest. A line of it:
//
//	TCP[HOST_FORWARD]  12       127.0.0.1 40123       10.0.2.15    22     0     0
func forwards(text string) map[int]int {
	ports := map[int]int{}
	for _, line := range strings.Split(text, "\n") {
		f := strings.Fields(line)
		if len(f) < 6 || f[0] != "TCP[HOST_FORWARD]" {
			continue
		}
		outside, err1 := strconv.Atoi(f[3])
		inside, err2 := strconv.Atoi(f[5])
		if err1 == nil && err2 == nil {
			ports[inside] = outside
		}
	}
	return ports
}
