package preflight

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path"
	"strconv"
	"strings"

	"github.com/millrace/millrace/verbs/fabric"
)

// memlockSlackBytes is for the rings of queue pairs and completion queues, which are locked too.
const memlockSlackBytes = 64 << 20

// memlock compares the limit on locked memory with what will be registered. The kernel asks for CAP_IPC_LOCK of the first
// user namespace, so a container's own root does not have it.
func (c *checker) memlock() {
	need := uint64(c.cfg.ArenaBytes) + memlockSlackBytes
	const advice = "LimitMEMLOCK=infinity in the unit; containers: --ulimit memlock=-1; shells: ulimit -l unlimited"
	limit, err := memlockLimit(readText(c.sys.Proc, "self/limits"))
	switch {
	case err != nil:
		c.warn("memlock", "", "the limit can't be read here: "+err.Error(), advice)
	case limit == math.MaxUint64:
		c.ok("memlock", "", "unlimited")
	case limit >= need:
		c.ok("memlock", "", "%d MiB, needed are %d", limit>>20, need>>20)
	case c.capIPCLock():
		c.ok("memlock", "", "%d MiB, needed are %d, but the process has CAP_IPC_LOCK", limit>>20, need>>20)
	default:
		c.problem("memlock", "", fmt.Sprintf("%d KiB may be locked, needed are %d: registration fails", limit>>10, need>>10), advice)
	}
}

// memlockLimit reads the soft limit from /proc/self/limits.
func memlockLimit(limits string) (uint64, error) {
	for line := range strings.Lines(limits) {
		rest, ok := strings.CutPrefix(line, "Max locked memory")
		if !ok {
			continue
		}
		fields := strings.Fields(rest)
		if len(fields) > 0 && fields[0] == "unlimited" {
			return math.MaxUint64, nil
		}
		if len(fields) > 0 {
			return strconv.ParseUint(fields[0], 10, 64)
		}
	}
	return 0, errors.New("no line for locked memory in /proc/self/limits")
}

func (c *checker) capIPCLock() bool {
	const bit = 14
	if strings.Join(strings.Fields(readText(c.sys.Proc, "self/uid_map")), " ") != "0 0 4294967295" {
		return false
	}
	for line := range strings.Lines(readText(c.sys.Proc, "self/status")) {
		if rest, ok := strings.CutPrefix(line, "CapEff:"); ok {
			v, err := strconv.ParseUint(strings.TrimSpace(rest), 16, 64)
			return err == nil && v&(1<<bit) != 0
		}
	}
	return false
}

// pci judges the path from a device to memory.
func (c *checker) pci(d *fabric.Device) {
	at := "bus/pci/devices/" + d.PCI
	c.lanes(d.PCI, at)
	c.iommu(d.PCI, at)
	c.acs(d.PCI, at)
	if d.NUMANode >= 0 {
		c.ok("numa", d.PCI, "node %d of %s", d.NUMANode, c.text("devices/system/node/online"))
	} else if online := c.text("devices/system/node/online"); strings.ContainsAny(online, "-,") {
		c.warn("numa", d.PCI, "the node of the adapter is not known, and the machine has nodes "+online, "see the firmware's settings")
	}
}

func (c *checker) lanes(bdf, at string) {
	speed, width := c.text(at+"/current_link_speed"), c.text(at+"/current_link_width")
	most, widest := c.text(at+"/max_link_speed"), c.text(at+"/max_link_width")
	switch {
	case speed == "" || width == "":
		c.warn("pcie", bdf, "speed and width can't be read here", "see: lspci -vv -s "+bdf)
	case speed != most || width != widest:
		c.warn("pcie", bdf, fmt.Sprintf("%s x%s, the adapter can do %s x%s", speed, width, most, widest),
			"another slot, or seat the adapter anew; see: lspci -vv -s "+bdf)
	default:
		c.ok("pcie", bdf, "%s x%s", speed, width)
	}
}

func (c *checker) iommu(bdf, at string) {
	switch kind := c.text(at + "/iommu_group/type"); {
	case kind == "identity":
		c.ok("iommu", bdf, "passes through")
	case kind != "":
		c.warn("iommu", bdf, "translates every access of the adapter ("+kind+")", "iommu.passthrough=1 on the kernel's command line, where tenants don't share the machine")
	case c.exists(at + "/iommu_group"):
		c.warn("iommu", bdf, "its mode can't be read here", "see: dmesg | grep -i iommu")
	default:
		c.ok("iommu", bdf, "none")
	}
}

// acs looks at all bridges above a function: with redirection on, what devices send to each other goes through the root
// complex. It matters for GPUs and drives that the adapter reads directly, not for main memory.
func (c *checker) acs(bdf, at string) {
	target, err := fs.ReadLink(c.sys.Sys, at)
	if err != nil {
		c.warn("acs", bdf, "the path can't be read here", "see: lspci -t")
		return
	}
	var redirecting, unread []string
	bridges := 0
	dir := path.Join(path.Dir(at), path.Dir(target))
	for ; isFunction(path.Base(dir)); dir = path.Dir(dir) {
		bridges++
		name := path.Base(dir)
		config, _ := fs.ReadFile(c.sys.Sys, dir+"/config")
		control, err := acsControl(config)
		switch {
		case errors.Is(err, errNoACS):
		case err != nil:
			unread = append(unread, name)
		case control&acsRedirect != 0:
			redirecting = append(redirecting, name)
		}
	}
	switch {
	case len(redirecting) > 0:
		c.warn("acs", bdf, "redirects at "+strings.Join(redirecting, " ")+": GPU and adapter reach each other through the root complex only",
			"where GPUs or drives are behind the same switch: setpci -s "+redirecting[0]+" ECAP_ACS+6.w=0, or off in the firmware")
	case len(unread) > 0:
		c.warn("acs", bdf, "can't be read here at "+strings.Join(unread, " "), "run as root")
	default:
		c.ok("acs", bdf, "no redirection at %d bridge(s)", bridges)
	}
}

// isFunction tells the address of a PCI function from a host bridge (pci0000:00).
func isFunction(s string) bool { return strings.Count(s, ":") == 2 && strings.Count(s, ".") == 1 }

func (c *checker) cpu() {
	governor := c.text("devices/system/cpu/cpu0/cpufreq/scaling_governor")
	switch governor {
	case "":
	case "performance":
		c.ok("cpu", "", "governor performance")
	default:
		c.warn("cpu", "", "governor "+governor+": clock and latency vary", "cpupower frequency-set -g performance")
	}
}
