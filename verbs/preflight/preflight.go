// Package preflight judges whether this machine and its fabric are fit for RDMA, before anything relies on it: library,
// devices, links, GIDs, MTU, what happens to packets under congestion, the limit on locked memory, the path over PCIe, a peer,
// and a measured loop. Each Finding says what was found and, unless that is good, what to do.
//
// It changes nothing and repairs nothing. It sees only this machine: the switches between it and its peers must be
// set to match. Invariant: what can't be read is a warning that says so and never OK, and every figure was measured.
package preflight

import (
	"fmt"
	"io/fs"
	"net/netip"
	"strings"

	"github.com/millrace/millrace/verbs/dcb"
	"github.com/millrace/millrace/verbs/fabric"
)

// Verdict is how bad a finding is.
type Verdict string

// The verdicts. With a Problem, RDMA does not work or breaks under load.
const (
	OK      Verdict = "OK"
	Warn    Verdict = "WARN"
	Problem Verdict = "PROBLEM"
)

// Finding is one line of the report.
type Finding struct {
	Check   string  `json:"check"`             // "gid", "mtu", …
	Subject string  `json:"subject,omitempty"` // the device, port, interface or address it is about
	Verdict Verdict `json:"verdict"`
	Found   string  `json:"found"`
	Advice  string  `json:"advice,omitempty"` // what to do; empty with OK
	// Loop has the figures of check "loop".
	Loop *LoopResult `json:"loop,omitempty"`
}

// String returns the finding as text: a line for what was found, and one for the advice.
func (f Finding) String() string {
	s := fmt.Sprintf("%-7s  %s: %s", f.Verdict, strings.TrimSpace(f.Check+" "+f.Subject), f.Found)
	if f.Advice != "" {
		s += "\n         → " + f.Advice
	}
	return s
}

// Mode says which provider is to work.
type Mode string

// The modes. Auto takes a missing device for a warning; a device that is there must be fit in any case.
const (
	Auto  Mode = "auto"
	Soft  Mode = "soft"
	Verbs Mode = "verbs"
)

// DefaultTrafficClass is that of the queue pairs: DSCP 24, as NVIDIA's cuObject servers have it by default.
const DefaultTrafficClass = 96

// WantMTUBytes is the InfiniBand MTU that large transfers need.
const WantMTUBytes = 4096

// Config says what is to be fit.
type Config struct {
	Mode Mode
	// Listen are the addresses by which the machine is reached; empty, or an unspecified one: all of it.
	Listen []netip.Addr
	// ArenaBytes is how much memory will be registered.
	ArenaBytes int64
	// TrafficClass is that of the queue pairs: the DSCP in the upper six bits.
	TrafficClass uint8
}

// System is the machine. Tests put in another.
type System struct {
	Sys, Proc fs.FS // /sys and /proc
	Kernel    fabric.Kernel
	// Library tries to load libibverbs; nil means that this build can't use it.
	Library func() error
	// DCB asks a network interface.
	DCB func(netdev string) (dcb.State, error)
	// Open tries to open a device node for reading and writing: permissions alone don't tell what a container allows.
	Open func(path string) error
}

// Check reports on everything that can be found out without a packet.
func Check(sys System, cfg Config) []Finding {
	c := &checker{sys: sys, cfg: cfg}
	if cfg.Mode == Soft {
		c.ok("provider", "", "soft: moves bytes by TCP and needs no RDMA device")
		return c.findings
	}
	f, err := fabric.Read(sys.Sys, sys.Kernel)
	if err != nil {
		c.problem("device", "", err.Error(), "mount sysfs at /sys")
		return c.findings
	}
	c.fabric = f
	c.loads()
	c.devices()
	usable := c.usable()
	if len(usable) == 0 {
		return c.findings
	}
	c.memlock()
	ports := c.choose(usable)
	for _, p := range ports {
		c.port(p)
	}
	seen := map[string]bool{}
	for _, p := range ports {
		if d, ok := f.Device(p.Device); ok && d.PCI != "" && !seen[d.PCI] {
			seen[d.PCI] = true
			c.pci(d)
		}
	}
	c.cpu()
	return c.findings
}

// Error holds the findings because of which RDMA must not start.
type Error struct{ Problems []Finding }

// Error returns all of them, with advice.
func (e *Error) Error() string {
	lines := []string{fmt.Sprintf("the fabric is not fit for RDMA, %d problem(s)", len(e.Problems))}
	for _, f := range e.Problems {
		lines = append(lines, f.String())
	}
	return strings.Join(lines, "\n")
}

// Err is nil if there is no Problem among the findings, else an *Error with all of them.
func Err(findings []Finding) error {
	var e Error
	for _, f := range findings {
		if f.Verdict == Problem {
			e.Problems = append(e.Problems, f)
		}
	}
	if len(e.Problems) == 0 {
		return nil
	}
	return &e
}

// checker collects findings.
type checker struct {
	sys      System
	cfg      Config
	fabric   *fabric.Fabric
	findings []Finding
}

func (c *checker) add(f Finding) { c.findings = append(c.findings, f) }

func (c *checker) ok(check, subject, format string, args ...any) {
	c.add(Finding{Check: check, Subject: subject, Verdict: OK, Found: fmt.Sprintf(format, args...)})
}

func (c *checker) warn(check, subject, found, advice string) {
	c.add(Finding{Check: check, Subject: subject, Verdict: Warn, Found: found, Advice: advice})
}

func (c *checker) problem(check, subject, found, advice string) {
	c.add(Finding{Check: check, Subject: subject, Verdict: Problem, Found: found, Advice: advice})
}

// missing is for what only hardware RDMA needs: a problem if that was asked for.
func (c *checker) missing(check, subject, found, advice string) {
	if c.cfg.Mode == Verbs {
		c.problem(check, subject, found, advice)
		return
	}
	c.warn(check, subject, found, advice)
}
