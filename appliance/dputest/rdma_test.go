package dputest

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/appliance/guest"
)

// verbsPackage has the provider over libibverbs, whose tests use a real device where there is one.
const verbsPackage = "../../verbs/ibverbs"

// TestVerbs runs the tests of the provider over libibverbs on Soft-RoCE: the suite of all providers, a link that goes down
// under load, a device that is taken away.
func TestVerbs(t *testing.T) {
	for _, arch := range []guest.Arch{guest.ARM64, guest.AMD64} {
		t.Run(string(arch), func(t *testing.T) {
			openCache(t)
			cfg := guest.Config{
				Arch: arch, Sets: []guest.Set{guest.Verbs()}, Links: []guest.Link{{Name: "rxe0", Type: "rxe", NetDev: "eth1"}},
				Fabric: &guest.Fabric{
					Socket: filepath.Join(t.TempDir(), "fabric"), Listen: true, Addresses: []string{leftAddress + "/24"},
				},
			}
			guestTest(t, cfg, verbsPackage, "^(TestConformance|TestLinkLocal|TestLink|TestRemoval)$",
				"-device", "rxe0", "-netdev", "eth1", "-test.short")
		})
	}
}

// TestVerbsPair has the provider in two guests of different architectures: READ, WRITE and SEND between them, and then
// between one of them and ibv_rc_pingpong, ib_write_bw and ib_read_bw of the distribution.
func TestVerbsPair(t *testing.T) {
	openCache(t)
	socket := filepath.Join(t.TempDir(), "fabric")
	peer := func(arch guest.Arch, address string, listen bool) *guest.VM {
		return start(t, guest.Config{
			Arch: arch, Sets: []guest.Set{guest.Verbs(), guest.BusyBox()},
			Files:  []guest.File{{Path: programPath, Source: buildTest(t, arch, verbsPackage)}},
			Links:  []guest.Link{{Name: "rxe0", Type: "rxe", NetDev: "eth1"}},
			Fabric: &guest.Fabric{Socket: socket, Listen: listen, Addresses: []string{address + "/24"}},
		})
	}
	left, right := peer(guest.ARM64, leftAddress, true), peer(guest.AMD64, rightAddress, false)
	t.Run("transfers", func(t *testing.T) {
		const at = leftAddress + ":4790"
		server := inBackground(t.Context(), t, left, programPath, "-test.v", "-test.run", "^TestServe$", "-device", "rxe0", "-serve", at)
		waitListening(t, left, 4790)
		runTest(t, right, "^TestDial$", "-device", "rxe0", "-dial", at)
		if out := <-server; !strings.Contains(out, "--- PASS: TestServe") {
			t.Error(out)
		}
	})
	t.Run("ibv_rc_pingpong", func(t *testing.T) {
		server := inBackground(t.Context(), t, left, "ibv_rc_pingpong", "-d", "rxe0", "-g", "1", "-m", "4096", "-n", "100")
		waitListening(t, left, 18515)
		runTest(t, right, "^TestPingPong$", "-device", "rxe0", "-pingpong", leftAddress+":18515")
		if out := <-server; !strings.Contains(out, "100 iters in") {
			t.Error(out)
		}
	})
	testPerftest(t, left, right)
}

// testPerftest has the provider write into the memory of ib_write_bw and read from that of ib_read_bw, in another guest.
func testPerftest(t *testing.T, left, right *guest.VM) {
	for _, op := range []string{"write", "read"} {
		t.Run("ib_"+op+"_bw", func(t *testing.T) {
			server := inBackground(t.Context(), t, left, "ib_"+op+"_bw", "-d", "rxe0", "-x", "1", "-s", "65536", "-n", "20", "-F")
			waitListening(t, left, 18515)
			runTest(t, right, "^TestPerftest$", "-device", "rxe0", "-perftest", op+","+leftAddress+":18515")
			if out := <-server; !strings.Contains(out, "65536      20") || strings.Contains(out, "exit status") {
				t.Error(out)
			}
		})
	}
}

// inBackground runs a program in a guest, and gives all that it has printed when it has ended.
func inBackground(ctx context.Context, t *testing.T, vm *guest.VM, args ...string) <-chan string {
	t.Helper()
	out := make(chan string, 1)
	go func() {
		text, err := output(ctx, t, vm, args...)
		if err != nil {
			text += err.Error()
		}
		out <- text
	}()
	return out
}

// waitListening waits until a program in the guest listens on a TCP port.
func waitListening(t *testing.T, vm *guest.VM, port int) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		text, err := output(t.Context(), t, vm, "busybox", "cat", "/proc/net/tcp", "/proc/net/tcp6")
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if listens(text, port) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("nothing listens on port %d:\n%s", port, text)
		}
	}
}

// listens looks for the port in a table of /proc/net (proc_net_tcp.rst of the kernel).
func listens(table string, port int) bool {
	const stateListen = "0A"
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) > 3 && f[3] == stateListen && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) {
			return true
		}
	}
	return false
}
