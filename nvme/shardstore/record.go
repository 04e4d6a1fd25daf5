package shardstore

import (
	"encoding/binary"
	"slices"

	"github.com/minio/crc64nvme"
)

// Limits of a shard.
const (
	// MaxShardBytes is the largest shard.
	MaxShardBytes = 64 << 20
	// MaxExtents is the largest number of pieces that a shard is stored in.
	MaxExtents = 64

	shardRecordFormat = 1
	shardKeyBytes     = 18
)

// Extent is a run of bytes of the data device.
type Extent struct {
	OffsetBytes int64
	LengthBytes int64
}

// shardRecord is the decoded record of a shard.
type shardRecord struct {
	sizeBytes int64
	extents   []Extent
	crcs      []uint64 // CRC64NVME of every block
}

func blockCount(sizeBytes int64) int { return int((sizeBytes + BlockBytes - 1) / BlockBytes) }

// appendShardKey appends the key of a shard's record.
func appendShardKey(dst []byte, id ShardID) []byte {
	dst = append(dst, prefixShard)
	dst = append(dst, id.Segment[:]...)
	return append(dst, id.Index)
}

func decodeShardKey(key []byte) (id ShardID, ok bool) {
	if len(key) != shardKeyBytes || key[0] != prefixShard {
		return id, false
	}
	copy(id.Segment[:], key[1:])
	id.Index = key[17]
	return id, true
}

// shardRecordSum guards the record and ties it to its key.
func shardRecordSum(key, body []byte) uint64 {
	return crc64nvme.Update(crc64nvme.Checksum(key), body)
}

// appendShardRecord appends the record: format byte, size and extents as varints of allocation
// units, the block checksums, and a checksum of key and record.
func appendShardRecord(dst, key []byte, r *shardRecord) []byte {
	start := len(dst)
	dst = append(dst, shardRecordFormat)
	dst = binary.AppendUvarint(dst, uint64(r.sizeBytes/AllocUnitBytes))
	dst = binary.AppendUvarint(dst, uint64(len(r.extents)))
	for _, e := range r.extents {
		dst = binary.AppendUvarint(dst, uint64(e.OffsetBytes/AllocUnitBytes))
		dst = binary.AppendUvarint(dst, uint64(e.LengthBytes/AllocUnitBytes))
	}
	for _, crc := range r.crcs {
		dst = binary.LittleEndian.AppendUint64(dst, crc)
	}
	return binary.LittleEndian.AppendUint64(dst, shardRecordSum(key, dst[start:]))
}

// decode reads what appendShardRecord wrote into r, whose memory it uses again. The result holds
// nothing of b. Whether the extents lie inside the drive's data area is the caller's matter.
func (r *shardRecord) decode(key, b []byte) error {
	if len(b) < 1+8 {
		return corruptf("shard record of %d bytes", len(b))
	}
	body, sum := b[:len(b)-8], binary.LittleEndian.Uint64(b[len(b)-8:])
	if sum != shardRecordSum(key, body) {
		return corruptf("shard record checksum")
	}
	if body[0] != shardRecordFormat {
		return corruptf("shard record format %d", body[0])
	}
	d := varintDecoder{b: body[1:]}
	units, count := d.next(MaxShardBytes/AllocUnitBytes), d.next(MaxExtents)
	if d.bad || units == 0 || count == 0 {
		return corruptf("shard record header")
	}
	r.sizeBytes = int64(units) * AllocUnitBytes
	r.extents = slices.Grow(r.extents[:0], int(count))[:count]
	for i := range r.extents {
		off, n := d.next(1<<50), d.next(units)
		if d.bad || n == 0 {
			return corruptf("shard record extent %d", i)
		}
		units -= n
		r.extents[i] = Extent{int64(off) * AllocUnitBytes, int64(n) * AllocUnitBytes}
	}
	blocks := blockCount(r.sizeBytes)
	if units != 0 || len(d.b) != 8*blocks {
		return corruptf("shard record length")
	}
	r.crcs = slices.Grow(r.crcs[:0], blocks)[:blocks]
	for i := range r.crcs {
		r.crcs[i] = binary.LittleEndian.Uint64(d.b[8*i:])
	}
	return nil
}

// varintDecoder reads varints off b; once something is wrong it stays bad.
type varintDecoder struct {
	b   []byte
	bad bool
}

func (d *varintDecoder) next(limit uint64) uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 || v > limit {
		d.bad = true
		return 0
	}
	d.b = d.b[n:]
	return v
}

// info gives the record to callers outside, who may change what they get.
func (r *shardRecord) info() ShardInfo {
	return ShardInfo{SizeBytes: r.sizeBytes, Extents: slices.Clone(r.extents), BlockCRCs: slices.Clone(r.crcs)}
}

// footprintBytes is roughly what the record takes in memory.
func (r *shardRecord) footprintBytes() int64 {
	return int64(200 + 16*len(r.extents) + 8*len(r.crcs))
}

// eachRange calls fn for the runs of the device that hold [off, off+n) of the shard, in order.
func eachRange(extents []Extent, off, n int64, fn func(deviceOff, length int64) error) error {
	for _, e := range extents {
		if n == 0 {
			return nil
		}
		if off >= e.LengthBytes {
			off -= e.LengthBytes
			continue
		}
		length := min(n, e.LengthBytes-off)
		if err := fn(e.OffsetBytes+off, length); err != nil {
			return err
		}
		off, n = 0, n-length
	}
	return nil
}
