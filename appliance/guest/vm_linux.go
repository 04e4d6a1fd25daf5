package guest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"github.com/millrace/millrace/appliance/guest/agent"
	"github.com/millrace/millrace/appliance/guest/qmp"
)

// A VM is a guest that runs. Run, Put and Get of its Client may be called by several goroutines at once.
type VM struct {
	agent.Client
	// QMP controls the machine: drives are pulled and plugged with it.
	QMP *qmp.Client

	config  Config
	folder  folder
	ports   map[int]int
	cancel  context.CancelFunc
	exited  chan struct{}
	exitErr error // valid once exited is closed
}

// Start boots a guest and returns when its agent answers. The guest is killed when ctx ends.
func (c *Cache) Start(ctx context.Context, cfg Config) (*VM, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	vm := &VM{config: cfg, exited: make(chan struct{})}
	if vm.folder, err = newFolder(cfg.Dir); err != nil {
		return nil, err
	}
	img, err := c.makeImage(ctx, cfg, vm.folder.path)
	if err != nil {
		return nil, errors.Join(err, vm.folder.remove())
	}
	ctx, vm.cancel = context.WithTimeoutCause(ctx, cfg.Deadline,
		fmt.Errorf("guest: not done within its %v", cfg.Deadline))
	if err := vm.launch(ctx, img); err != nil {
		vm.cancel()
		return nil, errors.Join(err, vm.folder.remove())
	}
	if err := vm.connect(ctx); err != nil {
		err = fmt.Errorf("%w\n%s", err, vm.Console())
		return nil, errors.Join(err, vm.Close())
	}
	return vm, nil
}

// launch starts QEMU. The system thread that does it stays until QEMU has ended, since its end would kill QEMU
// (PR_SET_PDEATHSIG, prctl(2)): that is how nothing is left when this process dies.
func (vm *VM) launch(ctx context.Context, img image) error {
	log, err := os.Create(filepath.Join(vm.folder.path, qemuLogName))
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, vm.config.emulator(), vm.config.arguments(img, vm.folder.path)...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer log.Close()
		err := cmd.Start()
		started <- err
		if err == nil {
			vm.exitErr = cmd.Wait()
			close(vm.exited)
		}
	}()
	return <-started
}

func (vm *VM) connect(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go func() {
		select {
		case <-vm.exited:
			stop(fmt.Errorf("guest: QEMU has ended: %w", vm.exitErr))
		case <-ctx.Done():
		}
	}()
	var err error
	for vm.QMP == nil {
		if vm.QMP, err = qmp.Dial(ctx, filepath.Join(vm.folder.path, qmpName)); err == nil {
			break
		}
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		case <-time.After(10 * time.Millisecond):
		}
	}
	text, err := vm.Monitor(ctx, "info usernet")
	if err != nil {
		return err
	}
	vm.ports = forwards(text)
	if len(vm.ports) != 1+len(vm.config.Forward) {
		return fmt.Errorf("guest: QEMU forwards %v: %q", vm.ports, text)
	}
	vm.Client.Addr = vm.Forwarded(agent.Port)
	return vm.Ping(ctx)
}

// Forwarded gives the host:port outside that leads to a TCP port of the guest's, which Config.Forward has to name.
func (vm *VM) Forwarded(port int) string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(vm.ports[port]))
}

// Monitor runs a command of QEMU's monitor for people, and gives what it prints.
func (vm *VM) Monitor(ctx context.Context, command string) (string, error) {
	raw, err := vm.QMP.Do(ctx, "human-monitor-command", map[string]string{"command-line": command})
	if err != nil {
		return "", err
	}
	var text string
	return text, json.Unmarshal(raw, &text)
}

// Console gives the end of what the guest's console and QEMU have printed.
func (vm *VM) Console() string {
	const tailBytes = 8 << 10
	var out string
	for _, name := range []string{qemuLogName, consoleName} {
		b, err := os.ReadFile(filepath.Join(vm.folder.path, name))
		if err != nil {
			continue
		}
		out += fmt.Sprintf("-- %s:\n%s\n", name, b[max(0, len(b)-tailBytes):])
	}
	return out
}

// PowerOff lets the guest power off, and waits until it has. File systems are synced; no program is asked.
func (vm *VM) PowerOff(ctx context.Context) error {
	if err := vm.Off(ctx); err != nil {
		return err
	}
	return vm.Wait(ctx)
}

// CutPower kills the machine, as it is. What the guest flushed to its drives is in their files.
func (vm *VM) CutPower() {
	vm.cancel()
	<-vm.exited
}

// Wait waits until the machine has ended. An error means that QEMU was killed, or failed.
func (vm *VM) Wait(ctx context.Context) error {
	select {
	case <-vm.exited:
		return vm.exitErr
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Close kills the guest, if it still runs, and removes its files, but for the logs in Config.Dir.
func (vm *VM) Close() error {
	vm.CutPower()
	if vm.QMP != nil {
		vm.QMP.Close()
	}
	return vm.folder.remove()
}
