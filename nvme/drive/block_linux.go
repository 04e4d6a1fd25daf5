package drive

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"unsafe"

	"github.com/millrace/millrace/nvme/blockdev"
	"golang.org/x/sys/unix"
)

// disk is an open whole block device.
type disk struct {
	*os.File
	rdev        uint64
	sysfs       string // its folder in /sys
	sizeBytes   int64
	sectorBytes int
	sequence    string // changes when another medium takes the same name; "" on old kernels
}

// openDisk opens a whole device without claiming it: its partitions are claimed one by one,
// which a claim of the whole would prevent.
func openDisk(path string, flags int) (*disk, error) {
	f, err := os.OpenFile(path, flags, 0)
	if errors.Is(err, unix.EBUSY) {
		return nil, blockdev.ErrInUse
	}
	if err != nil {
		return nil, err
	}
	d := &disk{File: f}
	if err := d.measure(); err != nil {
		f.Close()
		return nil, err
	}
	return d, nil
}

func (d *disk) measure() error {
	var st unix.Stat_t
	if err := unix.Fstat(int(d.Fd()), &st); err != nil {
		return err
	}
	d.rdev = uint64(st.Rdev)
	d.sysfs = fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(d.rdev), unix.Minor(d.rdev))
	if _, err := os.Stat(filepath.Join(d.sysfs, "partition")); err == nil {
		return errors.New("is a partition, not a whole device")
	}
	d.sequence, _ = readSysfs(d.sysfs, "diskseq") // since Linux 5.15
	var err error
	if d.sectorBytes, err = unix.IoctlGetInt(int(d.Fd()), unix.BLKSSZGET); err != nil {
		return fmt.Errorf("logical sector size: %w", err)
	}
	if d.sectorBytes != 512 && d.sectorBytes != 4096 {
		return fmt.Errorf("logical sectors of %d bytes are not supported", d.sectorBytes)
	}
	d.sizeBytes, err = d.Seek(0, io.SeekEnd)
	return err
}

// lock holds off other processes of Millrace, and udev, which leaves a locked device alone.
func (d *disk) lock() error {
	err := unix.Flock(int(d.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return blockdev.ErrInUse
	}
	return err
}

func (d *disk) judge() (verdict, error) {
	if d.sizeBytes < minBlockBytes {
		return verdict{Found: Found{State: Foreign, Kind: Block,
			What: fmt.Sprintf("has %d bytes, less than %d", d.sizeBytes, minBlockBytes)}}, nil
	}
	e, err := readEnds(d, d.sizeBytes, d.sectorBytes)
	if err != nil {
		return verdict{}, err
	}
	return e.judge(), nil
}

func probeBlock(path string) (Found, error) {
	d, err := openDisk(path, os.O_RDONLY)
	if err != nil {
		return Found{}, err
	}
	defer d.Close()
	v, err := d.judge()
	return v.Found, err
}

// createBlock writes the marker, makes everything, and erases the marker last.
func createBlock(ctx context.Context, path string, opt CreateOptions) error {
	if opt.SizeBytes != 0 {
		return errors.New("a block device is used whole: no size can be given")
	}
	d, err := openDisk(path, os.O_RDWR)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.lock(); err != nil {
		return err
	}
	l, err := plan(d.sizeBytes)
	if err != nil {
		return err
	}
	if err := d.partition(path, l, opt.Force); err != nil {
		return err
	}
	runDir, err := opt.runDir()
	if err != nil {
		return err
	}
	parts, err := d.kernelPartitions(l, runDir)
	if err != nil {
		return err
	}
	if err := makeFileSystem(ctx, parts.meta); err != nil {
		return err
	}
	return d.writeSynced(make([]byte, markerBytes), markerOffset)
}

// partition clears the device and writes its table, while no one else can use any part of it.
func (d *disk) partition(path string, l layout, force bool) error {
	claim, err := openDisk(path, os.O_RDWR|unix.O_EXCL)
	if errors.Is(err, blockdev.ErrInUse) {
		return fmt.Errorf("the device, or a partition of it, is mounted or otherwise in use: %w", err)
	}
	if err != nil {
		return err
	}
	defer claim.Close()
	v, err := d.judge() // again, now that no one can change it
	switch {
	case err != nil:
		return err
	case v.State == Millrace && !force:
		return ErrExists
	case v.State == Foreign && !force:
		return foreign(v.Found)
	}
	mark := make([]byte, markerBytes)
	copy(mark, markerText)
	if err := d.writeSynced(mark, markerOffset); err != nil {
		return err
	}
	clearEnds := errors.Join(
		d.writeSynced(make([]byte, markerOffset), 0),
		d.writeSynced(make([]byte, marginBytes-markerOffset-markerBytes), markerOffset+markerBytes),
		d.writeSynced(make([]byte, marginBytes), d.sizeBytes-marginBytes),
	)
	if clearEnds != nil {
		return fmt.Errorf("clear: %w", clearEnds)
	}
	if err := d.clearData(l.data); err != nil {
		return fmt.Errorf("clear: %w", err)
	}
	if err := l.write(d, d.sizeBytes, d.sectorBytes); err != nil {
		return fmt.Errorf("write partition table: %w", err)
	}
	return d.Sync()
}

// clearData discards the data area, where the drive can do that, and clears its ends, where an
// old store may have left labels.
func (d *disk) clearData(s span) error {
	discard := [2]uint64{uint64(s.startBytes), uint64(s.sizeBytes)}
	_ = d.ioctl(unix.BLKDISCARD, unsafe.Pointer(&discard)) // only an advice
	return errors.Join(
		d.writeSynced(make([]byte, marginBytes), s.startBytes),
		d.writeSynced(make([]byte, marginBytes), s.startBytes+s.sizeBytes-marginBytes),
	)
}

func (d *disk) writeSynced(b []byte, off int64) error {
	if _, err := d.WriteAt(b, off); err != nil {
		return err
	}
	return d.Sync()
}

// openBlock opens the two partitions. The data area is the partition's own node, not a window
// into the whole device: with the metadata partition mounted, the kernel refuses an exclusive
// claim of the whole.
func openBlock(ctx context.Context, path string, opt Options) (*Drive, error) {
	path, err := absolute(path)
	if err != nil {
		return nil, err
	}
	dev, err := openDisk(path, os.O_RDWR)
	if err != nil {
		return nil, err
	}
	d := &Drive{Path: path, Kind: Block, close: []func() error{dev.Close}}
	d.present = func() error { return dev.present(path) }
	if err := d.openPartitions(ctx, dev, opt); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

func (d *Drive) openPartitions(ctx context.Context, dev *disk, opt Options) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := dev.lock(); err != nil {
		return err
	}
	v, err := dev.judge() // again: it may have changed before the lock
	if err == nil && v.State != Millrace {
		err = ErrNoDrive
	}
	if err != nil {
		return err
	}
	if v.table.RecoveredFromBackup {
		if err := errors.Join(v.table.Write(dev, dev.sizeBytes), dev.Sync()); err != nil {
			return fmt.Errorf("repair partition table from its backup: %w", err)
		}
	}
	return d.openNodes(dev, v.layout, opt)
}

func (d *Drive) openNodes(dev *disk, l layout, opt Options) error {
	runDir, err := opt.runDir()
	if err != nil {
		return err
	}
	parts, err := dev.kernelPartitions(l, runDir)
	if err != nil {
		return err
	}
	file, err := blockdev.OpenFile(parts.data, blockdev.FileOptions{
		MaxInFlight: opt.MaxInFlight, Name: d.Path + " (data)",
	})
	if err != nil {
		return err
	}
	d.Data = file
	d.close = append(d.close, file.Close)
	mount := filepath.Join(runDir, l.meta.uuid)
	unmount, err := mountMeta(parts.meta, mount)
	if err != nil {
		return fmt.Errorf("metadata file system: %w", err)
	}
	d.close = append(d.close, func() error { return unmount(d.abandoned.Load()) })
	// Not the mount point itself: nothing can be written beside the mount when it is gone.
	d.MetaDir = filepath.Join(mount, metaName)
	if err := os.MkdirAll(d.MetaDir, 0o750); err != nil {
		return err
	}
	return syncDir(mount)
}

// present compares what the path leads to, and what the kernel knows, with what was opened.
func (d *disk) present(path string) error {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK || uint64(st.Rdev) != d.rdev {
		return errors.New("the path leads to another device now")
	}
	sequence, err := readSysfs(d.sysfs, "diskseq")
	if err != nil && d.sequence != "" {
		return errors.New("the kernel knows no such device any more")
	}
	if sequence != d.sequence {
		return errors.New("another device has taken its number")
	}
	var size uint64
	if err := d.ioctl(unix.BLKGETSIZE64, unsafe.Pointer(&size)); err != nil {
		return err
	}
	if int64(size) != d.sizeBytes {
		return fmt.Errorf("its size is %d bytes now, was %d", size, d.sizeBytes)
	}
	return nil
}

// runDir makes the run directory, and names it as the kernel's list of mounts does.
func (o Options) runDir() (string, error) {
	dir, err := filepath.Abs(cmp.Or(o.RunDir, DefaultRunDir))
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(dir)
}

func readSysfs(parts ...string) (string, error) {
	b, err := os.ReadFile(filepath.Join(parts...))
	return strings.TrimSpace(string(b)), err
}
