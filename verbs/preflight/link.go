package preflight

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/millrace/millrace/verbs/dcb"
	"github.com/millrace/millrace/verbs/fabric"
)

// port judges one port and its network interfaces.
func (c *checker) port(p *fabric.Port) {
	name := fmt.Sprintf("%s/%d", p.Device, p.Number)
	switch {
	case p.Active():
		c.ok("link", name, "%s, %s, %s, %s", p.State, p.PhysState, p.LinkLayer, p.RateText)
	case c.othersActive(p):
		c.warn("link", name, fmt.Sprintf("%s, %s; other ports are active", p.State, p.PhysState), linkAdvice(p))
	default:
		c.problem("link", name, fmt.Sprintf("%s, %s", p.State, p.PhysState), linkAdvice(p))
	}
	for _, fault := range p.Faults {
		c.warn("link", name, fault.Error(), "compare with: ibv_devinfo -v -d "+p.Device)
	}
	c.counters(p, name)
	if p.LinkLayer == fabric.InfiniBand {
		return
	}
	if len(p.Netdevs) == 0 {
		c.warn("mtu", name, "no network interface belongs to the port", "see: rdma link show "+name)
	}
	for _, n := range p.Netdevs {
		if n.Foreign {
			c.problem("netns", n.Name, "the interface of "+name+" is in another network namespace, so are its GIDs",
				"run in that namespace, or move the interface: ip link set "+n.Name+" netns NAME")
			continue
		}
		c.mtu(n)
		for _, physical := range c.physical(n.Name, 0) {
			c.congestion(p, physical)
		}
	}
}

// physical are the interfaces that a VLAN or a bond goes out by, or the interface itself: priorities are set there.
func (c *checker) physical(netdev string, depth int) []string {
	const deepest = 4
	entries, err := fs.ReadDir(c.sys.Sys, "class/net/"+netdev)
	var out []string
	for _, e := range entries {
		if lower, ok := strings.CutPrefix(e.Name(), "lower_"); ok && err == nil && depth < deepest {
			out = append(out, c.physical(lower, depth+1)...)
		}
	}
	if len(out) == 0 {
		return []string{netdev}
	}
	return out
}

func linkAdvice(p *fabric.Port) string {
	if p.LinkLayer == fabric.InfiniBand {
		return "see cable and subnet manager: ibstat " + p.Device
	}
	if len(p.Netdevs) > 0 {
		return "see cable and switch port: ip link set " + p.Netdevs[0].Name + " up; ethtool " + p.Netdevs[0].Name
	}
	return "see cable and switch port: rdma link show " + p.Device
}

// othersActive says whether RDMA works without this port, because nobody asked for it by its address.
func (c *checker) othersActive(p *fabric.Port) bool {
	for _, addr := range c.cfg.Listen {
		if at, err := c.fabric.PlaceOf(addr); err == nil && at.Port == p {
			return false
		}
	}
	for _, other := range c.usable() {
		if other != p && other.Active() {
			return true
		}
	}
	return false
}

func (c *checker) mtu(n fabric.Netdev) {
	got := fabric.RoCEMTUBytes(n.MTUBytes)
	text := fmt.Sprintf("%d, which is an InfiniBand MTU of %d", n.MTUBytes, got)
	switch {
	case n.MTUBytes == 0:
		c.warn("mtu", n.Name, "can't be read here", "see: ip link show "+n.Name)
	case got == 0:
		c.problem("mtu", n.Name, fmt.Sprintf("%d: too small for RoCE", n.MTUBytes), "ip link set "+n.Name+" mtu 9000")
	case got < WantMTUBytes:
		c.warn("mtu", n.Name, fmt.Sprintf("%s; %d is wanted", text, WantMTUBytes),
			"ip link set "+n.Name+" mtu 9000 (at least 4200), and the same on switches and peers")
	default:
		c.ok("mtu", n.Name, "%s", text)
	}
}

// ActiveMTU judges the InfiniBand MTU that a port has, as the device itself says: it is less than what the interface leaves room for
// where adapter or driver are set so.
func ActiveMTU(port PortID, mtuBytes int) Finding {
	f := Finding{Check: "mtu", Subject: port.String(), Verdict: OK, Found: fmt.Sprintf("active InfiniBand MTU %d", mtuBytes)}
	if mtuBytes < WantMTUBytes {
		f.Verdict, f.Found = Warn, fmt.Sprintf("%s; %d is wanted", f.Found, WantMTUBytes)
		f.Advice = "set the MTU of the interface first; then see ibv_devinfo -v -d " + port.Device
	}
	return f
}

// DC judges whether a device of mlx5 can initiate by DC; why is nil if it can. Whether bytes arrive is not tried: that takes a client.
func DC(device string, why error) Finding {
	f := Finding{Check: "dc", Subject: device, Verdict: OK, Found: "initiators can be made; transfers are not tried"}
	if why != nil {
		f.Verdict, f.Found = Warn, "tokens that name DC targets, as NVIDIA's clients send them, are declined: "+why.Error()
		f.Advice = "see firmware and driver, and whether this is a function that has DC: virtual ones may not"
	}
	return f
}

// congestion judges what happens to packets of the traffic class when a queue fills up: PFC pauses the sender, ECN slows
// it down. With neither they are dropped.
func (c *checker) congestion(p *fabric.Port, netdev string) {
	dscp := c.cfg.TrafficClass >> 2
	priority := dscp >> 3 // the map of adapters that were told nothing
	pfc := Finding{Check: "pfc", Subject: netdev}
	s, err := c.sys.DCB(netdev)
	if err != nil {
		found := "can't be read here: " + err.Error()
		if errors.Is(err, dcb.ErrUnsupported) {
			found = "can't be read here: the interface has no DCB"
		}
		pfc.Verdict, pfc.Found, pfc.Advice = Warn, found, "see the tools of the adapter's maker, and the switch port"
	} else {
		priority = c.trust(netdev, &s, dscp)
		c.pfc(&pfc, &s, priority)
	}
	ecn := c.ecn(netdev, priority)
	off := "off on priority"
	if bad := pfc.Verdict == Warn && err == nil && s.PFCKnown; bad && ecn.Verdict == Warn && ecn.Found[:min(len(off), len(ecn.Found))] == off {
		pfc.Verdict, ecn.Verdict = Problem, Problem
	}
	c.add(pfc)
	c.add(ecn)
	c.forcedClass(p)
}

// trust reports whether the DSCP of packets counts, and returns the priority that they get.
func (c *checker) trust(netdev string, s *dcb.State, dscp uint8) uint8 {
	advice := fmt.Sprintf("dcb app add dev %s dscp-prio %d:%d; or mlnx_qos -i %s --trust dscp", netdev, dscp, dscp>>3, netdev)
	switch {
	case !s.AppsKnown:
		c.warn("dscp", netdev, "can't be read here: the interface tells no table of priorities", advice)
		return dscp >> 3
	case !s.TrustDSCP():
		c.warn("dscp", netdev, fmt.Sprintf("not trusted: packets with DSCP %d get the priority of their VLAN tag, or 0", dscp), advice)
		return 0
	}
	priority := s.PriorityOf(dscp)
	c.ok("dscp", netdev, "DSCP %d (traffic class %d) has priority %d", dscp, c.cfg.TrafficClass, priority)
	return priority
}

func (c *checker) pfc(f *Finding, s *dcb.State, priority uint8) {
	f.Verdict = Warn
	f.Advice = fmt.Sprintf("dcb pfc set dev %s prio-pfc %d:on; and the same on the switch port", f.Subject, priority)
	switch {
	case !s.PFCKnown:
		f.Found = "can't be read here: the interface does not tell"
	case !s.Paused(priority):
		f.Found = fmt.Sprintf("off on priority %d, that of RDMA (%s): the fabric may drop its packets", priority, s.PFCText())
	default:
		f.Verdict, f.Advice = OK, ""
		f.Found = fmt.Sprintf("on for priority %d (%s)", priority, s.PFCText())
	}
}

// ecn reads the switches that the driver of NVIDIA's own distribution has in sysfs; the kernel's has none.
func (c *checker) ecn(netdev string, priority uint8) Finding {
	f := Finding{Check: "ecn", Subject: netdev, Verdict: Warn}
	dir := "class/net/" + netdev + "/ecn/"
	np := c.text(fmt.Sprintf("%sroce_np/enable/%d", dir, priority))
	rp := c.text(fmt.Sprintf("%sroce_rp/enable/%d", dir, priority))
	switch {
	case np == "" || rp == "":
		f.Found = "can't be read here: the driver shows no ecn folder"
		f.Advice = "see whether adapter and switch do it: mlxconfig -d BDF q | grep ROCE_CC, and ECN marking on the queue of RDMA"
	case np == "1" && rp == "1":
		f.Verdict, f.Found = OK, fmt.Sprintf("on for priority %d: this side slows down, and tells others to", priority)
	default:
		f.Found = fmt.Sprintf("off on priority %d (notify %s, react %s)", priority, np, rp)
		f.Advice = fmt.Sprintf("echo 1 > /sys/%sroce_np/enable/%d; echo 1 > /sys/%sroce_rp/enable/%d", dir, priority, dir, priority)
	}
	return f
}

// forcedClass reports a traffic class that the driver forces upon all queue pairs of a device.
func (c *checker) forcedClass(p *fabric.Port) {
	name := fmt.Sprintf("class/infiniband/%s/tc/%d/traffic_class", p.Device, p.Number)
	var forced int
	if _, err := fmt.Sscanf(c.text(name), "Global tclass=%d", &forced); err != nil || forced == int(c.cfg.TrafficClass) {
		return
	}
	c.warn("dscp", p.Device, fmt.Sprintf("the driver forces traffic class %d upon all queue pairs, not %d", forced, c.cfg.TrafficClass),
		fmt.Sprintf("echo %d > /sys/%s; or configure that class", c.cfg.TrafficClass, name))
}
