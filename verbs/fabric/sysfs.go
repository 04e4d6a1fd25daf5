package fabric

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"
)

// The limits on what is read. Tables of rxe have 1024 GIDs, those of mlx5 256.
const (
	maxFileBytes = 4096 // a file of sysfs is one page
	maxDevices   = 256
	maxPorts     = 256
	maxGIDs      = 4096
)

// list returns the names in a folder, sorted, or an error if there are more than limit.
func list(sys fs.FS, name string, limit int) ([]string, error) {
	entries, err := fs.ReadDir(sys, name)
	if err != nil {
		return nil, err
	}
	if len(entries) > limit {
		return nil, fmt.Errorf("%d entries, at most %d: %w", len(entries), limit, ErrFormat)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, nil
}

// numbers returns the names in a folder that are numbers, in their order.
func numbers(sys fs.FS, name string, limit int) ([]int, error) {
	names, err := list(sys, name, limit)
	var out []int
	for _, s := range names {
		if n, err := strconv.Atoi(s); err == nil && n >= 0 {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out, err
}

func readText(sys fs.FS, name string) (string, error) {
	f, err := sys.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFileBytes))
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(b)), nil
}

// reader reads the files of one folder and collects what went wrong.
type reader struct {
	sys    fs.FS
	dir    string
	faults []error
}

func (r *reader) fault(op, name string, err error) {
	r.faults = append(r.faults, &Error{Op: op, Path: path.Join(r.dir, name), Err: err})
}

// text returns the content of a file; "" with a fault if it can't be read.
func (r *reader) text(name string) string {
	s, err := readText(r.sys, path.Join(r.dir, name))
	if err != nil {
		r.fault("read", name, err)
	}
	return s
}

// optional is text for files that not every device has.
func (r *reader) optional(name string) string {
	s, err := readText(r.sys, path.Join(r.dir, name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.fault("read", name, err)
	}
	return s
}

// link returns the last element of what a symbolic link points to, "" if there is none.
func (r *reader) link(name string) string {
	target, err := fs.ReadLink(r.sys, path.Join(r.dir, name))
	if err != nil {
		return ""
	}
	return path.Base(target)
}

// state returns NAME of a file that says "4: NAME".
func (r *reader) state(name string) string {
	s := r.text(name)
	if s == "" {
		return ""
	}
	number, word, ok := strings.Cut(s, ":")
	word = strings.TrimSpace(word)
	if _, err := strconv.Atoi(number); !ok || err != nil || word == "" {
		r.fault("parse", name, fmt.Errorf("%q: %w", s, ErrFormat))
		return ""
	}
	return word
}

func readDevice(sys fs.FS, name string) Device {
	r := &reader{sys: sys, dir: "class/infiniband/" + name}
	d := Device{
		Name: name, Transport: transport(r.state("node_type")),
		Firmware: r.optional("fw_ver"), BoardID: r.optional("board_id"), NodeGUID: r.optional("node_guid"),
		Driver: r.link("device/driver"), Parent: r.optional("parent"), NUMANode: -1,
	}
	if pci := r.link("device"); isPCI(pci) {
		d.PCI = pci
	}
	if s := r.optional("device/numa_node"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			r.fault("parse", "device/numa_node", fmt.Errorf("%q: %w", s, ErrFormat))
			n = -1
		}
		d.NUMANode = n
	}
	ports, err := numbers(sys, r.dir+"/ports", maxPorts)
	if err != nil {
		r.fault("read", "ports", err)
	}
	for _, n := range ports {
		d.Ports = append(d.Ports, readPort(sys, name, n))
	}
	d.Faults = r.faults
	return d
}

func transport(nodeType string) Transport {
	switch nodeType {
	case "CA", "switch", "router":
		return TransportIB
	case "RNIC":
		return TransportIWARP
	}
	return TransportOther
}

// isPCI tells the address of a PCI function, 0000:08:00.0, from other names.
func isPCI(s string) bool {
	return len(s) >= 12 && strings.Count(s, ":") == 2 && strings.Count(s, ".") == 1
}

func readPort(sys fs.FS, device string, number int) Port {
	r := &reader{sys: sys, dir: fmt.Sprintf("class/infiniband/%s/ports/%d", device, number)}
	p := Port{
		Device: device, Number: number, State: r.state("state"), PhysState: r.state("phys_state"),
		LinkLayer: LinkLayer(r.text("link_layer")), RateText: r.text("rate"),
	}
	if p.RateText != "" {
		rate, err := parseRate(p.RateText)
		if err != nil {
			r.fault("parse", "rate", err)
		}
		p.RateMbps = rate
	}
	if s := r.optional("lid"); s != "" {
		lid, err := strconv.ParseUint(s, 0, 16)
		if err != nil {
			r.fault("parse", "lid", fmt.Errorf("%q: %w", s, ErrFormat))
			lid = 0
		}
		p.LID = uint16(lid)
	}
	p.GIDs = readGIDs(r, p.LinkLayer)
	for _, g := range p.GIDs {
		known := slices.ContainsFunc(p.Netdevs, func(n Netdev) bool { return n.Name == g.Netdev })
		if g.Netdev != "" && !known {
			p.Netdevs = append(p.Netdevs, readNetdev(sys, g.Netdev))
		}
	}
	p.Faults = r.faults
	return p
}

// parseRate reads "100 Gb/sec (4X EDR)" as 100000.
func parseRate(s string) (int, error) {
	number, unit, ok := strings.Cut(s, " ")
	v, err := strconv.ParseFloat(number, 64)
	if !ok || err != nil || !strings.HasPrefix(unit, "Gb/sec") || !(v >= 0 && v < 1e6) {
		return 0, fmt.Errorf("%q: %w", s, ErrFormat)
	}
	return int(math.Round(v * 1000)), nil
}

func readGIDs(r *reader, layer LinkLayer) []GID {
	indexes, err := numbers(r.sys, r.dir+"/gids", maxGIDs)
	if err != nil {
		r.fault("read", "gids", err)
	}
	var out []GID
	for _, i := range indexes {
		if g, ok := readGID(r, i, layer); ok {
			out = append(out, g)
		}
	}
	return out
}

// readGID reads an entry; false if there is none. Reading the attributes of an entry without a GID is an error (EINVAL), so
// the GID is read first.
func readGID(r *reader, index int, layer LinkLayer) (GID, bool) {
	name := fmt.Sprintf("gids/%d", index)
	s := r.text(name)
	if s == "" {
		return GID{}, false
	}
	addr, err := netip.ParseAddr(s)
	if err != nil || !addr.Is6() || addr.Zone() != "" {
		r.fault("parse", name, fmt.Errorf("%q: %w", s, ErrFormat))
		return GID{}, false
	}
	g := GID{Index: index, Bytes: addr.As16()}
	if g.Bytes == ([16]byte{}) {
		return GID{}, false
	}
	name = fmt.Sprintf("gid_attrs/types/%d", index)
	switch kind := r.text(name); kind {
	case "RoCE v2":
		g.Type = GIDRoCEv2
	case "IB/RoCE v1":
		g.Type = GIDRoCEv1
		if layer == InfiniBand {
			g.Type = GIDIB
		}
	case "": // a fault already, or the entry went away between
	default:
		r.fault("parse", name, fmt.Errorf("%q: %w", kind, ErrFormat))
	}
	// Entries of InfiniBand ports have no interface, and the kernel then refuses to be asked.
	if netdev, err := readText(r.sys, path.Join(r.dir, fmt.Sprintf("gid_attrs/ndevs/%d", index))); err == nil {
		g.Netdev = netdev
	}
	return g, true
}

func readNetdev(sys fs.FS, name string) Netdev {
	n := Netdev{Name: name, Foreign: true}
	if !fs.ValidPath(name) || strings.Contains(name, "/") {
		return n
	}
	dir := "class/net/" + name
	mtu, err := readText(sys, dir+"/mtu")
	if err != nil {
		return n
	}
	n.Foreign = false
	if v, err := strconv.Atoi(mtu); err == nil && v > 0 {
		n.MTUBytes = v
	}
	n.OperState, _ = readText(sys, dir+"/operstate")
	return n
}
