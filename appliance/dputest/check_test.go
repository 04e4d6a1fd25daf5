package dputest

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/appliance/guest"
	"github.com/millrace/millrace/verbs/preflight"
)

// TestRDMACheck runs millrace rdma check on a kernel that has an RDMA device, with a server as its peer. Soft-RoCE has no priorities, no congestion
// control and no PCIe, so these can't be read and no more.
func TestRDMACheck(t *testing.T) {
	openCache(t)
	_, vm := startServerAndClient(t, guest.AMD64, "--rdma", "verbs", "--rdma-listen", leftAddress+":9010")
	want := map[string]preflight.Verdict{
		"device rxe0": preflight.OK, "module ib_uverbs": preflight.OK, "node /dev/infiniband/uverbs0": preflight.OK, "netns": preflight.OK,
		"memlock": preflight.OK, "gid " + rightAddress: preflight.OK, "link rxe0/1": preflight.OK, "errors rxe0/1": preflight.OK,
		"mtu eth1": preflight.OK, "pfc eth1": preflight.Warn, "ecn eth1": preflight.Warn, "library libibverbs": preflight.OK,
		"peer " + leftAddress + ":9010": preflight.OK, "path " + leftAddress: preflight.OK,
		"mtu rxe0/1": preflight.OK, "loop ibverbs rxe0": preflight.OK,
	}
	if diff := cmp.Diff(want, check(t, vm, "--listen", rightAddress, "--loop-size", "8MiB", "--peer", leftAddress+":9010")); diff != "" {
		t.Errorf("an address of rxe0 (-want +got):\n%s", diff)
	}
	// The address of eth0 is on no RDMA device.
	got := check(t, vm, "--listen", "10.0.2.15", "--loop-size", "0")
	if got["gid 10.0.2.15"] != preflight.Problem {
		t.Errorf("an address of no device: %v", got)
	}
}

// check gives the verdicts of a check.
func check(t *testing.T, vm *guest.VM, args ...string) map[string]preflight.Verdict {
	t.Helper()
	var out, log bytes.Buffer
	args = append([]string{millrace, "rdma", "check", "--rdma", "verbs", "--json"}, args...)
	err := vm.Run(t.Context(), guest.Command{Args: args, Stdout: &out, Stderr: &log})
	t.Logf("%v %s%s", err, out.String(), log.String())
	verdicts := map[string]preflight.Verdict{}
	for line := range strings.Lines(out.String()) {
		var f preflight.Finding
		if err := json.Unmarshal([]byte(line), &f); err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		verdicts[strings.TrimSpace(f.Check+" "+f.Subject)] = f.Verdict
	}
	return verdicts
}
