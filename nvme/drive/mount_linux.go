package drive

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/millrace/millrace/nvme/blockdev"
	"golang.org/x/sys/unix"
)

// The metadata file system is ext4: every Linux distribution has e2fsprogs at hand, it can be
// made as small as a test needs (XFS refuses less than 300 MiB), and its reserve for root,
// which is of no use here, can be set to none.
const metaFileSystem = "ext4"

// inodeBytes: one inode for so many bytes. The metadata store has few, large files.
const inodeBytes = "65536"

// maxMessageBytes bounds what is quoted of an external program's errors.
const maxMessageBytes = 400

// makeFileSystem makes the metadata file system on a partition. Its tables are written at once,
// not in the background after the mount, and on an error it turns read-only.
func makeFileSystem(ctx context.Context, node string) error {
	mkfs, err := exec.LookPath("mkfs.ext4")
	if err != nil {
		mkfs = "/usr/sbin/mkfs.ext4" // not in every user's PATH
		if _, err := os.Stat(mkfs); err != nil {
			return errors.New("mkfs.ext4 not found: install e2fsprogs")
		}
	}
	cmd := exec.CommandContext(ctx, mkfs, "-q", "-F", "-b", "4096", "-m", "0", "-i", inodeBytes, "-e", "remount-ro",
		"-L", metaLabel, "-E", "lazy_itable_init=0,lazy_journal_init=0", node)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", mkfs, err, bytes.TrimSpace(out[:min(len(out), maxMessageBytes)]))
	}
	f, err := os.OpenFile(node, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// mountMeta mounts the metadata partition, which replays the journal after a crash. A mount
// that a dead process left at the same place is taken down first: the caller holds the lock
// of the device, so that no live process can be using it. It is taken down as by a power cut:
// nobody knows whether the drive failed under it.
func mountMeta(node, dir string) (unmount func(abandon bool) error, err error) {
	at, err := mountsOf(node)
	if err != nil {
		return nil, err
	}
	for _, point := range at {
		if point != dir {
			return nil, fmt.Errorf("mounted at %s: %w", point, blockdev.ErrInUse)
		}
		if err := errors.Join(shutDown(dir), unix.Unmount(dir, unix.UMOUNT_NOFOLLOW)); err != nil {
			return nil, fmt.Errorf("unmount what was left at %s: %w", dir, err)
		}
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, err
	}
	const flags = unix.MS_NOATIME | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := unix.Mount(node, dir, metaFileSystem, flags, ""); err != nil {
		return nil, fmt.Errorf("mount at %s: %w", dir, err)
	}
	return func(abandon bool) error {
		var err error
		if abandon {
			err = shutDown(dir)
		}
		if err := errors.Join(err, unix.Unmount(dir, unix.UMOUNT_NOFOLLOW)); err != nil {
			return fmt.Errorf("unmount %s: %w", dir, err)
		}
		return os.Remove(dir)
	}, nil
}

// FS_IOC_SHUTDOWN of the kernel's fs/ext4 and fs/xfs, and its flag for not even flushing the log.
const (
	ioctlShutdown   = 0x8004587d // _IOR('X', 125, __u32)
	shutdownNoFlush = 2
)

// shutDown makes a file system take no more writes. What its journal holds is replayed by the next mount; without this,
// ext4 can take the journal for empty after an unmount that met errors (seen with Linux 6.1: the mark that the journal is
// needed is cleared although its end could not be written). Where the call does not exist, nothing is done.
func shutDown(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	err = unix.IoctlSetPointerInt(int(f.Fd()), ioctlShutdown, shutdownNoFlush)
	if errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	return err
}

// mountsOf lists where a block device is mounted, the latest mount first.
func mountsOf(node string) ([]string, error) {
	var st unix.Stat_t
	if err := unix.Stat(node, &st); err != nil {
		return nil, err
	}
	info, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	return mountPoints(info, fmt.Sprintf("%d:%d", unix.Major(uint64(st.Rdev)), unix.Minor(uint64(st.Rdev)))), nil
}

// mountPoints reads the points at which the device dev (MAJOR:MINOR) is mounted from the text
// of /proc/PID/mountinfo, as proc(5) describes it.
func mountPoints(info []byte, dev string) []string {
	var points []string
	lines := bufio.NewScanner(bytes.NewReader(info))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 5 || fields[2] != dev {
			continue
		}
		point := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(fields[4])
		points = append([]string{point}, points...)
	}
	return points
}
