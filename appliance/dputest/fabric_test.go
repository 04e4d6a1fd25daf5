package dputest

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/appliance/guest"
)

// The addresses of two guests on a fabric.
const (
	leftAddress  = "192.0.2.1"
	rightAddress = "192.0.2.2"
)

// startPair boots two guests of one configuration with a cable between them; the drives are the left one's. Each has the RDMA
// device rxe0 over it.
func startPair(t *testing.T, cfg guest.Config) (left, right *guest.VM) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "fabric")
	cfg.Links = []guest.Link{{Name: "rxe0", Type: "rxe", NetDev: "eth1"}}
	cfg.Fabric = &guest.Fabric{Socket: socket, Listen: true, Addresses: []string{leftAddress + "/24"}}
	left = start(t, cfg)
	cfg.Drives = nil
	cfg.Fabric = &guest.Fabric{Socket: socket, Addresses: []string{rightAddress + "/24"}}
	right = start(t, cfg)
	return left, right
}

// output runs a program in a guest and gives all that it prints.
func output(ctx context.Context, t *testing.T, vm *guest.VM, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	err := vm.Run(ctx, guest.Command{Args: args, Stdout: &out, Stderr: &out})
	return out.String(), err
}

// TestSoftRoCE runs ibv_rc_pingpong of the distribution between two guests: the RDMA devices of the test bed work.
func TestSoftRoCE(t *testing.T) {
	openCache(t)
	left, right := startPair(t, guest.Config{Arch: guest.ARM64, Sets: []guest.Set{guest.Verbs()}})
	// GID 1 is the one of the IPv4 address, for RoCE v2.
	pingpong := []string{"ibv_rc_pingpong", "-d", "rxe0", "-g", "1", "-n", "100", "-c"}
	server := make(chan error, 1)
	go func() {
		out, err := output(t.Context(), t, left, pingpong...)
		if err != nil {
			err = errors.Join(err, errors.New(out))
		}
		server <- err
	}()
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) { // until the server listens
		out, err := output(t.Context(), t, right, append(pingpong, leftAddress)...)
		if err == nil {
			t.Log(out)
			if !strings.Contains(out, "100 iters in") {
				t.Error("ibv_rc_pingpong doesn't say that it is done")
			}
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	if err := <-server; err != nil {
		t.Error(err)
	}
}
