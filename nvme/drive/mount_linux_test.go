package drive

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestMountPoints(t *testing.T) {
	info := "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n36 35 98:0 / /mnt\\0402 rw - ext3 x rw\n" +
		"37 35 98:0 /sub /b rw - ext3 x rw\nbad\n"
	got := mountPoints([]byte(info), "98:0")
	if len(got) != 2 || got[0] != "/b" || got[1] != "/mnt 2" {
		t.Errorf("mountPoints() = %q", got)
	}
}

func TestNodeWhereDevHasNone(t *testing.T) {
	dir := t.TempDir()
	k := kernelPart{name: "no-such-node", dev: "7:0"}
	for range 2 { // the second call finds what the first one made
		node, err := k.node(dir)
		if errors.Is(err, os.ErrPermission) {
			t.Skip("needs root")
		}
		if err != nil || node != filepath.Join(dir, "dev-no-such-node") {
			t.Fatalf("node() = %s, %v", node, err)
		}
	}
	stale := kernelPart{name: "no-such-node", dev: "7:1"}
	if node, err := stale.node(dir); err != nil || !isNode(node, 7<<8|1) {
		t.Errorf("node() over a stale one = %s, %v", node, err)
	}
}
