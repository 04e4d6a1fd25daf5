package segment

import (
	"github.com/millrace/millrace/appliance/erasure"
	"github.com/millrace/millrace/s3/checksum"
)

// foldCRCs makes the CRC of the logical bytes from those of the data shards' blocks, in logical order.
func (w *writer) foldCRCs() uint64 {
	blocks := w.crcs[:w.geo.Scheme.Data]
	var crc uint64 // of no bytes
	left := w.geo.SizeBytes
	for s := range w.geo.Stripes() {
		unit := w.geo.UnitBytes(s)
		first := s * (erasure.UnitBytes / erasure.BlockBytes)
		for j := range blocks {
			for at := 0; at < unit && left > 0; at += erasure.BlockBytes {
				size := int64(min(unit-at, erasure.BlockBytes))
				block := blocks[j][first+at/erasure.BlockBytes]
				if left < size { // the rest of the block is padding
					block, size = w.tailCRC, left
				}
				crc = w.io.combine(crc, block, size)
				left -= size
			}
		}
	}
	return crc
}

func (o *IO) combine(a, b uint64, lenB int64) uint64 {
	if lenB == erasure.BlockBytes {
		return o.blockShift.Combine(a, b)
	}
	return checksum.CombineCRC64NVME(a, b, lenB)
}
