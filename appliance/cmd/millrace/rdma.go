package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/spf13/pflag"

	"github.com/millrace/millrace/appliance/config"
	"github.com/millrace/millrace/verbs/ibverbs"
	"github.com/millrace/millrace/verbs/iwarp"
	"github.com/millrace/millrace/verbs/mlx5dc"
	"github.com/millrace/millrace/verbs/preflight"
)

func rdmaCommand() command {
	return command{
		name: "rdma", args: "check", summary: "check whether this machine and its fabric are fit for RDMA",
		details: `
Looks at the library, devices, links, GIDs, MTU, priorities and congestion control, the limit on locked memory, and the path
over PCIe; then moves bytes from this machine to itself and compares them. Each line says OK, WARN or PROBLEM, what was found,
and what to do. Nothing is changed. What can't be read is a WARN. The exit code is 1 if there is a PROBLEM.

With --rdma verbs everything that RDMA hardware needs must be there; with auto a machine without it gets a WARN; soft
leaves it out. Run it as root, with the limits that the server will have.`,
		examples: `
millrace rdma check
millrace rdma check --rdma verbs --listen 192.168.7.1 --arena-size 16GiB
millrace rdma check --rdma soft --peer 192.168.7.2:9010 --json`,
		flags: func(fs *pflag.FlagSet) runner {
			f := &rdmaFlags{arenaSize: config.Default().ArenaSize, loopSize: 64 * config.MiB}
			f.register(fs)
			return f.run
		},
	}
}

type rdmaFlags struct {
	mode                string
	listen              []string
	arenaSize, loopSize config.Size
	class               uint8
	peer                string
	json                bool
}

func (f *rdmaFlags) register(fs *pflag.FlagSet) {
	fs.StringVar(&f.mode, "rdma", string(preflight.Auto), "what must work: `MODE` auto, soft or verbs")
	fs.StringSliceVar(&f.listen, "listen", nil, "the server's `ADDR`, with or without a port (repeatable; default: all)")
	fs.Var(&f.arenaSize, "arena-size", "how much memory the server registers: `SIZE`")
	fs.Uint8Var(&f.class, "traffic-class", preflight.DefaultTrafficClass, "the traffic class of RDMA packets: DSCP × 4, `N`")
	fs.StringVar(&f.peer, "peer", "", "connect to the --rdma-listen of another server, `HOST:PORT`, and probe the path to it; with --rdma verbs by hardware, else by soft")
	fs.Var(&f.loopSize, "loop-size", "move `SIZE` in each direction, 0 for no loop")
	fs.BoolVar(&f.json, "json", false, "print one JSON object a finding")
}

func (f *rdmaFlags) run(ctx context.Context, env *environment, args []string) error {
	if len(args) != 1 || args[0] != "check" {
		return usagef("want check")
	}
	cfg, err := f.config()
	if err != nil {
		return err
	}
	peer, err := f.peerAddress()
	if err != nil {
		return err
	}
	system := preflight.Host(func() error {
		_, err := ibverbs.Devices()
		return err
	})
	findings := preflight.Check(system, cfg)
	findings = append(findings, f.hardware(ctx, system, cfg, peer)...)
	findings = append(findings, f.soft(ctx, system, cfg, peer)...)
	for _, finding := range findings {
		if f.json {
			err = writeJSON(env.stdout, finding)
		} else {
			_, err = fmt.Fprintln(env.stdout, finding)
		}
		if err != nil {
			return err
		}
	}
	problems := 0
	for _, finding := range findings {
		if finding.Verdict == preflight.Problem {
			problems++
		}
	}
	if problems > 0 {
		return fmt.Errorf("problems: %d of %d findings", problems, len(findings))
	}
	return nil
}

func (f *rdmaFlags) config() (preflight.Config, error) {
	cfg := preflight.Config{Mode: preflight.Mode(f.mode), ArenaBytes: int64(f.arenaSize), TrafficClass: f.class}
	switch cfg.Mode {
	case preflight.Auto, preflight.Soft, preflight.Verbs:
	default:
		return cfg, usagef("--rdma %q: want auto, soft or verbs", f.mode)
	}
	if f.loopSize < 0 || f.loopSize > preflight.MaxLoopBytes {
		return cfg, usagef("--loop-size %v: at most %v", f.loopSize, config.Size(preflight.MaxLoopBytes))
	}
	for _, text := range f.listen {
		host := text
		if h, _, err := net.SplitHostPort(text); err == nil {
			host = h
		}
		if host == "" {
			host = netip.IPv6Unspecified().String()
		}
		addr, err := netip.ParseAddr(host)
		if err != nil {
			return cfg, usagef("--listen %q: want an address", text)
		}
		cfg.Listen = append(cfg.Listen, addr)
	}
	return cfg, nil
}

// peerAddress resolves --peer; not valid if there is none.
func (f *rdmaFlags) peerAddress() (netip.AddrPort, error) {
	if f.peer == "" {
		return netip.AddrPort{}, nil
	}
	_, port, err := net.SplitHostPort(f.peer)
	if n, e := strconv.ParseUint(port, 10, 16); err != nil || e != nil || n == 0 {
		return netip.AddrPort{}, usagef("--peer %q: want HOST:PORT", f.peer)
	}
	at, err := net.ResolveTCPAddr("tcp", f.peer)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("--peer: %w", err)
	}
	p := at.AddrPort()
	return netip.AddrPortFrom(p.Addr().Unmap(), p.Port()), nil
}

// hardware has the findings that need an RDMA device: the loop, and with --rdma verbs the peer. Where there is none, it was
// said already.
func (f *rdmaFlags) hardware(ctx context.Context, system preflight.System, cfg preflight.Config, peer netip.AddrPort) []preflight.Finding {
	if cfg.Mode == preflight.Soft || system.Library() != nil {
		return nil
	}
	place, err := preflight.LoopPlace(system, cfg)
	if err != nil {
		return nil
	}
	dev, err := ibverbs.Open(ibverbs.Config{
		Device: place.Device.Name, Port: place.Port.Number, Address: place.GID.Addr(),
		Transport: ibverbs.Transport{TrafficClass: cfg.TrafficClass}, DC: &mlx5dc.Config{DCIs: 1},
	})
	if err != nil {
		return []preflight.Finding{{Check: "device", Subject: place.Device.Name, Verdict: preflight.Problem, Found: err.Error(),
			Advice: "see the other findings first; then the kernel's log"}}
	}
	defer dev.Close()
	port := preflight.PortID{Device: place.Device.Name, Port: place.Port.Number}
	findings := []preflight.Finding{preflight.ActiveMTU(port, dev.ActiveMTUBytes())}
	if place.Device.MLX5() {
		findings = append(findings, preflight.DC(place.Device.Name, dev.DC()))
	}
	if f.loopSize > 0 {
		at := netip.AddrPortFrom(place.GID.Addr(), 0)
		findings = append(findings, preflight.LoopFindings(ctx, system, dev, at, int64(f.loopSize), port)...)
	}
	if peer.IsValid() && cfg.Mode == preflight.Verbs {
		findings = append(findings, preflight.PeerFindings(ctx, dev, peer, preflight.Echo)...)
	}
	return findings
}

// soft has the findings that need the soft provider, unless only hardware matters: the loop, and the peer.
func (f *rdmaFlags) soft(ctx context.Context, system preflight.System, cfg preflight.Config, peer netip.AddrPort) []preflight.Finding {
	if cfg.Mode == preflight.Verbs {
		return nil
	}
	dev := iwarp.Open(iwarp.Config{StartTimeout: 3 * time.Second})
	defer dev.Close()
	var findings []preflight.Finding
	if f.loopSize > 0 {
		at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 0)
		if len(cfg.Listen) > 0 && !cfg.Listen[0].IsUnspecified() {
			at = netip.AddrPortFrom(cfg.Listen[0], 0)
		}
		findings = append(findings, preflight.LoopFindings(ctx, system, dev, at, int64(f.loopSize))...)
	}
	if peer.IsValid() {
		findings = append(findings, preflight.PeerFindings(ctx, dev, peer, preflight.Echo)...)
	}
	return findings
}
