package shardstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/minio/crc64nvme"

	"github.com/millrace/millrace/nvme/blockdev"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares bytes with a hex dump in testdata. A difference is a change of the on-disk
// format: it needs a new format number.
func golden(t *testing.T, name string, b []byte) {
	t.Helper()
	path := filepath.Join("testdata", name+".hex")
	got := hex.Dump(b)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

func goldenSuperblock() superblock {
	sb := superblock{sequence: 7, label: Label{
		Slot: 5, Created: time.Unix(1700000000, 123).UTC(), AllocUnitBytes: AllocUnitBytes,
		DataBytes: 1 << 40, FormatVersion: 1,
	}}
	for i := range 16 {
		sb.label.Drive[i], sb.label.Pool[i] = byte(0x10+i), byte(0x20+i)
	}
	return sb
}

func TestSuperblockGolden(t *testing.T) {
	b := make([]byte, superblockBytes)
	sb := goldenSuperblock()
	sb.encode(b)
	golden(t, "superblock_head", b[:96])
	golden(t, "superblock_sum", b[superblockSumOff:])
	if rest := b[84:superblockSumOff]; !bytes.Equal(rest, make([]byte, len(rest))) {
		t.Errorf("bytes after the superblock's fields are not zero")
	}
	got, err := decodeSuperblock(b)
	if err != nil || got != sb {
		t.Errorf("decodeSuperblock = %+v, %v; want %+v", got, err, sb)
	}
}

// TestSuperblockCopies damages copies one after the other.
func TestSuperblockCopies(t *testing.T) {
	const size = 64 << 20
	offsets := superblockOffsets(size)
	write := func(dev blockdev.Device, off int64, sb superblock) {
		b := blockdev.AlignedBuffer(superblockBytes)
		sb.encode(b)
		if err := dev.WriteAt([][]byte{b}, off); err != nil {
			t.Fatal(err)
		}
	}
	garble := func(dev blockdev.Device, off int64) {
		b := blockdev.AlignedBuffer(superblockBytes)
		copy(b, superblockMagic)
		if err := dev.WriteAt([][]byte{b}, off); err != nil {
			t.Fatal(err)
		}
	}
	older, newer := goldenSuperblock(), goldenSuperblock()
	older.label.DataBytes, newer.label.DataBytes = size, size
	newer.sequence, newer.label.Slot = 8, 6
	future := newer
	future.label.FormatVersion = 2
	for _, test := range []struct {
		name    string
		copies  string // of each copy: o older, n newer, f future, x damaged, . none
		want    int    // slot
		wantErr error
	}{
		{"all", "oooo", 5, nil},
		{"two left", "xxoo", 5, nil},
		{"first and last", "oxxo", 5, nil},
		{"one left", "oxxx", 0, ErrCorrupt},
		{"newer in one", "nooo", 5, nil},
		{"newer in two", "nono", 6, nil},
		{"newer in two, older damaged", "nxnx", 6, nil},
		{"none", "....", 0, ErrNotFormatted},
		{"one and none", "o...", 0, ErrCorrupt},
		{"damaged", "xxxx", 0, ErrCorrupt},
		{"future", "ffff", 0, ErrNewerFormat},
		{"future in one", "fooo", 0, ErrNewerFormat},
	} {
		t.Run(test.name, func(t *testing.T) {
			dev := blockdev.NewMem(size)
			for i, c := range test.copies {
				switch c {
				case 'o':
					write(dev, offsets[i], older)
				case 'n':
					write(dev, offsets[i], newer)
				case 'f':
					write(dev, offsets[i], future)
				case 'x':
					garble(dev, offsets[i])
				}
			}
			l, err := ReadLabel(dev)
			if !errors.Is(err, test.wantErr) || l.Slot != test.want {
				t.Errorf("ReadLabel of %s = slot %d, %v; want slot %d, %v",
					test.copies, l.Slot, err, test.want, test.wantErr)
			}
			if err := checkNoSuperblock(dev); errors.Is(err, ErrFormatted) != (test.copies != "....") {
				t.Errorf("checkNoSuperblock of %s = %v", test.copies, err)
			}
		})
	}
}

// TestDeviceSize: a device may grow, and must not shrink.
func TestDeviceSize(t *testing.T) {
	d := newTestDrive(t, 16<<20)
	grown := blockdev.NewMem(32 << 20)
	b := blockdev.AlignedBuffer(16 << 20)
	if err := d.dev.ReadAt([][]byte{b}, 0); err != nil {
		t.Fatal(err)
	}
	clear(b[:superblockBytes]) // so that the tail copies are needed
	if err := grown.WriteAt([][]byte{b}, 0); err != nil {
		t.Fatal(err)
	}
	if l, err := ReadLabel(grown); err != nil || l.DataBytes != 16<<20 {
		t.Errorf("ReadLabel of a grown device = %+v, %v; want its old size", l, err)
	}
	shrunk := blockdev.NewMem(12 << 20)
	if err := d.dev.ReadAt([][]byte{b}, 0); err != nil {
		t.Fatal(err)
	}
	if err := shrunk.WriteAt([][]byte{b[:12<<20]}, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadLabel(shrunk); !errors.Is(err, ErrCorrupt) {
		t.Errorf("ReadLabel of a shrunk device = %v; want ErrCorrupt", err)
	}
}

func TestFormatRefuses(t *testing.T) {
	ctx := context.Background()
	d := newTestDrive(t, 16<<20)
	other := newTestDrive(t, 16<<20)
	empty := &testDrive{dev: blockdev.NewMem(16 << 20), fs: d.fs}
	for name, target := range map[string]*testDrive{
		"the same again":             d,
		"an empty device, old files": empty,
		"old device, empty folder":   {dev: d.dev, fs: newTestFS()},
	} {
		if err := Format(ctx, target.options(), testLabel()); !errors.Is(err, ErrFormatted) {
			t.Errorf("Format of %s = %v; want ErrFormatted", name, err)
		}
	}
	if err := Format(ctx, d.options(), Label{}); !errors.Is(err, ErrInvalid) {
		t.Errorf("Format without IDs = %v; want ErrInvalid", err)
	}
	small := &testDrive{dev: blockdev.NewMem(minDataBytes - AllocUnitBytes), fs: newTestFS()}
	if err := Format(ctx, small.options(), testLabel()); !errors.Is(err, ErrInvalid) {
		t.Errorf("Format of a small device = %v; want ErrInvalid", err)
	}
	s := d.open(t)
	putShard(t, s, ShardID{SegmentID{1}, 0}, shardBytes(BlockBytes, 1))
	s.Close()
	d.opts.Overwrite = true
	label := testLabel()
	label.Slot = 9
	if err := Format(ctx, d.options(), label); err != nil {
		t.Fatal(err)
	}
	s = d.open(t)
	if s.Label().Slot != 9 || s.Stats().Shards != 0 {
		t.Errorf("after overwriting: slot %d, %d shards; want 9, 0", s.Label().Slot, s.Stats().Shards)
	}
	label.Drive = DriveID{7}
	other.opts.Overwrite = true
	if err := Format(ctx, other.options(), label); err != nil {
		t.Fatal(err)
	}
	mixed := &testDrive{dev: d.dev, fs: other.fs}
	_, err := Open(ctx, mixed.options())
	if !errors.Is(err, ErrForeignMetadata) || !strings.Contains(err.Error(), label.Drive.String()) {
		t.Errorf("Open with another drive's metadata = %v; want ErrForeignMetadata and its ID", err)
	}
}

func TestOpenRefuses(t *testing.T) {
	ctx := context.Background()
	if _, err := Open(ctx, (&testDrive{dev: blockdev.NewMem(16 << 20), fs: newTestFS()}).options()); !errors.Is(
		err, ErrNotFormatted) {
		t.Errorf("Open of an empty device = %v; want ErrNotFormatted", err)
	}
	d := newTestDrive(t, 16<<20)
	if _, err := Open(ctx, (&testDrive{dev: d.dev, fs: newTestFS()}).options()); err == nil {
		t.Errorf("Open without metadata = nil; want an error")
	}
	sb, err := readSuperblock(d.dev)
	if err != nil {
		t.Fatal(err)
	}
	sb.label.FormatVersion = 41
	if err := writeSuperblock(d.dev, sb); err != nil {
		t.Fatal(err)
	}
	_, err = Open(ctx, d.options())
	if !errors.Is(err, ErrNewerFormat) || !strings.Contains(err.Error(), "format 41") ||
		!strings.Contains(err.Error(), "up to 1") {
		t.Errorf("Open of a newer format = %v; want ErrNewerFormat with both versions", err)
	}
}

func FuzzDecodeSuperblock(f *testing.F) {
	b := make([]byte, superblockBytes)
	sb := goldenSuperblock()
	sb.encode(b)
	f.Add(b[:100])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, head []byte) {
		b := make([]byte, superblockBytes)
		copy(b, head)
		binary.LittleEndian.PutUint64(b[superblockSumOff:], crc64nvme.Checksum(b[:superblockSumOff]))
		sb, err := decodeSuperblock(b)
		if err == nil && (sb.label.DataBytes < minDataBytes || sb.label.FormatVersion != FormatVersion) {
			t.Errorf("decodeSuperblock took %+v", sb)
		}
	})
}
