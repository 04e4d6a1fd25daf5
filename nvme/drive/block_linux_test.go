package drive_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/millrace/millrace/nvme/blockdev"
	"github.com/millrace/millrace/nvme/drive"

	"golang.org/x/sys/unix"
)

const loopSizeBytes = 160 << 20

// command runs an external program and gives what it prints.
func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(context.Background(), name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// loop is a loop device over a sparse file, with a run directory of its own.
type loop struct{ dev, file, runDir string }

func newLoop(t *testing.T, sectorBytes int) loop {
	t.Helper()
	for _, tool := range []string{"losetup", "mkfs.ext4", "partx"} {
		if _, err := exec.LookPath(tool); err != nil || os.Geteuid() != 0 {
			t.Skipf("needs root and %s", tool)
		}
	}
	l := loop{file: filepath.Join(t.TempDir(), "disk"), runDir: filepath.Join(t.TempDir(), "run")}
	f, err := os.Create(l.file)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Truncate(loopSizeBytes), f.Close()); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(context.Background(), "losetup", "--find", "--show",
		"--sector-size", fmt.Sprint(sectorBytes), l.file).Output()
	if err != nil {
		t.Skipf("no loop device to be had: %v", err)
	}
	l.dev = strings.TrimSpace(string(out))
	t.Cleanup(func() { // also what a failed test leaves
		mounts, _ := filepath.Glob(filepath.Join(l.runDir, "*-*-*"))
		for _, m := range mounts {
			exec.CommandContext(context.Background(), "umount", m).Run()
		}
		exec.CommandContext(context.Background(), "partx", "--delete", l.dev).Run()
		exec.CommandContext(context.Background(), "losetup", "--detach", l.dev).Run()
	})
	return l
}

func (l loop) create(t *testing.T) *drive.Drive {
	t.Helper()
	d, err := drive.Create(context.Background(), l.dev, drive.CreateOptions{Options: l.options()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func (l loop) open(t *testing.T) *drive.Drive {
	t.Helper()
	d, err := drive.Open(context.Background(), l.dev, l.options())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func (l loop) options() drive.Options { return drive.Options{RunDir: l.runDir} }

func closeDrive(t *testing.T, d *drive.Drive) {
	t.Helper()
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
}

// damage writes b at off of the device.
func (l loop) damage(t *testing.T, b []byte, off int64) {
	t.Helper()
	f, err := os.OpenFile(l.dev, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt(b, off)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestBlockLifeCycle(t *testing.T) {
	for _, sector := range []int{512, 4096} {
		t.Run(fmt.Sprint(sector), func(t *testing.T) { testBlockLifeCycle(t, newLoop(t, sector)) })
	}
}

func testBlockLifeCycle(t *testing.T, l loop) {
	ctx := context.Background()
	if got := probe(t, l.dev); got != (drive.Found{State: drive.Empty, Kind: drive.Block}) {
		t.Errorf("Probe(blank device) = %+v", got)
	}
	d := l.create(t)
	if got, want := d.Data.SizeBytes(), int64(loopSizeBytes-(1+64+1)<<20); got != want || d.Kind != drive.Block {
		t.Errorf("data of %d bytes on a %s drive; want %d", got, d.Kind, want)
	}
	note := filepath.Join(d.MetaDir, "note")
	if err := os.WriteFile(note, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	page := blockdev.AlignedBuffer(4096)
	copy(page, "hello")
	last := d.Data.SizeBytes() - 4096
	if err := errors.Join(d.Data.WriteAt([][]byte{page}, last), d.Data.Flush(), d.Present()); err != nil {
		t.Fatal(err)
	}
	_, openErr := drive.Open(ctx, l.dev, l.options())
	_, forceErr := drive.Create(ctx, l.dev, drive.CreateOptions{Options: l.options(), Force: true})
	_, createErr := drive.Create(ctx, l.dev, drive.CreateOptions{Options: l.options()})
	if !errors.Is(openErr, blockdev.ErrInUse) || !errors.Is(forceErr, blockdev.ErrInUse) ||
		!errors.Is(createErr, drive.ErrExists) {
		t.Errorf("with the drive open: Open %v; Create with Force %v; Create %v", openErr, forceErr, createErr)
	}
	closeDrive(t, d)
	if _, err := os.Stat(note); err == nil {
		t.Error("metadata still mounted after Close")
	}
	if _, err := exec.LookPath("sgdisk"); err == nil {
		if out := command(t, "sgdisk", "-v", l.dev); !strings.Contains(out, "No problems found") {
			t.Errorf("sgdisk -v: %s", out)
		}
	}
	d = l.open(t)
	if err := d.Data.ReadAt([][]byte{page}, last); err != nil || string(page[:5]) != "hello" {
		t.Errorf("ReadAt() = %q, %v; want hello", page[:5], err)
	}
	if _, err := os.Stat(filepath.Join(d.MetaDir, "note")); err != nil {
		t.Error(err)
	}
	closeDrive(t, d)
	// As after a restart of the machine: the kernel knows no partitions.
	command(t, "partx", "--delete", l.dev)
	closeDrive(t, l.open(t))
}

func TestBlockRefusals(t *testing.T) {
	l := newLoop(t, 512)
	ctx := context.Background()
	create := func(force bool) error {
		d, err := drive.Create(ctx, l.dev, drive.CreateOptions{Options: l.options(), Force: force})
		if err == nil {
			closeDrive(t, d)
		}
		return err
	}
	l.damage(t, []byte("somebody's data"), 600<<10)
	if err := create(false); !errors.Is(err, drive.ErrForeign) {
		t.Errorf("Create over unknown data = %v; want ErrForeign", err)
	}
	command(t, "mkfs.ext4", "-q", "-F", l.dev)
	want := "drive " + l.dev + ": holds an ext2, ext3 or ext4 file system; not touched: not a Millrace drive"
	if err := create(false); err == nil || err.Error() != want {
		t.Errorf("Create over ext4 = %v; want %s", err, want)
	}
	if _, err := drive.Open(ctx, l.dev, l.options()); !errors.Is(err, drive.ErrForeign) {
		t.Errorf("Open of ext4 = %v; want ErrForeign", err)
	}
	dir := t.TempDir()
	command(t, "mount", l.dev, dir)
	err := create(true)
	command(t, "umount", dir)
	if !errors.Is(err, blockdev.ErrInUse) {
		t.Errorf("Create with Force of a mounted device = %v; want ErrInUse", err)
	}
	if err := create(true); err != nil {
		t.Errorf("Create with Force = %v", err)
	}
	if err := create(true); err != nil {
		t.Errorf("Create with Force of a Millrace drive = %v", err)
	}
	if _, err := drive.Probe(l.dev + "p1"); err == nil || !strings.Contains(err.Error(), "partition") {
		t.Errorf("Probe(partition) = %v; want an error that says so", err)
	}
	command(t, "mount", l.dev+"p1", dir)
	_, err = drive.Open(ctx, l.dev, l.options())
	command(t, "umount", dir)
	if !errors.Is(err, blockdev.ErrInUse) {
		t.Errorf("Open with the metadata mounted elsewhere = %v; want ErrInUse", err)
	}
}

// TestBlockBrokenOff lays the marker that a Create removes last.
func TestBlockBrokenOff(t *testing.T) {
	l := newLoop(t, 512)
	closeDrive(t, l.create(t))
	l.damage(t, []byte("millrace: create in progress\n"), 512<<10)
	if got := probe(t, l.dev); got.State != drive.Empty {
		t.Errorf("Probe() = %+v; want empty", got)
	}
	if _, err := drive.Open(context.Background(), l.dev, l.options()); !errors.Is(err, drive.ErrNoDrive) {
		t.Errorf("Open() = %v; want ErrNoDrive", err)
	}
	l.damage(t, make([]byte, 512), 512) // and the table is half there
	d := l.create(t)
	closeDrive(t, d)
}

func TestBlockRepairsTable(t *testing.T) {
	l := newLoop(t, 4096)
	closeDrive(t, l.create(t))
	l.damage(t, make([]byte, 4096), 4096)
	closeDrive(t, l.open(t))
	if _, err := exec.LookPath("sgdisk"); err == nil {
		if out := command(t, "sgdisk", "-v", l.dev); !strings.Contains(out, "No problems found") {
			t.Errorf("sgdisk -v after repair: %s", out)
		}
	}
}

func TestBlockPresent(t *testing.T) {
	l, other := newLoop(t, 512), newLoop(t, 512)
	link := filepath.Join(t.TempDir(), "slot")
	relink := func(dev string) {
		os.Remove(link)
		if err := os.Symlink(dev, link); err != nil {
			t.Fatal(err)
		}
	}
	relink(l.dev)
	d, err := drive.Create(context.Background(), link, drive.CreateOptions{Options: l.options()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	relink(other.dev)
	if err := d.Present(); !errors.Is(err, blockdev.ErrGone) {
		t.Errorf("Present() with another device at the path = %v; want ErrGone", err)
	}
	os.Remove(link)
	if err := d.Present(); !errors.Is(err, blockdev.ErrGone) {
		t.Errorf("Present() with nothing at the path = %v; want ErrGone", err)
	}
	relink(l.dev)
	if err := d.Present(); err != nil {
		t.Errorf("Present() = %v", err)
	}
	if err := os.Truncate(l.file, loopSizeBytes+4096); err != nil {
		t.Fatal(err)
	}
	command(t, "losetup", "--set-capacity", l.dev)
	if err := d.Present(); !errors.Is(err, blockdev.ErrGone) {
		t.Errorf("Present() with another size = %v; want ErrGone", err)
	}
	closeDrive(t, d)
}

// TestBlockAfterKill opens a drive whose last process was killed: it left the mount.
func TestBlockAfterKill(t *testing.T) {
	const devVar, dirVar = "DRIVE_TEST_DEVICE", "DRIVE_TEST_RUNDIR"
	if dev := os.Getenv(devVar); dev != "" { // the process that will be killed
		d := loop{dev: dev, runDir: os.Getenv(dirVar)}.create(t)
		f, err := os.Create(filepath.Join(d.MetaDir, "note"))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(f, "kept")
		fmt.Println("synced", f.Sync())
		io.Copy(io.Discard, os.Stdin) // until killed
		return
	}
	l := newLoop(t, 512)
	victim := exec.CommandContext(context.Background(), os.Args[0], "-test.run=^TestBlockAfterKill$")
	victim.Env = append(os.Environ(), devVar+"="+l.dev, dirVar+"="+l.runDir)
	stdin, _ := victim.StdinPipe()
	defer stdin.Close()
	out, err := victim.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := victim.Start(); errors.Is(err, syscall.ENOEXEC) {
		t.Skip("this program runs by emulation, and can't start itself")
	} else if err != nil {
		t.Fatal(err)
	}
	line, _ := bufio.NewReader(out).ReadString('\n')
	_, busy := drive.Open(context.Background(), l.dev, l.options())
	victim.Process.Kill()
	victim.Wait()
	if line != "synced <nil>\n" || !errors.Is(busy, blockdev.ErrInUse) {
		t.Fatalf("other process said %q; Open meanwhile = %v; want ErrInUse", line, busy)
	}
	d := l.open(t)
	if got, err := os.ReadFile(filepath.Join(d.MetaDir, "note")); string(got) != "kept\n" {
		t.Errorf("note holds %q, %v; want kept", got, err)
	}
	closeDrive(t, d)
}

// TestBlockAfterPowerCut opens a copy of a device that was taken while it was mounted: its
// journal has to be replayed.
func TestBlockAfterPowerCut(t *testing.T) {
	l, cut := newLoop(t, 512), newLoop(t, 512)
	d := l.create(t)
	f, err := os.Create(filepath.Join(d.MetaDir, "note"))
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(f, "kept")
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
	command(t, "dd", "if="+l.file, "of="+cut.file, "bs=1M", "conv=notrunc")
	closeDrive(t, d)
	before := command(t, "dumpe2fs", "-h", cut.file+"?offset=1048576")
	if !strings.Contains(before, "needs_recovery") {
		t.Error("the copy needs no recovery: the test shows nothing")
	}
	d = cut.open(t)
	if got, err := os.ReadFile(filepath.Join(d.MetaDir, "note")); string(got) != "kept\n" {
		t.Errorf("note holds %q, %v; want kept", got, err)
	}
	closeDrive(t, d)
}

// TestBlockAbandon closes a drive that failed: what was flushed is there after, by the journal, and the rest was not
// written at the end.
func TestBlockAbandon(t *testing.T) {
	l := newLoop(t, 512)
	d := l.create(t)
	write := func(name string, sync bool) {
		f, err := os.Create(filepath.Join(d.MetaDir, name))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(f, "kept")
		if sync {
			err = f.Sync()
		}
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	write("note", true)
	write("later", false)
	f, err := os.Open(d.MetaDir)
	if err != nil {
		t.Fatal(err)
	}
	const ioctlShutdown, noSuchFlag = 0x8004587d, 99
	err = unix.IoctlSetPointerInt(int(f.Fd()), ioctlShutdown, noSuchFlag)
	if f.Close(); errors.Is(err, unix.ENOSYS) {
		d.Abandon()
		closeDrive(t, d)
		t.Skip("the emulator does not know FS_IOC_SHUTDOWN")
	}
	d.Abandon()
	closeDrive(t, d)
	if state := command(t, "dumpe2fs", "-h", l.file+"?offset=1048576"); !strings.Contains(state, "needs_recovery") {
		t.Error("the journal is taken for empty")
	}
	d = l.open(t)
	if got, err := os.ReadFile(filepath.Join(d.MetaDir, "note")); string(got) != "kept\n" {
		t.Errorf("note holds %q, %v; want kept", got, err)
	}
	if got, err := os.ReadFile(filepath.Join(d.MetaDir, "later")); string(got) == "kept\n" {
		t.Errorf("what was not flushed was written: %q, %v", got, err)
	}
	closeDrive(t, d)
}
