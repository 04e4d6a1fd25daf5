package drive

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"

	"github.com/diskfs/go-diskfs/backend"
	"github.com/diskfs/go-diskfs/partition/gpt"
)

// What a block device is cut into, per the GPT of UEFI 2.10, §5.3. The types are Millrace's own.
const (
	metaType gpt.Type = "188AB4C1-0AE5-49E1-8B78-4108F6718D0C"
	dataType gpt.Type = "BEF35DE7-CE00-419E-BBA5-3B79AA11EBE6"

	metaLabel = "millrace-meta"
	dataLabel = "millrace-data"

	metaNumber = 1
	dataNumber = 2
)

// Sizes of the layout.
const (
	// marginBytes are kept free at both ends for the partition tables, and partitions start and
	// end at multiples of it. Every file system and label that is known leaves its mark there.
	marginBytes = 1 << 20
	// minBlockBytes is the smallest device that a drive is made of.
	minBlockBytes = 128 << 20
	// smallBlockBytes: below it a device is for tests, and its metadata takes an eighth.
	smallBlockBytes = 8 << 30
	minMetaBytes    = 1 << 30
	minSmallMeta    = 64 << 20
	metaPercent     = 3
)

// span is a partition: a range of the device.
type span struct {
	startBytes, sizeBytes int64
	uuid                  string // lower case
}

// layout is the two partitions of a drive.
type layout struct{ meta, data span }

// plan cuts a device of sizeBytes.
func plan(sizeBytes int64) (layout, error) {
	if sizeBytes < minBlockBytes {
		return layout{}, fmt.Errorf("device of %d bytes: less than %d", sizeBytes, minBlockBytes)
	}
	meta := max(minMetaBytes, sizeBytes/100*metaPercent)
	if sizeBytes < smallBlockBytes {
		meta = max(minSmallMeta, sizeBytes/8)
	}
	meta -= meta % marginBytes
	end := sizeBytes - marginBytes
	end -= end % marginBytes
	start := marginBytes + meta
	return layout{
		meta: span{startBytes: marginBytes, sizeBytes: meta},
		data: span{startBytes: start, sizeBytes: end - start},
	}, nil
}

// table is the layout as a new partition table, without the protective MBR; the UUIDs are drawn
// when it is written.
func (l layout) table(sectorBytes int) *gpt.Table {
	partition := func(number int, s span, t gpt.Type, label string) *gpt.Partition {
		first := uint64(s.startBytes) / uint64(sectorBytes)
		return &gpt.Partition{
			Index: number, Type: t, Name: label,
			Start: first, End: first + uint64(s.sizeBytes)/uint64(sectorBytes) - 1, Size: uint64(s.sizeBytes),
		}
	}
	return &gpt.Table{
		LogicalSectorSize: sectorBytes, PhysicalSectorSize: sectorBytes,
		Partitions: []*gpt.Partition{
			partition(metaNumber, l.meta, metaType, metaLabel),
			partition(dataNumber, l.data, dataType, dataLabel),
		},
	}
}

// write writes the layout to a device whose ends are clear.
func (l layout) write(f backend.WritableFile, sizeBytes int64, sectorBytes int) error {
	if _, err := f.WriteAt(protectiveMBR(sizeBytes, sectorBytes), 0); err != nil {
		return err
	}
	return l.table(sectorBytes).Write(f, sizeBytes)
}

// layoutOf reads the layout from a table; ok is false where it is not Millrace's.
func layoutOf(t *gpt.Table, sizeBytes int64, sectorBytes int) (l layout, ok bool) {
	if len(t.Partitions) != 2 {
		return layout{}, false
	}
	meta, okMeta := spanOf(t.Partitions[0], metaNumber, metaType, sizeBytes, sectorBytes)
	data, okData := spanOf(t.Partitions[1], dataNumber, dataType, sizeBytes, sectorBytes)
	if !okMeta || !okData || meta.startBytes+meta.sizeBytes > data.startBytes {
		return layout{}, false
	}
	return layout{meta: meta, data: data}, true
}

func spanOf(p *gpt.Partition, number int, t gpt.Type, sizeBytes int64, sectorBytes int) (span, bool) {
	sectors := uint64(sizeBytes) / uint64(sectorBytes)
	if p.Index != number || p.Type != t || p.Start > p.End || p.End >= sectors {
		return span{}, false
	}
	s := span{
		startBytes: int64(p.Start) * int64(sectorBytes),
		sizeBytes:  int64(p.End-p.Start+1) * int64(sectorBytes),
		uuid:       strings.ToLower(p.GUID),
	}
	whole := s.startBytes%marginBytes == 0 && s.sizeBytes%marginBytes == 0
	return s, whole && s.startBytes >= marginBytes && s.startBytes+s.sizeBytes <= sizeBytes-marginBytes
}

// The protective MBR, per UEFI 2.10, §5.2.3. It is written and judged here, because the module
// for the GPT expects its signature at the end of a 4096-byte sector, and wraps the size of
// devices of more than 2^32 sectors.
const (
	mbrBytes     = 512
	mbrEntry     = 446
	mbrSignature = 510
	mbrGPTType   = 0xEE
)

// protectiveMBR is the first 512 bytes of a device with a GPT.
func protectiveMBR(sizeBytes int64, sectorBytes int) []byte {
	b := make([]byte, mbrBytes)
	entry := b[mbrEntry:]
	copy(entry, []byte{0, 0, 2, 0, mbrGPTType, 0xFF, 0xFF, 0xFF})
	binary.LittleEndian.PutUint32(entry[8:], 1)
	sectors := min(sizeBytes/int64(sectorBytes)-1, math.MaxUint32)
	binary.LittleEndian.PutUint32(entry[12:], uint32(sectors))
	b[mbrSignature], b[mbrSignature+1] = 0x55, 0xAA
	return b
}

// isProtective reports whether a device starts with a protective MBR.
func isProtective(head []byte) bool {
	return head[mbrSignature] == 0x55 && head[mbrSignature+1] == 0xAA && head[mbrEntry+4] == mbrGPTType &&
		blank(head[mbrEntry+16:mbrSignature])
}
