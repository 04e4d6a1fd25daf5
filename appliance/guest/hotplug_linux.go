package guest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/millrace/millrace/appliance/guest/qmp"
)

// PullDrive takes the n-th drive out, and returns when the guest has let go of it: that is some six seconds later,
// since PCIe hot-plug waits for a second push of the button.
func (vm *VM) PullDrive(ctx context.Context, n int) error {
	if _, err := vm.QMP.Do(ctx, "device_del", map[string]any{"id": driveID(n)}); err != nil {
		return err
	}
	_, err := vm.QMP.Await(ctx, func(e qmp.Event) bool {
		var data struct{ Device string }
		return e.Name == "DEVICE_DELETED" && json.Unmarshal(e.Data, &data) == nil && data.Device == driveID(n)
	})
	if err != nil {
		return fmt.Errorf("guest: drive %d is not let go: %w", n, err)
	}
	_, err = vm.QMP.Do(ctx, "blockdev-del", map[string]any{"node-name": nodeName(n)})
	return err
}

// PlugDrive puts a drive into the n-th port, which has to be empty. It doesn't wait for the guest to see it.
func (vm *VM) PlugDrive(ctx context.Context, n int, d Drive) error {
	if n >= len(vm.config.Drives) || d.Source == "" {
		return errors.New("guest: no such port, or no drive")
	}
	cfg := Config{Arch: vm.config.Arch, Drives: make([]Drive, n+1)}
	cfg.Drives[n] = d
	cfg, err := cfg.withDefaults()
	if err != nil {
		return err
	}
	d = cfg.Drives[n]
	if _, err := vm.QMP.Do(ctx, "blockdev-add", d.backend(n)); err != nil {
		return err
	}
	_, err = vm.QMP.Do(ctx, "device_add", d.device(n))
	return err
}
