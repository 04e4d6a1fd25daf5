package drive_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/millrace/millrace/nvme/blockdev"
	"github.com/millrace/millrace/nvme/drive"
)

const testSizeBytes = 4 << 20

func create(t *testing.T, path string) *drive.Drive {
	t.Helper()
	d, err := drive.Create(context.Background(), path, drive.CreateOptions{SizeBytes: testSizeBytes})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func probe(t *testing.T, path string) drive.Found {
	t.Helper()
	found, err := drive.Probe(path)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestDirectoryLifeCycle(t *testing.T) {
	ctx := context.Background()
	path := filepath.Join(t.TempDir(), "drives", "00")
	if _, err := drive.Open(ctx, path, drive.Options{}); !errors.Is(err, drive.ErrNoDrive) {
		t.Errorf("Open(nothing) = %v; want ErrNoDrive", err)
	}
	d := create(t, path)
	if got := d.Data.SizeBytes(); got != testSizeBytes {
		t.Errorf("SizeBytes() = %d; want %d", got, testSizeBytes)
	}
	page := blockdev.AlignedBuffer(4096)
	copy(page, "hello")
	if err := d.Data.WriteAt([][]byte{page}, 8192); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(d.MetaDir, "note"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := drive.Open(ctx, path, drive.Options{}); !errors.Is(err, blockdev.ErrInUse) {
		t.Errorf("second Open() = %v; want ErrInUse", err)
	}
	if _, err := drive.Create(ctx, path, drive.CreateOptions{SizeBytes: testSizeBytes}); !errors.Is(err, drive.ErrExists) {
		t.Errorf("second Create() = %v; want ErrExists", err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if got := probe(t, path).State; got != drive.Millrace {
		t.Errorf("Probe() = %s; want millrace", got)
	}
	d, err := drive.Open(ctx, path, drive.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	clear(page)
	if err := d.Data.ReadAt([][]byte{page}, 8192); err != nil || string(page[:5]) != "hello" {
		t.Errorf("ReadAt() = %q, %v; want hello", page[:5], err)
	}
	if _, err := os.Stat(filepath.Join(path, "meta", "note")); err != nil {
		t.Error(err)
	}
}
