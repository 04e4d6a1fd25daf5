package blockdev_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/millrace/millrace/nvme/blockdev"
	"github.com/millrace/millrace/nvme/blockdev/devtest"
)

func sparseFile(t testing.TB, dir string, sizeBytes int64) string {
	t.Helper()
	f, err := os.CreateTemp(dir, "dev")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(f.Name()) })
	if err := errors.Join(f.Truncate(sizeBytes), f.Close()); err != nil {
		t.Fatal(err)
	}
	return f.Name()
}

func openFile(t testing.TB, path string, opt blockdev.FileOptions) *blockdev.File {
	t.Helper()
	d, err := blockdev.OpenFile(path, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// loopDevice attaches a sparse file, or skips where that can't be done.
func loopDevice(t testing.TB, sizeBytes int64, sectorBytes int) string {
	t.Helper()
	losetup, err := exec.LookPath("losetup")
	if err != nil || os.Geteuid() != 0 {
		t.Skip("needs root and losetup")
	}
	file := sparseFile(t, t.TempDir(), sizeBytes)
	out, err := exec.CommandContext(context.Background(), losetup, "--find", "--show",
		"--sector-size", fmt.Sprint(sectorBytes), file).Output()
	if err != nil {
		t.Skipf("no loop device to be had: %v", err)
	}
	dev := strings.TrimSpace(string(out))
	t.Cleanup(func() { exec.CommandContext(context.Background(), losetup, "--detach", dev).Run() })
	return dev
}

func TestFileConforms(t *testing.T) {
	devtest.Run(t, func(t *testing.T) blockdev.Device {
		return openFile(t, sparseFile(t, t.TempDir(), devtest.MinSizeBytes), blockdev.FileOptions{})
	})
}

func TestFileWindowConforms(t *testing.T) {
	devtest.Run(t, func(t *testing.T) blockdev.Device {
		return openFile(t, sparseFile(t, t.TempDir(), 2*devtest.MinSizeBytes), blockdev.FileOptions{
			OffsetBytes: 1 << 20, SizeBytes: devtest.MinSizeBytes, MaxInFlight: 2,
		})
	})
}

func TestLoopDeviceConforms(t *testing.T) {
	for _, sector := range []int{512, 4096} {
		t.Run(fmt.Sprint(sector), func(t *testing.T) {
			devtest.Run(t, func(t *testing.T) blockdev.Device {
				d := openFile(t, loopDevice(t, devtest.MinSizeBytes, sector), blockdev.FileOptions{})
				if !d.Direct() {
					t.Error("Direct() = false on a block device")
				}
				return d
			})
		})
	}
}

func TestMemConforms(t *testing.T) {
	devtest.Run(t, func(*testing.T) blockdev.Device { return blockdev.NewMem(devtest.MinSizeBytes) })
}

func TestFaultConforms(t *testing.T) {
	devtest.Run(t, func(*testing.T) blockdev.Device {
		return blockdev.NewCounted(blockdev.NewFault(blockdev.NewMem(devtest.MinSizeBytes)))
	})
}

func TestOpenFileRefuses(t *testing.T) {
	dir := t.TempDir()
	file := sparseFile(t, dir, 1<<20)
	openFile(t, file, blockdev.FileOptions{})
	free := sparseFile(t, dir, 1<<20)
	tests := []struct {
		path string
		opt  blockdev.FileOptions
		want error // nil: any
	}{
		{file, blockdev.FileOptions{}, blockdev.ErrInUse},
		{filepath.Join(dir, "none"), blockdev.FileOptions{}, os.ErrNotExist},
		{dir, blockdev.FileOptions{}, nil},
		{"/dev/null", blockdev.FileOptions{}, nil},
		{free, blockdev.FileOptions{OffsetBytes: 512}, blockdev.ErrUnaligned},
		{free, blockdev.FileOptions{SizeBytes: 512}, blockdev.ErrUnaligned},
		{free, blockdev.FileOptions{OffsetBytes: 2 << 20}, blockdev.ErrOutOfRange},
		{free, blockdev.FileOptions{OffsetBytes: 4096, SizeBytes: 1 << 20}, blockdev.ErrOutOfRange},
		{free, blockdev.FileOptions{OffsetBytes: -4096}, blockdev.ErrOutOfRange},
		{free, blockdev.FileOptions{MaxInFlight: -1}, blockdev.ErrOutOfRange},
	}
	for _, tt := range tests {
		d, err := blockdev.OpenFile(tt.path, tt.opt)
		if err == nil {
			d.Close()
			t.Errorf("OpenFile(%s, %+v) = nil; want an error", tt.path, tt.opt)
		} else if tt.want != nil && !errors.Is(err, tt.want) {
			t.Errorf("OpenFile(%s, %+v) = %v; want %v", tt.path, tt.opt, err, tt.want)
		}
	}
	openFile(t, free, blockdev.FileOptions{}) // a refused open leaves no lock
}

func TestLoopDeviceInUse(t *testing.T) {
	dev := loopDevice(t, 1<<20, 512)
	openFile(t, dev, blockdev.FileOptions{})
	if _, err := blockdev.OpenFile(dev, blockdev.FileOptions{}); !errors.Is(err, blockdev.ErrInUse) {
		t.Errorf("second OpenFile() = %v; want ErrInUse", err)
	}
}

func TestShrunkFileGivesShortRead(t *testing.T) {
	path := sparseFile(t, t.TempDir(), 1<<20)
	d := openFile(t, path, blockdev.FileOptions{})
	if err := os.Truncate(path, 8192); err != nil {
		t.Fatal(err)
	}
	if err := d.ReadAt([][]byte{fill(0, 0, 0)}, 0); err == nil {
		t.Error("ReadAt() over the end of a shrunk file = nil; want an error")
	}
}

func TestCloseDuringCalls(t *testing.T) {
	d := openFile(t, sparseFile(t, t.TempDir(), 1<<20), blockdev.FileOptions{MaxInFlight: 2})
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			page := [][]byte{fill(9)}
			for {
				if err := d.WriteAt(page, 0); err != nil {
					if !errors.Is(err, blockdev.ErrClosed) {
						t.Errorf("WriteAt() = %v; want ErrClosed", err)
					}
					return
				}
			}
		})
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	all.Wait()
}

func TestBufferedWhereDirectIsRefused(t *testing.T) {
	dir := t.TempDir()
	mount := exec.CommandContext(context.Background(), "mount", "-t", "ramfs", "none", dir)
	if out, err := mount.CombinedOutput(); err != nil {
		t.Skipf("ramfs, which has no direct I/O, can't be mounted: %s", out)
	}
	t.Cleanup(func() { exec.CommandContext(context.Background(), "umount", dir).Run() })
	devtest.Run(t, func(t *testing.T) blockdev.Device {
		d := openFile(t, sparseFile(t, dir, devtest.MinSizeBytes), blockdev.FileOptions{})
		if d.Direct() {
			t.Error("Direct() = true on ramfs")
		}
		return d
	})
}

func BenchmarkDevice(b *testing.B) {
	const size = 64 << 20
	devices := map[string]func() blockdev.Device{
		"File": func() blockdev.Device {
			return openFile(b, sparseFile(b, b.TempDir(), size), blockdev.FileOptions{})
		},
		"Mem": func() blockdev.Device { return blockdev.NewMem(size) },
	}
	for name, open := range devices {
		for _, n := range []int{4 << 10, 256 << 10, 1 << 20} {
			d := open()
			buf := [][]byte{blockdev.AlignedBuffer(n)}
			run := func(op string, call func([][]byte, int64) error) {
				b.Run(fmt.Sprintf("%s/%s/%dKiB", name, op, n>>10), func(b *testing.B) {
					b.SetBytes(int64(n))
					b.ReportAllocs()
					for off := int64(0); b.Loop(); off = (off + int64(n)) % size {
						if err := call(buf, off); err != nil {
							b.Fatal(err)
						}
					}
				})
			}
			run("write", d.WriteAt)
			run("read", d.ReadAt)
		}
	}
}
