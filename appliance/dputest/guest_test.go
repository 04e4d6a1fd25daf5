package dputest

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/millrace/millrace/appliance/guest"
)

// TestGuest does in a guest what all other tests rely on: commands with their exit codes, files, commands that are
// killed, a drive pulled and plugged, power off.
func TestGuest(t *testing.T) {
	openCache(t)
	vm := start(t, guest.Config{Arch: guest.ARM64, Sets: []guest.Set{guest.BusyBox()}, Drives: drives(t, 2)})
	var exit *guest.ExitError
	if _, err := output(t.Context(), t, vm, "sh", "-c", "exit 7"); !errors.As(err, &exit) || exit.Code != 7 {
		t.Errorf("exit 7 = %v; want an ExitError with it", err)
	}
	text := strings.Repeat("0123456789", 100_000)
	if err := vm.Put(t.Context(), "/tmp/new/file", 0o600, strings.NewReader(text)); err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	if err := vm.Get(t.Context(), "/tmp/new/file", &got); err != nil || got.String() != text {
		t.Errorf("Get() = %d bytes, %v; want %d", got.Len(), err, len(text))
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	sleeps := make(chan error, 1)
	go func() {
		_, err := output(ctx, t, vm, "sh", "-c", "busybox touch /tmp/sleeps; busybox sleep 1000")
		sleeps <- err
	}()
	until := func(script string) {
		t.Helper()
		if out, err := output(t.Context(), t, vm, "sh", "-c", "until "+script+"; do busybox usleep 20000; done"); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	until("busybox test -e /tmp/sleeps")
	cancel()
	if err := <-sleeps; !errors.Is(err, context.Canceled) {
		t.Errorf("a command that is given up = %v; want the context's error", err)
	}
	until("! busybox pidof sleep")
	if err := vm.PullDrive(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	until("! busybox test -e /dev/nvme1n1")
	if err := vm.PlugDrive(t.Context(), 1, drives(t, 1)[0]); err != nil {
		t.Fatal(err)
	}
	until("busybox test -b /dev/nvme1n1")
	if err := vm.PowerOff(t.Context()); err != nil {
		t.Errorf("PowerOff() = %v", err)
	}
	if _, err := output(t.Context(), t, vm, "sh", "-c", "exit 0"); err == nil {
		t.Error("a command after the power is off: no error")
	}
}

// TestGuestSetupFails wants an error that says what failed in the guest.
func TestGuestSetupFails(t *testing.T) {
	c := openCache(t)
	_, err := c.Start(t.Context(), guest.Config{Arch: guest.ARM64, Links: []guest.Link{{Name: "x", Type: "rxe", NetDev: "none"}}})
	if err == nil || !strings.Contains(err.Error(), "RDMA link x") {
		t.Errorf("Start with a link over no interface = %v; want an error about it", err)
	}
}
