package main

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/millrace/millrace/verbs/iwarp"
	"github.com/millrace/millrace/verbs/preflight"
)

// findings reads the lines of rdma check --json.
func findings(t *testing.T, text string) map[string]preflight.Finding {
	t.Helper()
	out := map[string]preflight.Finding{}
	for line := range strings.Lines(text) {
		var f preflight.Finding
		if err := json.Unmarshal([]byte(line), &f); err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		out[f.Check] = f
	}
	return out
}

func TestRDMACheckSoft(t *testing.T) {
	dev := iwarp.Open(iwarp.Config{})
	defer dev.Close()
	listener, err := dev.Listen(netip.MustParseAddrPort("127.0.0.1:0"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	peer := netip.AddrPortFrom(listener.Endpoint().Addr(), uint16(listener.Endpoint().QPN)).String()

	m := millrace{t: t}
	stdout, stderr, code := m.run("rdma", "check", "--rdma", "soft", "--listen", "127.0.0.1:9000", "--loop-size", "1MiB", "--peer", peer, "--json")
	got := findings(t, stdout)
	if code != exitOK || got["peer"].Verdict != preflight.OK {
		t.Errorf("exit %d, %s%s; want 0 and a peer", code, stdout, stderr)
	}
	if loop := got["loop"]; loop.Verdict != preflight.OK || loop.Loop == nil || loop.Loop.Provider != "soft" || loop.Loop.Bytes != 1<<20 || loop.Loop.WriteMiBps <= 0 {
		t.Errorf("loop %+v; want figures of 1 MiB by soft", loop)
	}

	stdout, _, code = m.run("rdma", "check", "--rdma", "soft", "--loop-size", "0", "--peer", "127.0.0.1:1")
	if code != exitFailed || !strings.Contains(stdout, "PROBLEM  peer 127.0.0.1:1: ") || strings.Contains(stdout, "loop") {
		t.Errorf("exit %d, %s; want 1, a problem with the peer, and no loop", code, stdout)
	}
}

// TestRDMACheckVerbs wants the whole device, and this test has none: loopback is on no fabric.
func TestRDMACheckVerbs(t *testing.T) {
	m := millrace{t: t}
	stdout, stderr, code := m.run("rdma", "check", "--rdma", "verbs", "--listen", "127.0.0.1", "--loop-size", "0")
	if code != exitFailed || !strings.Contains(stdout, "PROBLEM") || !strings.Contains(stdout, "→") || !strings.Contains(stderr, "problems: ") {
		t.Errorf("exit %d, %s%s; want 1, and problems with advice", code, stdout, stderr)
	}
}

func TestRDMACheckUsage(t *testing.T) {
	for _, args := range []string{
		"rdma", "rdma checks", "rdma check more", "rdma check --rdma maybe", "rdma check --listen eth0", "rdma check --peer host",
		"rdma check --peer 127.0.0.1:0", "rdma check --loop-size 2GiB",
	} {
		m := millrace{t: t}
		if _, stderr, code := m.run(strings.Fields(args)...); code != exitUsage {
			t.Errorf("%s: exit %d, %s; want 2", args, code, stderr)
		}
	}
}
