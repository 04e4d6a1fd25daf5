package drive

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"unsafe"

	"github.com/millrace/millrace/nvme/blockdev"
	"golang.org/x/sys/unix"
)

// sysfsSector is the unit of starts and sizes in /sys, whatever the device's sectors are.
const sysfsSector = 512

// maxDiskPartitions bounds what is read from /sys of one device.
const maxDiskPartitions = 256

// nodes are the device nodes of a drive's partitions.
type nodes struct{ meta, data string }

// kernelPart is a partition that the kernel knows.
type kernelPart struct {
	name, dev             string // as in /sys, and MAJOR:MINOR
	number                int
	startBytes, sizeBytes int64
}

// ioctl passes a pointer to the kernel.
func (d *disk) ioctl(request uint, arg unsafe.Pointer) error {
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, d.Fd(), uintptr(request), uintptr(arg)); e != 0 {
		return e
	}
	return nil
}

// kernelPartitions makes the kernel's partitions those of the layout, and finds their nodes.
// The partitions are set one by one (BLKPG), not by a rescan: loop devices may have scanning
// switched off, and a rescan fails while any partition is in use.
func (d *disk) kernelPartitions(l layout, runDir string) (nodes, error) {
	known, err := d.knownPartitions()
	if err != nil {
		return nodes{}, err
	}
	want := map[int]span{metaNumber: l.meta, dataNumber: l.data}
	for _, k := range known {
		if s, ok := want[k.number]; ok && s.startBytes == k.startBytes && s.sizeBytes == k.sizeBytes {
			delete(want, k.number)
			continue
		}
		if err := d.blkpg(unix.BLKPG_DEL_PARTITION, k.number, span{}); err != nil {
			return nodes{}, fmt.Errorf("remove stale partition %s: %w", k.name, err)
		}
	}
	for number, s := range want {
		if err := d.blkpg(unix.BLKPG_ADD_PARTITION, number, s); err != nil {
			return nodes{}, fmt.Errorf("add partition %d: %w", number, err)
		}
	}
	if known, err = d.knownPartitions(); err != nil {
		return nodes{}, err
	}
	var n nodes
	for _, k := range known {
		node, err := k.node(runDir)
		if err != nil {
			return nodes{}, err
		}
		if k.number == metaNumber {
			n.meta = node
		} else {
			n.data = node
		}
	}
	if n.meta == "" || n.data == "" {
		return nodes{}, errors.New("the kernel does not show the partitions")
	}
	return n, nil
}

func (d *disk) blkpg(op int32, number int, s span) error {
	part := unix.BlkpgPartition{Start: s.startBytes, Length: s.sizeBytes, Pno: int32(number)}
	arg := unix.BlkpgIoctlArg{Op: op, Datalen: int32(unsafe.Sizeof(part)), Data: (*byte)(unsafe.Pointer(&part))}
	err := d.ioctl(unix.BLKPG, unsafe.Pointer(&arg))
	if errors.Is(err, unix.EBUSY) {
		return blockdev.ErrInUse
	}
	return err
}

func (d *disk) knownPartitions() ([]kernelPart, error) {
	dir, err := os.Open(d.sysfs)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	entries, err := dir.ReadDir(maxDiskPartitions)
	if err != nil {
		return nil, err
	}
	var parts []kernelPart
	for _, e := range entries {
		path := filepath.Join(d.sysfs, e.Name())
		number, err := readSysfs(path, "partition")
		if err != nil {
			continue // not a partition
		}
		k := kernelPart{name: e.Name()}
		var errs [4]error
		k.number, errs[0] = strconv.Atoi(number)
		k.dev, errs[1] = readSysfs(path, "dev")
		k.startBytes, errs[2] = sysfsSectors(path, "start")
		k.sizeBytes, errs[3] = sysfsSectors(path, "size")
		if err := errors.Join(errs[:]...); err != nil {
			return nil, fmt.Errorf("partition %s: %w", k.name, err)
		}
		parts = append(parts, k)
	}
	return parts, nil
}

func sysfsSectors(path, name string) (int64, error) {
	text, err := readSysfs(path, name)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(text, 10, 64)
	return n * sysfsSector, err
}

// node finds the partition's device node in /dev, or makes one in runDir where there is none.
func (k kernelPart) node(runDir string) (string, error) {
	var major, minor uint32
	if _, err := fmt.Sscanf(k.dev, "%d:%d", &major, &minor); err != nil {
		return "", fmt.Errorf("device number %q: %w", k.dev, err)
	}
	rdev := unix.Mkdev(major, minor)
	node := filepath.Join("/dev", k.name)
	if isNode(node, rdev) {
		return node, nil
	}
	node = filepath.Join(runDir, "dev-"+k.name)
	if isNode(node, rdev) {
		return node, nil
	}
	if err := os.Remove(node); err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	if err := unix.Mknod(node, unix.S_IFBLK|0o600, int(rdev)); err != nil {
		return "", fmt.Errorf("make node %s: %w", node, err)
	}
	return node, nil
}

func isNode(path string, rdev uint64) bool {
	var st unix.Stat_t
	err := unix.Stat(path, &st)
	return err == nil && st.Mode&unix.S_IFMT == unix.S_IFBLK && uint64(st.Rdev) == rdev
}
