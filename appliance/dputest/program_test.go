// Package dputest boots guests and tests the product in them. Its tests are skipped without the flag -dpu, since they
// take minutes and need QEMU: make test-dpu gives it. They are about what needs a kernel of its own: NVMe drives that
// go away, RDMA devices, power that is cut.
package dputest

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/appliance/guest"
)

var dpu = flag.Bool("dpu", false, "boot guests (needs QEMU and a Debian mirror)")

// openCache gives the cache of guest software, or skips the test without the flag.
func openCache(t *testing.T) *guest.Cache {
	t.Helper()
	if !*dpu {
		t.Skip("needs -dpu")
	}
	c, err := guest.OpenCache("")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// start boots a guest that lives as long as the test. Of a test that fails, the end of the console is shown.
func start(t *testing.T, cfg guest.Config) *guest.VM {
	t.Helper()
	begin := time.Now()
	vm, err := openCache(t).Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s guest is up after %.1f s", cfg.Arch, time.Since(begin).Seconds())
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(vm.Console())
		}
		if err := vm.Close(); err != nil {
			t.Error(err)
		}
	})
	return vm
}

// buildTest compiles the tests of a package for a guest, without cgo.
func buildTest(t *testing.T, arch guest.Arch, pkg string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "guest.test")
	cmd := exec.CommandContext(t.Context(), "go", "test", "-c", "-o", file, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+string(arch))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go test -c %s: %v\n%s", pkg, err, out)
	}
	return file
}

// programPath is where a guest has the test program.
const programPath = "/test/guest.test"

// guestTest runs tests of a package in a guest of its own, which cfg describes. Those are run that the pattern run
// matches, with more flags of theirs ("-test.short"). At least one has to run.
func guestTest(t *testing.T, cfg guest.Config, pkg, run string, flags ...string) {
	t.Helper()
	openCache(t)
	cfg.Files = append(cfg.Files, guest.File{Path: programPath, Source: buildTest(t, cfg.Arch, pkg)})
	vm := start(t, cfg)
	runTest(t, vm, run, flags...)
	if !t.Failed() {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := vm.PowerOff(ctx); err != nil {
			t.Error(err)
		}
	}
}

// runTest runs the test program of a guest (at programPath).
func runTest(t *testing.T, vm *guest.VM, run string, flags ...string) {
	t.Helper()
	out := &testLog{t: t}
	err := vm.Run(t.Context(), guest.Command{
		Args: append([]string{programPath, "-test.v", "-test.run", run}, flags...),
		Dir:  "/tmp", Stdout: out, Stderr: out,
	})
	out.flush()
	var exit *guest.ExitError
	switch {
	case errors.As(err, &exit) && exit.Signal == "":
		t.Errorf("the tests in the guest failed: exit status %d", exit.Code)
	case err != nil:
		t.Error(err)
	case out.passed == 0:
		t.Errorf("no test of the guest matches %q and ran", run)
	}
	t.Logf("in the guest: %d tests passed, %d were skipped", out.passed, out.skipped)
}

// testLog writes lines into the log of a test, and counts the tests that the lines are about.
type testLog struct {
	t       *testing.T
	mu      sync.Mutex
	rest    []byte
	passed  int
	skipped int
}

var verdict = regexp.MustCompile(`^--- (PASS|SKIP): `)

func (l *testLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rest = append(l.rest, p...)
	for {
		line, rest, ok := bytes.Cut(l.rest, []byte("\n"))
		if !ok {
			return len(p), nil
		}
		l.line(line)
		l.rest = rest
	}
}

func (l *testLog) flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.rest) > 0 {
		l.line(l.rest)
	}
	l.rest = nil
}

func (l *testLog) line(line []byte) {
	if m := verdict.FindSubmatch(line); m != nil {
		if string(m[1]) == "PASS" {
			l.passed++
		} else {
			l.skipped++
		}
	}
	if !bytes.HasPrefix(line, []byte("=== ")) {
		l.t.Logf("| %s", line)
	}
}

// TestBlockDevice runs the tests of drives' files in guests of both architectures: the test bed itself works.
func TestBlockDevice(t *testing.T) {
	for _, arch := range []guest.Arch{guest.ARM64, guest.AMD64} {
		t.Run(string(arch), func(t *testing.T) {
			guestTest(t, guest.Config{Arch: arch, Drives: drives(t, 1)}, "../../nvme/blockdev", ".", "-test.short")
		})
	}
}

// drives makes empty drives for a guest.
func drives(t *testing.T, n int) []guest.Drive {
	t.Helper()
	out := make([]guest.Drive, n)
	for i := range out {
		f, err := os.CreateTemp(t.TempDir(), "drive")
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(f.Truncate(2<<30), f.Close()); err != nil {
			t.Fatal(err)
		}
		out[i].Source = f.Name()
	}
	return out
}
