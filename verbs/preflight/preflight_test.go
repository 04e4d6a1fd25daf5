package preflight

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/verbs/dcb"
	"github.com/millrace/millrace/verbs/fabric/fabrictest"
)

// machine is a System before it is one, so that a test can break it.
type machine struct {
	sys, proc  fabrictest.Sys
	kernel     fabrictest.Kernel
	noLibrary  error
	noProvider bool
	dcb        dcb.State
	dcbErr     error
	open       map[string]error
	cfg        Config
}

const (
	adapter = "devices/pci0000:00/" + fabrictest.Bridge + "/0000:03:00.0/"
	limits  = "Limit                     Soft Limit           Hard Limit           Units     \n" +
		"Max processes             256000               256000               processes \n" +
		"Max locked memory         %s            unlimited            bytes     \n"
)

// healthy is a server with an adapter of one port, at which nothing is to be found fault with.
func healthy() *machine {
	sys, kernel := fabrictest.MLX5()
	for i := range 2 {
		at := fmt.Sprintf("devices/pci0000:00/%s/0000:03:00.%d/", fabrictest.Bridge, i)
		for name, content := range map[string]string{
			"vendor": "0x15b3\n", "class": "0x020000\n", "iommu_group/type": "identity\n",
			"current_link_speed": "32.0 GT/s PCIe\n", "current_link_width": "16\n", "max_link_speed": "32.0 GT/s PCIe\n", "max_link_width": "16\n",
		} {
			sys[at+name] = content
		}
		for _, side := range []string{"np", "rp"} {
			sys[fmt.Sprintf("class/net/p%d/ecn/roce_%s/enable/3", i, side)] = "1\n"
		}
		sys[fmt.Sprintf("class/infiniband/mlx5_%d/ports/1/hw_counters/out_of_sequence", i)] = "0\n"
	}
	sys["devices/pci0000:00/"+fabrictest.Bridge+"/config"] = string(configSpace(0, 0x0001))
	sys["devices/system/node/online"] = "0-1\n"
	sys["devices/system/cpu/cpu0/cpufreq/scaling_governor"] = "performance\n"
	for _, m := range []string{"ib_uverbs", "rdma_ucm", "mlx5_ib"} {
		sys["module/"+m+"/initstate"] = "live\n"
	}
	return &machine{
		sys: sys, kernel: kernel, open: map[string]error{},
		proc: fabrictest.Sys{"self/limits": fmt.Sprintf(limits, "unlimited")},
		dcb:  dcb.State{PFC: 1 << 3, PFCKnown: true, MaxPFC: 8, Apps: []dcb.App{{DSCP: 24, Priority: 3}}, AppsKnown: true},
		cfg: Config{Mode: Verbs, Listen: []netip.Addr{netip.MustParseAddr("192.168.7.1")}, ArenaBytes: 1 << 30,
			TrafficClass: DefaultTrafficClass},
	}
}

// configSpace holds ACS behind another capability, with the given control register.
func configSpace(capability, control uint16) []byte {
	b := make([]byte, configBytes)
	binary.LittleEndian.PutUint32(b[0x100:], 0x0001|1<<16|0x148<<20) // AER
	binary.LittleEndian.PutUint32(b[0x148:], capACS|1<<16)
	binary.LittleEndian.PutUint16(b[0x14c:], capability)
	binary.LittleEndian.PutUint16(b[0x14e:], control)
	return b
}

func (m *machine) system() System {
	s := System{
		Sys: m.sys.FS(), Proc: m.proc.FS(), Kernel: m.kernel, Library: func() error { return m.noLibrary },
		DCB:  func(string) (dcb.State, error) { return m.dcb, m.dcbErr },
		Open: func(path string) error { return m.open[path] },
	}
	if m.noProvider {
		s.Library = nil
	}
	return s
}

// bad are the findings that are not OK, as "VERDICT check subject".
func bad(findings []Finding) []string {
	var out []string
	for _, f := range findings {
		if f.Verdict != OK {
			out = append(out, strings.TrimSpace(fmt.Sprintf("%s %s %s", f.Verdict, f.Check, f.Subject)))
		}
	}
	return out
}

func TestHealthy(t *testing.T) {
	findings := Check(healthy().system(), healthy().cfg)
	if got := bad(findings); len(got) > 0 {
		t.Errorf("a healthy machine: %v", findings)
	}
	var checks []string
	for _, f := range findings {
		checks = append(checks, f.Check)
		if f.Advice != "" {
			t.Errorf("%s is OK and has advice %q", f.Check, f.Advice)
		}
	}
	want := []string{
		"library", "device", "module", "module", "node", "device", "module", "module", "node", "netns", "memlock", "gid",
		"link", "errors", "mtu", "dscp", "pfc", "ecn", "pcie", "iommu", "acs", "numa", "cpu",
	}
	if diff := cmp.Diff(want, checks); diff != "" {
		t.Errorf("checks (-want +got):\n%s", diff)
	}
}

const port0 = "class/infiniband/mlx5_0/ports/1/"

// fault is one thing that can be wrong with a machine, and what must be found then.
type fault struct {
	name   string
	spoil  func(*machine)
	want   []string
	found  string // in the text of the first
	advice string
}

// machineFaults are in the machine and its settings.
func machineFaults() []fault {
	return []fault{
		{"no provider", func(m *machine) { m.noProvider = true }, []string{"PROBLEM library libibverbs"}, "soft provider only", "build"},
		{"no library", func(m *machine) { m.noLibrary = errors.New("libibverbs.so.1: not found") },
			[]string{"PROBLEM library libibverbs"}, "not found", "libibverbs1"},
		{"no library, nobody insists", func(m *machine) { m.noLibrary = errors.New("not found"); m.cfg.Mode = Auto },
			[]string{"WARN library libibverbs"}, "not found", "libibverbs1"},
		{"adapter without driver", func(m *machine) { m.sys = m.sys.Without("class/infiniband") },
			[]string{"PROBLEM device 0000:03:00.0 0000:03:00.1"}, "no RDMA device", "modprobe mlx5_ib"},
		{"device in another namespace", func(m *machine) { m.kernel.Names, m.kernel.Mode = []string{"mlx5_0"}, "exclusive" },
			[]string{"PROBLEM netns mlx5_1"}, "another network namespace", "rdma dev set mlx5_1"},
		{"mode not known", func(m *machine) { m.kernel.Mode, m.kernel.ModeErr = "", syscall.EPERM }, []string{"WARN netns"}, "can't be read here", "rdma system"},
		{"no ib_uverbs", func(m *machine) { m.sys = m.sys.Without("module/ib_uverbs") },
			[]string{"PROBLEM module ib_uverbs", "PROBLEM module ib_uverbs"}, "not loaded", "modprobe ib_uverbs"},
		{"no mlx5_ib", func(m *machine) { m.sys = m.sys.Without("module/mlx5_ib") },
			[]string{"PROBLEM module mlx5_ib", "PROBLEM module mlx5_ib"}, "not loaded", "modprobe mlx5_ib"},
		{"no rdma_ucm", func(m *machine) { m.sys = m.sys.Without("module/rdma_ucm") },
			[]string{"WARN module rdma_ucm", "WARN module rdma_ucm"}, "not loaded", "modprobe rdma_ucm"},
		{"node not in the container", func(m *machine) { m.open["/dev/infiniband/uverbs0"] = fs.ErrNotExist },
			[]string{"PROBLEM node /dev/infiniband/uverbs0"}, "not there", "--device /dev/infiniband/uverbs0"},
		{"node not permitted", func(m *machine) { m.open["/dev/infiniband/uverbs1"] = syscall.EPERM },
			[]string{"PROBLEM node /dev/infiniband/uverbs1"}, "may not be opened", "udev"},
		{"no node", func(m *machine) { m.kernel.Nodes = map[string][]string{"mlx5_0": {"/dev/infiniband/uverbs0"}} },
			[]string{"PROBLEM node mlx5_1"}, "no uverbs", "modprobe"},
		{"limit on locked memory", func(m *machine) { m.proc["self/limits"] = fmt.Sprintf(limits, "8388608") },
			[]string{"PROBLEM memlock"}, "8192 KiB may be locked, needed are 1114112", "LimitMEMLOCK"},
		{"limit not readable", func(m *machine) { delete(m.proc, "self/limits") }, []string{"WARN memlock"}, "can't be read here", "LimitMEMLOCK"},
		{"address on no device", func(m *machine) { m.cfg.Listen = []netip.Addr{netip.MustParseAddr("10.1.1.1")} },
			[]string{"PROBLEM gid 10.1.1.1"}, "not in the GID table", "rdma link"},
		{"loopback", func(m *machine) { m.cfg.Listen = []netip.Addr{netip.MustParseAddr("127.0.0.1")} },
			[]string{"PROBLEM gid 127.0.0.1"}, "loopback", "address of the fabric"},
		{"RoCE v1 only", func(m *machine) { m.sys = m.sys.With(port0+"gid_attrs/types/3", "IB/RoCE v1\n") },
			[]string{"PROBLEM gid 192.168.7.1"}, "RoCE v1 only", "gid_attrs"},
	}
}

// linkFaults are on the way of the packets.
func linkFaults() []fault {
	return []fault{
		{"link is down", func(m *machine) {
			m.sys = m.sys.With(port0+"state", "1: DOWN\n").With(port0+"phys_state", "3: Disabled\n")
		}, []string{"PROBLEM link mlx5_0/1"}, "DOWN, Disabled", "ip link set p0 up"},
		{"MTU 1500", func(m *machine) { m.sys = m.sys.With("class/net/p0/mtu", "1500\n") },
			[]string{"WARN mtu p0"}, "1500, which is an InfiniBand MTU of 1024; 4096 is wanted", "mtu 9000"},
		{"MTU of nothing", func(m *machine) { m.sys = m.sys.With("class/net/p0/mtu", "300\n") }, []string{"PROBLEM mtu p0"}, "too small", "mtu 9000"},
		{"MTU not readable", func(m *machine) { m.sys = m.sys.With("class/net/p0/mtu", "\n") }, []string{"WARN mtu p0"}, "can't be read here", "ip link"},
		{"no DCB", func(m *machine) { m.dcb, m.dcbErr = dcb.State{}, dcb.ErrUnsupported },
			[]string{"WARN pfc p0"}, "can't be read here: the interface has no DCB", "switch port"},
		{"DCB fails", func(m *machine) { m.dcb, m.dcbErr = dcb.State{}, syscall.EPERM },
			[]string{"WARN pfc p0"}, "can't be read here: operation not permitted", "switch port"},
		{"DCB tells nothing", func(m *machine) { m.dcb = dcb.State{} }, []string{"WARN dscp p0", "WARN pfc p0"}, "can't be read here", "dcb app"},
		{"DSCP not trusted", func(m *machine) { m.dcb.Apps, m.dcb.PFC = nil, 1; ecn(m, 0, "1") },
			[]string{"WARN dscp p0"}, "not trusted", "--trust dscp"},
		{"PFC off", func(m *machine) { m.dcb.PFC = 1 << 2 }, []string{"WARN pfc p0"}, "off on priority 3, that of RDMA (0,0,1,0,0,0,0,0)", "prio-pfc 3:on"},
		{"ECN off", func(m *machine) { ecn(m, 3, "0") }, []string{"WARN ecn p0"}, "off on priority 3", "echo 1 > /sys/class/net/p0/ecn/roce_np/enable/3"},
		{"ECN not readable", func(m *machine) { m.sys = m.sys.Without("class/net/p0/ecn") }, []string{"WARN ecn p0"}, "can't be read here", "switch"},
		{"PFC and ECN off", func(m *machine) { m.dcb.PFC = 0; ecn(m, 3, "0") }, []string{"PROBLEM pfc p0", "PROBLEM ecn p0"}, "off on priority 3", "switch"},
		{"PFC off, ECN not readable", func(m *machine) { m.dcb.PFC = 0; m.sys = m.sys.Without("class/net/p0/ecn") },
			[]string{"WARN pfc p0", "WARN ecn p0"}, "off on priority 3", "switch"},
	}
}

// pathFaults are between adapter and memory, or seen by counters.
func pathFaults() []fault {
	return []fault{
		{"another class is forced", func(m *machine) {
			m.sys = m.sys.With("class/infiniband/mlx5_0/tc/1/traffic_class", "Global tclass=106\n")
		}, []string{"WARN dscp mlx5_0"}, "forces traffic class 106", "echo 96"},
		{"PCIe is narrow", func(m *machine) { m.sys = m.sys.With(adapter+"current_link_width", "8\n") },
			[]string{"WARN pcie 0000:03:00.0"}, "x8, the adapter can do 32.0 GT/s PCIe x16", "slot"},
		{"PCIe not readable", func(m *machine) { m.sys = m.sys.Without(adapter + "current_link_speed") },
			[]string{"WARN pcie 0000:03:00.0"}, "can't be read here", "lspci"},
		{"IOMMU translates", func(m *machine) { m.sys = m.sys.With(adapter+"iommu_group/type", "DMA-FQ\n") },
			[]string{"WARN iommu 0000:03:00.0"}, "DMA-FQ", "passthrough"},
		{"ACS redirects", func(m *machine) {
			m.sys = m.sys.With("devices/pci0000:00/"+fabrictest.Bridge+"/config", string(configSpace(0x1f, 0x1d)))
		}, []string{"WARN acs 0000:03:00.0"}, "redirects at 0000:00:01.0", "setpci -s 0000:00:01.0"},
		{"ACS not readable", func(m *machine) {
			m.sys = m.sys.With("devices/pci0000:00/"+fabrictest.Bridge+"/config", strings.Repeat("x", 64))
		}, []string{"WARN acs 0000:03:00.0"}, "can't be read here at 0000:00:01.0", "root"},
		{"NUMA node not known", func(m *machine) { m.sys = m.sys.With(adapter+"numa_node", "-1\n") },
			[]string{"WARN numa 0000:03:00.0"}, "nodes 0-1", "firmware"},
		{"errors so far", func(m *machine) { m.sys = m.sys.With(port0+"hw_counters/out_of_sequence", "17\n") },
			[]string{"WARN errors mlx5_0/1"}, "out_of_sequence 17", "rdma statistic"},
		{"no counters", func(m *machine) { m.sys = m.sys.Without(port0 + "hw_counters") },
			[]string{"WARN errors mlx5_0/1"}, "can't be read here", "rdma statistic"},
		{"governor", func(m *machine) {
			m.sys = m.sys.With("devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n")
		},
			[]string{"WARN cpu"}, "powersave", "cpupower"},
		{"odd file", func(m *machine) { m.sys = m.sys.With(port0+"rate", "fast\n") }, []string{"WARN link mlx5_0/1"}, "unknown format", "ibv_devinfo"},
	}
}

// TestFindings breaks one thing at a time. Each must be found, with advice, and nothing else.
func TestFindings(t *testing.T) {
	for _, tt := range slices.Concat(machineFaults(), linkFaults(), pathFaults()) {
		t.Run(tt.name, func(t *testing.T) {
			m := healthy()
			tt.spoil(m)
			findings := Check(m.system(), m.cfg)
			// What is said of the second port, which is looked at when no address was found, is another matter.
			if diff := cmp.Diff(tt.want, bad(findings)); diff != "" {
				t.Fatalf("findings (-want +got):\n%s", diff)
			}
			first := findings[0]
			for _, f := range findings {
				if f.Verdict != OK {
					first = f
					break
				}
			}
			if !strings.Contains(first.Found, tt.found) || !strings.Contains(first.Advice, tt.advice) {
				t.Errorf("found %q, advice %q; want %q and %q in them", first.Found, first.Advice, tt.found, tt.advice)
			}
			for _, f := range findings {
				if strings.Contains(f.Found, "can't be read") && f.Verdict == OK {
					t.Errorf("%v: what can't be read is OK", f)
				}
			}
		})
	}
}

// ecn sets both sides for a priority.
func ecn(m *machine, priority int, value string) {
	for _, side := range []string{"np", "rp"} {
		m.sys = m.sys.With(fmt.Sprintf("class/net/p0/ecn/roce_%s/enable/%d", side, priority), value+"\n")
	}
}

func TestOtherMachines(t *testing.T) {
	rxe, rxeKernel := fabrictest.RXE()
	ib, ibKernel := fabrictest.IB()
	siw, siwKernel := fabrictest.SIW()
	modules := fabrictest.Sys{"module/ib_uverbs/initstate": "", "module/rdma_ucm/initstate": ""}
	tests := []struct {
		name string
		m    machine
		mode Mode
		want []string
	}{
		{"nothing, nobody insists", machine{}, Auto, []string{"WARN library libibverbs", "WARN device"}},
		{"nothing", machine{}, Verbs, []string{"PROBLEM library libibverbs", "PROBLEM device"}},
		{"nothing is needed", machine{}, Soft, nil},
		{"soft-RoCE", machine{sys: rxe, kernel: rxeKernel}, Verbs,
			[]string{"PROBLEM library libibverbs", "WARN errors rxe0/1", "WARN mtu eth0", "WARN pfc eth0", "WARN ecn eth0"}},
		{"InfiniBand", machine{sys: ib, kernel: ibKernel}, Verbs, []string{"PROBLEM library libibverbs", "WARN errors mlx5_0/1"}},
		{"iWARP", machine{sys: siw, kernel: siwKernel}, Verbs, []string{"PROBLEM library libibverbs", "WARN device siw0"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.m.sys = fabrictest.Join(tt.m.sys, modules)
			tt.m.proc = fabrictest.Sys{"self/limits": fmt.Sprintf(limits, "unlimited")}
			tt.m.dcbErr, tt.m.noProvider = dcb.ErrUnsupported, true
			findings := Check(tt.m.system(), Config{Mode: tt.mode})
			if diff := cmp.Diff(tt.want, bad(findings)); diff != "" {
				t.Errorf("findings (-want +got):\n%s", diff)
			}
		})
	}
}

func TestOtherPortDown(t *testing.T) {
	m := healthy()
	m.sys = m.sys.With("class/infiniband/mlx5_1/ports/1/state", "1: DOWN\n")
	m.cfg.Listen = nil
	if diff := cmp.Diff([]string{"WARN link mlx5_1/1"}, bad(Check(m.system(), m.cfg))); diff != "" {
		t.Errorf("findings (-want +got):\n%s", diff)
	}
}

// TestBond has both ports in a bond with a VLAN on it: the GIDs are of the VLAN, the priorities of the ports.
func TestBond(t *testing.T) {
	m := healthy()
	m.sys = fabrictest.Join(m.sys, fabrictest.Netdev("bond0.7", 9000), fabrictest.Sys{
		"class/net/bond0.7/lower_bond0/mtu": "9000\n", "class/net/bond0/lower_p0/mtu": "9000\n", "class/net/bond0/lower_p1/mtu": "9000\n",
	})
	for i := range 6 {
		m.sys = m.sys.With(fmt.Sprintf("%sgid_attrs/ndevs/%d", port0, i), "bond0.7\n")
	}
	m.cfg.Listen = append(m.cfg.Listen, netip.MustParseAddr("2001:db8:7::1")) // of the same port: judged once
	subjects := map[string]int{}
	findings := Check(m.system(), m.cfg)
	for _, f := range findings {
		subjects[f.Check+" "+f.Subject]++
	}
	for _, want := range []string{"mtu bond0.7", "pfc p0", "pfc p1", "ecn p0", "ecn p1", "link mlx5_0/1"} {
		if subjects[want] != 1 {
			t.Errorf("%d findings for %s; want one", subjects[want], want)
		}
	}
	if got := bad(findings); len(got) > 0 {
		t.Errorf("findings %v; want all OK", got)
	}
}

func TestIPv6Only(t *testing.T) {
	m := healthy()
	for _, p := range []string{"0", "1"} {
		m.sys = m.sys.With("class/infiniband/mlx5_"+p+"/ports/1/gids/3", "0000:0000:0000:0000:0000:0000:0000:0000\n")
	}
	m.cfg.Listen = []netip.Addr{netip.IPv6Unspecified()}
	if diff := cmp.Diff([]string{"WARN gid IPv4"}, bad(Check(m.system(), m.cfg))); diff != "" {
		t.Errorf("findings (-want +got):\n%s", diff)
	}
}

func TestCapIPCLock(t *testing.T) {
	const all = "         0          0 4294967295\n"
	tests := []struct {
		name, uidMap, capEff string
		want                 bool
	}{
		{"root", all, "000001ffffffffff", true},
		{"root of a container", "         0     100000      65536\n", "000001ffffffffff", false},
		{"root without the capability", all, "000001ffffffbfff", false},
		{"only the capability", all, "0000000000004000", true},
		{"garbage", all, "yes", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := healthy()
			m.proc = fabrictest.Sys{
				"self/limits": fmt.Sprintf(limits, "8388608"), "self/uid_map": tt.uidMap, "self/status": "Name:\tx\nCapEff:\t" + tt.capEff + "\n",
			}
			got := bad(Check(m.system(), m.cfg))
			if (len(got) == 0) != tt.want {
				t.Errorf("findings %v; allowed is %v", got, tt.want)
			}
		})
	}
}

func TestActiveMTU(t *testing.T) {
	for mtu, want := range map[int]Verdict{4096: OK, 2048: Warn, 256: Warn} {
		if got := ActiveMTU(PortID{"mlx5_0", 1}, mtu); got.Verdict != want || got.Subject != "mlx5_0/1" || (got.Advice == "") != (want == OK) {
			t.Errorf("ActiveMTU(%d) = %v; want %v", mtu, got, want)
		}
	}
}

func TestDC(t *testing.T) {
	if got := DC("mlx5_0", nil); got.Verdict != OK || got.Advice != "" {
		t.Errorf("DC = %v; want OK", got)
	}
	if got := DC("mlx5_0", syscall.EOPNOTSUPP); got.Verdict != Warn || !strings.Contains(got.Found, "declined: operation not supported") || got.Advice == "" {
		t.Errorf("DC = %v; want a warning with the reason", got)
	}
}

func TestErr(t *testing.T) {
	if err := Err([]Finding{{Check: "mtu", Verdict: Warn}, {Check: "gid", Verdict: OK}}); err != nil {
		t.Errorf("Err of a warning: %v", err)
	}
	err := Err([]Finding{{Check: "gid", Subject: "10.0.0.1", Verdict: Problem, Found: "none", Advice: "make one"}, {Check: "mtu", Verdict: Warn}})
	var e *Error
	if !errors.As(err, &e) || len(e.Problems) != 1 {
		t.Fatalf("Err: %v; want one problem", err)
	}
	const want = "the fabric is not fit for RDMA, 1 problem(s)\nPROBLEM  gid 10.0.0.1: none\n         → make one"
	if err.Error() != want {
		t.Errorf("text %q; want %q", err.Error(), want)
	}
}

// TestHost looks at this machine, whatever it is.
func TestHost(t *testing.T) {
	findings := Check(Host(nil), Config{Mode: Auto, TrafficClass: DefaultTrafficClass})
	if len(findings) == 0 {
		t.Error("nothing found")
	}
	for _, f := range findings {
		if (f.Advice == "") != (f.Verdict == OK) {
			t.Errorf("%v: advice and verdict don't go together", f)
		}
	}
}
