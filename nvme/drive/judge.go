package drive

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"

	"github.com/diskfs/go-diskfs/partition/gpt"
)

// While Create works on a block device, a marker stands between the partition table and the
// first partition. It is written first and erased last, so a device with it is not a drive yet.
const (
	markerOffset = 512 << 10
	markerBytes  = 4096
	markerText   = "millrace: create in progress\n"
)

// tableBytes bounds a partition table at either end of a device: its header, and 128 entries
// of 128 bytes, in sectors of up to 4096 bytes.
const tableBytes = 32 << 10

// ends are the first and the last marginBytes of a device: all that is looked at to judge it.
type ends struct {
	head, tail  []byte
	sizeBytes   int64
	sectorBytes int
}

// verdict is what the ends of a device tell.
type verdict struct {
	Found
	layout layout     // for Millrace
	table  *gpt.Table // for Millrace
}

// readEnds reads the ends of a device of at least 2*marginBytes.
func readEnds(r io.ReaderAt, sizeBytes int64, sectorBytes int) (ends, error) {
	e := ends{make([]byte, marginBytes), make([]byte, marginBytes), sizeBytes, sectorBytes}
	if _, err := r.ReadAt(e.head, 0); err != nil {
		return ends{}, err
	}
	_, err := r.ReadAt(e.tail, sizeBytes-marginBytes)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return e, err
}

// judge tells what a device holds. Only a device whose ends are blank counts as empty: what is
// not known is not touched.
func (e ends) judge() verdict {
	foreign := func(what string) verdict {
		return verdict{Found: Found{State: Foreign, Kind: Block, What: what}}
	}
	if name := signature(e.head, e.tail); name != "" {
		return foreign("holds " + name)
	}
	marked := bytes.HasPrefix(e.head[markerOffset:], []byte(markerText))
	if table := e.table(); table != nil {
		l, ours := layoutOf(table, e.sizeBytes, e.sectorBytes)
		switch {
		case !ours || !isProtective(e.head):
			return foreign("holds a partition table (GPT)")
		case !marked:
			return verdict{Found: Found{State: Millrace, Kind: Block}, layout: l, table: table}
		}
	}
	head, tail := [][]byte{e.head}, [][]byte{e.tail}
	if marked { // the table may be there in part
		head = [][]byte{e.head[:mbrEntry], e.head[tableBytes:markerOffset], e.head[markerOffset+markerBytes:]}
		tail = [][]byte{e.tail[:marginBytes-tableBytes]}
	}
	switch {
	case blank(head...) && blank(tail...):
		return verdict{Found: Found{State: Empty, Kind: Block}}
	case e.head[mbrSignature] == 0x55 && e.head[mbrSignature+1] == 0xAA:
		return foreign("holds a partition table or a boot sector")
	}
	return foreign("holds data of an unknown kind")
}

// table reads the partition table, or its backup; nil where neither is whole.
func (e ends) table() *gpt.Table {
	e.head = withoutInsane(e.head, e.sectorBytes)
	e.tail = withoutInsane(e.tail, marginBytes-e.sectorBytes)
	t, err := gpt.Read(&endsFile{ends: e}, e.sectorBytes, e.sectorBytes)
	if err != nil {
		return nil
	}
	return t
}

// withoutInsane hides a header from the parser that is none, or not sane.
func withoutInsane(b []byte, off int) []byte {
	if saneHeader(b[off:]) {
		return b
	}
	b = bytes.Clone(b)
	clear(b[off:][:gpt.PartitionEntrySize])
	return b
}

// saneHeader keeps the parser from counts and sizes of entries that no one uses.
func saneHeader(b []byte) bool {
	return bytes.HasPrefix(b, []byte("EFI PART")) &&
		binary.LittleEndian.Uint32(b[80:]) == 128 && binary.LittleEndian.Uint32(b[84:]) == gpt.PartitionEntrySize
}

// blank reports whether all bytes are 0, or all 0xFF, as drives give what was never written.
func blank(parts ...[]byte) bool {
	for _, p := range parts {
		if len(p) > 0 && (p[0] != 0 && p[0] != 0xFF || bytes.Count(p, p[:1]) != len(p)) {
			return false
		}
	}
	return true
}

// magic is a mark of a known format, at an offset from the start or, when negative, from the end.
type magic struct {
	off  int
	mark string
	name string
}

// signature names the format whose mark the ends of a device bear; "" for none that is known.
// It serves the message: an unknown mark is refused all the same.
func signature(head, tail []byte) string {
	for _, m := range [...]magic{
		{0x438, "\x53\xEF", "an ext2, ext3 or ext4 file system"},
		{0, "XFSB", "an XFS file system"},
		{0x10040, "_BHRfS_M", "a btrfs file system"},
		{0x400, "\x10\x20\xF5\xF2", "an F2FS file system"},
		{0x1018, "\xc6\x85\x73\xf6\x4e\x1a\x45\xca", "a bcachefs file system"},
		{0, "LUKS\xba\xbe", "an encrypted volume (LUKS)"},
		{512, "LABELONE", "an LVM volume"},
		{4096, "\xfc\x4e\x2b\xa9", "a member of an MD RAID"},
		{0, "\xfc\x4e\x2b\xa9", "a member of an MD RAID"},
		{-8192, "\xfc\x4e\x2b\xa9", "a member of an MD RAID"},
		{4086, "SWAPSPACE2", "swap space"},
		{3, "NTFS    ", "an NTFS file system"},
		{3, "EXFAT   ", "an exFAT file system"},
		{82, "FAT32   ", "a FAT file system"},
		{54, "FAT", "a FAT file system"},
		{0x8001, "CD001", "an ISO 9660 file system"},
		{0, "bluestore block device", "a Ceph object store"},
		{128 << 10, "\x0c\xb1\xba\x00", "a ZFS pool"},
	} {
		at := head
		off := m.off
		if off < 0 {
			at, off = tail, len(tail)+off
		}
		if bytes.HasPrefix(at[off:], []byte(m.mark)) {
			return m.name
		}
	}
	return ""
}

// endsFile gives the ends of a device to the parser of partition tables, as a file in which
// nothing else can be read.
type endsFile struct {
	ends
	pos int64
}

// ReadAt implements io.ReaderAt.
func (f *endsFile) ReadAt(b []byte, off int64) (int, error) {
	part := f.head
	if off >= f.sizeBytes-marginBytes {
		part, off = f.tail, off-(f.sizeBytes-marginBytes)
	}
	if off < 0 || off > int64(len(part)) || len(b) > len(part)-int(off) {
		return 0, io.ErrUnexpectedEOF
	}
	return copy(b, part[off:]), nil
}

// Read implements io.Reader.
func (f *endsFile) Read(b []byte) (int, error) {
	n, err := f.ReadAt(b, f.pos)
	f.pos += int64(n)
	return n, err
}

// Seek implements io.Seeker.
func (f *endsFile) Seek(off int64, whence int) (int64, error) {
	f.pos = off + [...]int64{0, f.pos, f.sizeBytes}[whence]
	return f.pos, nil
}

// Stat implements fs.File; there is nothing to tell.
func (f *endsFile) Stat() (fs.FileInfo, error) { return nil, errors.ErrUnsupported }

// Close implements fs.File.
func (f *endsFile) Close() error { return nil }
