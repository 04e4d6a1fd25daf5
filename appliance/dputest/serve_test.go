package dputest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/appliance/guest"
)

// millrace is where a guest has the product, and the ports that it serves at.
const (
	millrace  = "/usr/bin/millrace"
	s3Port    = 9000
	mgmtPort  = 9443
	stateDir  = "/var/lib/millrace"
	readyWait = 3 * time.Minute
)

// buildMillrace compiles the product for a guest.
func buildMillrace(t *testing.T, arch guest.Arch) guest.File {
	t.Helper()
	file := filepath.Join(t.TempDir(), "millrace")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags=-s -w", "-o", file, "../cmd/millrace")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+string(arch))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return guest.File{Path: millrace, Source: file}
}

// server is a `millrace serve` in a guest.
type server struct {
	t     *testing.T
	vm    *guest.VM
	ended chan error
	log   *lastBytes
}

// serve starts millrace in a guest, with the arguments after those for its addresses, and waits until it is ready.
func serve(t *testing.T, vm *guest.VM, args ...string) *server {
	t.Helper()
	s := &server{t: t, vm: vm, ended: make(chan error, 1), log: &lastBytes{}}
	out, in := io.Pipe()
	go func() {
		c := credential()
		s.ended <- vm.Run(context.WithoutCancel(t.Context()), guest.Command{
			Args: append([]string{millrace, "serve", "--listen", "0.0.0.0:9000", "--mgmt-listen", "0.0.0.0:9443",
				"--state-dir", stateDir}, args...),
			Env:    []string{"MILLRACE_ROOT_ACCESS_KEY=" + c.AccessKey, "MILLRACE_ROOT_SECRET_KEY=" + c.SecretKey},
			Stdout: in, Stderr: s.log,
		})
		in.Close()
	}()
	ready := make(chan bool, 1)
	go func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if strings.HasPrefix(lines.Text(), "millrace: ready") {
				ready <- true
			}
		}
		close(ready)
	}()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("-- millrace serve:\n%s", s.log)
		}
	})
	begin := time.Now()
	select {
	case ok := <-ready:
		if !ok {
			t.Fatalf("millrace serve ended: %v", <-s.ended)
		}
	case <-time.After(readyWait):
		t.Fatalf("millrace serve is not ready after %v", readyWait)
	}
	t.Logf("millrace serves after %.1f s", time.Since(begin).Seconds())
	return s
}

// stop asks the server to end, and wants that it does so cleanly.
func (s *server) stop() {
	s.t.Helper()
	if _, err := output(s.t.Context(), s.t, s.vm, "busybox", "killall", "millrace"); err != nil {
		s.t.Fatal(err)
	}
	s.awaitEnd()
}

// awaitLog waits for a line in the server's log.
func (s *server) awaitLog(text string) {
	s.t.Helper()
	for end := time.Now().Add(readyWait); !strings.Contains(s.log.String(), text); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("millrace serve did not say %q in %v", text, readyWait)
		}
	}
}

// awaitEnd wants that the server ends cleanly.
func (s *server) awaitEnd() {
	s.t.Helper()
	select {
	case err := <-s.ended:
		if err != nil {
			s.t.Errorf("millrace serve, stopped: %v; want nil", err)
		}
	case <-time.After(readyWait):
		s.t.Fatalf("millrace serve has not ended after %v", readyWait)
	}
}

// status is what the test reads of millrace pool status --json.
type status struct {
	Pool struct {
		Status string
		Drives map[string]int
		Repair struct {
			Running  bool `json:"running"`
			Counting bool `json:"counting"`
		}
		Filling bool
	}
	Drives []struct {
		Slot        int
		Path, State string
		Error       string
	}
}

func (s *server) status() status {
	s.t.Helper()
	var stdout, stderr bytes.Buffer
	c := credential()
	err := s.vm.Run(s.t.Context(), guest.Command{Args: []string{millrace, "pool", "status", "--json", "--insecure"},
		Env:    []string{"MILLRACE_ROOT_ACCESS_KEY=" + c.AccessKey, "MILLRACE_ROOT_SECRET_KEY=" + c.SecretKey},
		Stdout: &stdout, Stderr: &stderr})
	if err != nil {
		s.t.Fatalf("%v\n%s", err, &stderr)
	}
	var st status
	if err := json.Unmarshal(stdout.Bytes(), &st); err != nil {
		s.t.Fatalf("%v\n%s", err, &stdout)
	}
	return st
}

// await waits until the status of the pool is as wanted.
func (s *server) await(what string, wanted func(status) bool) status {
	s.t.Helper()
	begin := time.Now()
	for {
		st := s.status()
		if wanted(st) {
			s.t.Logf("%s, after %.1f s", what, time.Since(begin).Seconds())
			return st
		}
		if time.Since(begin) > readyWait {
			s.t.Fatalf("not %s after %v: %+v", what, readyWait, st)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// fsck checks the drives of a pool that is not being served, data and all.
func fsck(t *testing.T, vm *guest.VM, drives []string) {
	t.Helper()
	var report struct {
		Sound  bool
		Faults []struct{ Kind, Text string }
	}
	var stdout, stderr bytes.Buffer
	begin := time.Now()
	runErr := vm.Run(t.Context(), guest.Command{Args: append([]string{millrace, "fsck", "--deep", "--json"}, drives...),
		Stdout: &stdout, Stderr: &stderr})
	err := json.Unmarshal(stdout.Bytes(), &report)
	if err := errors.Join(runErr, err); err != nil || !report.Sound {
		t.Errorf("fsck: sound is %v, %v; want true, nil\n%s", report.Sound, err, &stderr)
	}
	for _, f := range report.Faults {
		t.Errorf("fsck: %s: %s", f.Kind, f.Text)
	}
	t.Logf("fsck --deep took %.1f s", time.Since(begin).Seconds())
}

// lastBytes keeps the end of what is written to it.
type lastBytes struct {
	mu  sync.Mutex
	buf []byte
}

const keptBytes = 32 << 10

func (l *lastBytes) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buf = append(l.buf, p...)
	l.buf = l.buf[max(0, len(l.buf)-keptBytes):]
	return len(p), nil
}

func (l *lastBytes) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.buf)
}
