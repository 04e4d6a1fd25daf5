package shardstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/minio/crc64nvme"

	"github.com/millrace/millrace/nvme/blockdev"
)

// The layout of a drive's data device, see docs/on-disk-format.md.
const (
	// FormatVersion is the on-disk format that this package writes, and the newest that it reads.
	FormatVersion = 1
	// AllocUnitBytes is the unit of allocation. It never changes for a formatted drive.
	AllocUnitBytes = 4096
	// BlockBytes is the size of a checksum block.
	BlockBytes = 64 << 10

	superblockBytes  = 4096
	superblockSumOff = superblockBytes - 8
	superblockMagic  = "MILLRACE"
	superblockCopies = 4
	reservedBytes    = 2 << 20 // at the start and at the end of the device
	minDataBytes     = 8 << 20
)

// Label is what a drive says of itself: the contents of its superblock.
type Label struct {
	Drive          DriveID
	Pool           PoolID
	Slot           int       // the drive's stable place in the pool
	Created        time.Time // when the drive was formatted, UTC
	AllocUnitBytes int       // Format sets it
	DataBytes      int64     // size of the data device when it was formatted; Format sets it
	FormatVersion  uint32    // Format sets it
}

// superblock is the label and the number of its edition.
type superblock struct {
	label    Label
	sequence uint64
}

func superblockOffsets(deviceBytes int64) [superblockCopies]int64 {
	return [...]int64{0, 1 << 20, deviceBytes - 2<<20, deviceBytes - 1<<20}
}

func (sb *superblock) encode(b []byte) {
	clear(b)
	le := binary.LittleEndian
	l := &sb.label
	copy(b, superblockMagic)
	le.PutUint32(b[8:], l.FormatVersion)
	le.PutUint64(b[16:], sb.sequence)
	copy(b[24:40], l.Drive[:])
	copy(b[40:56], l.Pool[:])
	le.PutUint32(b[56:], uint32(l.Slot))
	le.PutUint32(b[60:], uint32(l.AllocUnitBytes))
	le.PutUint64(b[64:], uint64(l.DataBytes))
	le.PutUint64(b[72:], uint64(l.Created.UnixNano()))
	le.PutUint32(b[80:], BlockBytes)
	le.PutUint64(b[superblockSumOff:], crc64nvme.Checksum(b[:superblockSumOff]))
}

// decodeSuperblock reads one copy. Magic, version and checksum keep their places in every
// format, so that an old binary can tell a newer format from damage.
func decodeSuperblock(b []byte) (superblock, error) {
	le := binary.LittleEndian
	if len(b) != superblockBytes {
		return superblock{}, corruptf("superblock of %d bytes", len(b))
	}
	if !hasMagic(b) {
		return superblock{}, ErrNotFormatted
	}
	if le.Uint64(b[superblockSumOff:]) != crc64nvme.Checksum(b[:superblockSumOff]) {
		return superblock{}, corruptf("superblock checksum")
	}
	sb := superblock{sequence: le.Uint64(b[16:])}
	l := &sb.label
	l.FormatVersion = le.Uint32(b[8:])
	if l.FormatVersion > FormatVersion {
		return sb, fmt.Errorf("%w: the drive has format %d, this version reads up to %d",
			ErrNewerFormat, l.FormatVersion, FormatVersion)
	}
	copy(l.Drive[:], b[24:])
	copy(l.Pool[:], b[40:])
	l.Slot = int(int32(le.Uint32(b[56:])))
	l.AllocUnitBytes = int(le.Uint32(b[60:]))
	l.DataBytes = int64(le.Uint64(b[64:]))
	l.Created = time.Unix(0, int64(le.Uint64(b[72:]))).UTC()
	switch {
	case l.FormatVersion == 0:
		return superblock{}, corruptf("superblock with format 0")
	case l.AllocUnitBytes != AllocUnitBytes:
		return superblock{}, corruptf("superblock with allocation unit %d", l.AllocUnitBytes)
	case l.DataBytes < minDataBytes || l.DataBytes%AllocUnitBytes != 0:
		return superblock{}, corruptf("superblock with data size %d", l.DataBytes)
	case le.Uint32(b[80:]) != BlockBytes:
		return superblock{}, corruptf("superblock with checksum block %d", le.Uint32(b[80:]))
	}
	return sb, nil
}

func hasMagic(b []byte) bool { return bytes.HasPrefix(b, []byte(superblockMagic)) }

// readSuperblock gives the newest superblock of which two copies are whole. One copy alone is
// not believed: it may be the only one that an unfinished or misdirected write has reached.
func readSuperblock(dev blockdev.Device) (superblock, error) {
	if dev.SizeBytes() < minDataBytes {
		return superblock{}, fmt.Errorf("%w: device of %d bytes", ErrNotFormatted, dev.SizeBytes())
	}
	// The tail copies are where the end was when the drive was formatted; only the label, so a
	// front copy, tells where that is if the device has grown.
	offsets := superblockOffsets(dev.SizeBytes())
	tally := superblockTally{}
	for i := range offsets {
		if sb, ok := tally.read(dev, offsets[i]); ok && i < 2 && sb.label.DataBytes != dev.SizeBytes() {
			offsets = superblockOffsets(sb.label.DataBytes)
		}
	}
	return tally.best()
}

// superblockTally counts equal copies.
type superblockTally struct {
	copies []superblock // whole copies
	newer  error        // a whole copy of a newer format
	magic  bool         // some copy bears the magic
	ioErr  error
}

func (t *superblockTally) read(dev blockdev.Device, off int64) (superblock, bool) {
	b := blockdev.AlignedBuffer(superblockBytes)
	if off < 0 || off+superblockBytes > dev.SizeBytes() {
		return superblock{}, false
	}
	if err := dev.ReadAt([][]byte{b}, off); err != nil {
		t.ioErr = err
		return superblock{}, false
	}
	t.magic = t.magic || hasMagic(b)
	sb, err := decodeSuperblock(b)
	if errors.Is(err, ErrNewerFormat) {
		t.newer = err
	}
	if err != nil {
		return superblock{}, false
	}
	t.copies = append(t.copies, sb)
	return sb, true
}

func (t *superblockTally) best() (superblock, error) {
	var best superblock
	for i, sb := range t.copies {
		for _, other := range t.copies[i+1:] {
			if sb == other && sb.sequence >= best.sequence {
				best = sb
			}
		}
	}
	switch {
	case t.newer != nil:
		return superblock{}, t.newer
	case best.sequence > 0:
		return best, nil
	case t.magic:
		return superblock{}, corruptf("no two superblock copies agree")
	case t.ioErr != nil:
		return superblock{}, fmt.Errorf("read superblock: %w", t.ioErr)
	}
	return superblock{}, ErrNotFormatted
}

// writeSuperblock writes all copies in two rounds with a flush after each, so that at every
// moment two copies of the old or two of the new edition are whole.
func writeSuperblock(dev blockdev.Device, sb superblock) error {
	b := blockdev.AlignedBuffer(superblockBytes)
	sb.encode(b)
	offsets := superblockOffsets(sb.label.DataBytes)
	for _, round := range [][2]int64{{offsets[0], offsets[2]}, {offsets[1], offsets[3]}} {
		for _, off := range round {
			if err := dev.WriteAt([][]byte{b}, off); err != nil {
				return fmt.Errorf("write superblock: %w", err)
			}
		}
		if err := dev.Flush(); err != nil {
			return fmt.Errorf("write superblock: %w", err)
		}
	}
	return nil
}

// ReadLabel reads the superblocks of a data device and nothing else. Its errors are
// ErrNotFormatted, ErrNewerFormat, those marked ErrCorrupt, and the device's own.
func ReadLabel(data blockdev.Device) (Label, error) {
	sb, err := readSuperblock(data)
	if err != nil {
		return Label{}, err
	}
	if data.SizeBytes() < sb.label.DataBytes {
		return Label{}, corruptf("device of %d bytes, formatted with %d", data.SizeBytes(), sb.label.DataBytes)
	}
	return sb.label, nil
}
