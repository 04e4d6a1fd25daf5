package guest

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestSweep(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	used, err := newFolder("")
	if err != nil {
		t.Fatal(err)
	}
	left, err := os.MkdirTemp("", folderPattern)
	if err != nil {
		t.Fatal(err)
	}
	exists := func(path string) bool {
		_, err := os.Stat(path)
		return err == nil
	}
	sweep(time.Now().Add(-time.Hour))
	if !exists(left) || !exists(used.path) {
		t.Error("a new folder was swept")
	}
	sweep(time.Now().Add(time.Hour))
	if exists(left) || !exists(used.path) {
		t.Errorf("left behind: there is %v; in use: there is %v; want false, true", exists(left), exists(used.path))
	}
	if err := used.remove(); err != nil || exists(used.path) {
		t.Errorf("remove() = %v; there is %v", err, exists(used.path))
	}
}

func TestFolderKeepsLogs(t *testing.T) {
	f, err := newFolder(filepath.Join(t.TempDir(), "logs"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{consoleName, initramfsName} {
		if err := os.WriteFile(filepath.Join(f.path, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.remove(); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(f.path)
	if err != nil || len(entries) != 1 || entries[0].Name() != consoleName {
		t.Errorf("left are %v, %v; want %s", entries, err, consoleName)
	}
}
