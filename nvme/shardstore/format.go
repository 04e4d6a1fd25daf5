package shardstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/minio/crc64nvme"

	"github.com/millrace/millrace/nvme/blockdev"
)

// formattingName is a file in the metadata folder while Format is at work. With it there, what
// else is in the folder is the rest of a format that a crash broke off.
const formattingName = "FORMATTING"

const driveRecordFormat = 1

// appendDriveRecord appends the record that ties the metadata to its drive.
func appendDriveRecord(dst []byte, l *Label) []byte {
	start := len(dst)
	dst = append(dst, driveRecordFormat)
	dst = append(dst, l.Drive[:]...)
	dst = append(dst, l.Pool[:]...)
	return binary.LittleEndian.AppendUint64(dst, crc64nvme.Checksum(dst[start:]))
}

func formattingPath(o *Options) string { return o.MetaFS.PathJoin(o.MetaDir, formattingName) }

// Format makes an empty drive of the device and the metadata folder, and gives it the label's
// drive, pool, slot and time of creation (default: now). Unless Options.Overwrite is set it
// refuses, with ErrFormatted, a device with a superblock of any version, whole or not, and a
// folder with files in it. What a crash leaves of it is not a drive, and can be formatted again.
func Format(ctx context.Context, o Options, label Label) error {
	if err := o.setDefaults(); err != nil {
		return err
	}
	label.FormatVersion, label.AllocUnitBytes, label.DataBytes = FormatVersion, AllocUnitBytes, o.Data.SizeBytes()
	if label.Created.IsZero() {
		label.Created = time.Now()
	}
	switch {
	case label.DataBytes < minDataBytes:
		return fmt.Errorf("%w: device of %d bytes, at least %d needed", ErrInvalid, label.DataBytes, minDataBytes)
	case label.Drive == DriveID{}, label.Pool == PoolID{}:
		return fmt.Errorf("%w: label without IDs", ErrInvalid)
	case label.Slot < 0 || label.Slot >= 1<<31:
		return fmt.Errorf("%w: slot %d", ErrInvalid, label.Slot)
	}
	if !o.Overwrite {
		if err := checkUnused(&o); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := markFormatting(&o); err != nil {
		return fmt.Errorf("format metadata: %w", err)
	}
	if err := eraseSuperblocks(o.Data); err != nil {
		return err
	}
	if err := formatMeta(&o, label); err != nil {
		return fmt.Errorf("format metadata: %w", err)
	}
	if err := writeSuperblock(o.Data, superblock{label: label, sequence: 1}); err != nil {
		return err
	}
	if err := o.MetaFS.Remove(formattingPath(&o)); err != nil {
		return fmt.Errorf("format metadata: %w", err)
	}
	return nil
}

func checkUnused(o *Options) error {
	names, err := listDir(o.MetaFS, o.MetaDir)
	if err != nil {
		return fmt.Errorf("list metadata: %w", err)
	}
	if slices.Contains(names, formattingName) {
		_, err := ReadLabel(o.Data)
		if errors.Is(err, ErrNotFormatted) || errors.Is(err, ErrCorrupt) {
			return nil
		}
	}
	if err := checkNoSuperblock(o.Data); err != nil {
		return err
	}
	if len(names) > 0 {
		return fmt.Errorf("%w: metadata folder %s holds %d files", ErrFormatted, o.MetaDir, len(names))
	}
	return nil
}

// checkNoSuperblock looks for the magic in every place where a copy can be.
func checkNoSuperblock(dev blockdev.Device) error {
	b := blockdev.AlignedBuffer(superblockBytes)
	for _, off := range superblockOffsets(dev.SizeBytes()) {
		if err := dev.ReadAt([][]byte{b}, off); err != nil {
			return fmt.Errorf("read superblock: %w", err)
		}
		if hasMagic(b) {
			return fmt.Errorf("%w: superblock at %d", ErrFormatted, off)
		}
	}
	return nil
}

// eraseSuperblocks makes sure that no older edition can win over the one to be written.
func eraseSuperblocks(dev blockdev.Device) error {
	b := blockdev.AlignedBuffer(superblockBytes)
	for _, off := range superblockOffsets(dev.SizeBytes()) {
		if err := dev.WriteAt([][]byte{b}, off); err != nil {
			return fmt.Errorf("erase superblock: %w", err)
		}
	}
	if err := dev.Flush(); err != nil {
		return fmt.Errorf("erase superblock: %w", err)
	}
	return nil
}

// markFormatting makes the file that says so, durably.
func markFormatting(o *Options) error {
	if err := o.MetaFS.MkdirAll(o.MetaDir, 0o700); err != nil {
		return err
	}
	mark, err := o.MetaFS.Create(formattingPath(o), vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	return errors.Join(mark.Sync(), mark.Close(), syncDir(o.MetaFS, o.MetaDir))
}

// formatMeta makes an empty Pebble with the drive record in it.
func formatMeta(o *Options, label Label) error {
	if err := clearDir(o.MetaFS, o.MetaDir); err != nil {
		return err
	}
	s := newStore(o, label)
	var err error
	if s.db, err = s.openPebble(o, true); err == nil {
		err = s.db.Set([]byte{prefixDrive}, appendDriveRecord(nil, &label), pebble.Sync)
	}
	return errors.Join(err, s.Close(), syncDir(o.MetaFS, o.MetaDir))
}

// listDir lists a folder that may be missing, without what every new ext4 has.
func listDir(fs vfs.FS, dir string) ([]string, error) {
	if _, err := fs.Stat(dir); err != nil {
		return nil, nil
	}
	names, err := fs.List(dir)
	return slices.DeleteFunc(names, func(n string) bool { return n == "lost+found" }), err
}

func clearDir(fs vfs.FS, dir string) error {
	names, err := listDir(fs, dir)
	for _, name := range names {
		if name != formattingName {
			err = errors.Join(err, fs.RemoveAll(fs.PathJoin(dir, name)))
		}
	}
	return err
}

func syncDir(fs vfs.FS, dir string) error {
	d, err := fs.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
