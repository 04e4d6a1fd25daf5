package shardstore

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func goldenRecord() (key []byte, r *shardRecord) {
	id := ShardID{SegmentID{0xaa, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, 3}
	return appendShardKey(nil, id), &shardRecord{
		sizeBytes: 2*BlockBytes + 3*AllocUnitBytes,
		extents:   []Extent{{2 << 20, 2 * BlockBytes}, {1 << 40, 3 * AllocUnitBytes}},
		crcs:      []uint64{0x0102030405060708, 0x1112131415161718, 0x2122232425262728},
	}
}

func decodeShardRecord(key, b []byte) (*shardRecord, error) {
	r := new(shardRecord)
	return r, r.decode(key, b)
}

func TestRecordGolden(t *testing.T) {
	key, r := goldenRecord()
	b := appendShardRecord(nil, key, r)
	golden(t, "shard_key", key)
	golden(t, "shard_record", b)
	label := goldenSuperblock().label
	golden(t, "drive_record", appendDriveRecord(nil, &label))
	got, err := decodeShardRecord(key, b)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r, got, cmp.AllowUnexported(shardRecord{})); diff != "" {
		t.Errorf("decodeShardRecord (-want +got):\n%s", diff)
	}
}

// TestRecordDamage flips every bit, cuts at every length, and moves the record to another key.
func TestRecordDamage(t *testing.T) {
	key, r := goldenRecord()
	b := appendShardRecord(nil, key, r)
	for i := range b {
		for bit := range 8 {
			bad := append([]byte(nil), b...)
			bad[i] ^= 1 << bit
			if _, err := decodeShardRecord(key, bad); !errors.Is(err, ErrCorrupt) {
				t.Fatalf("with bit %d of byte %d flipped: %v; want ErrCorrupt", bit, i, err)
			}
		}
		if _, err := decodeShardRecord(key, b[:i]); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("cut to %d bytes: %v; want ErrCorrupt", i, err)
		}
	}
	key[17]++
	if _, err := decodeShardRecord(key, b); !errors.Is(err, ErrCorrupt) {
		t.Errorf("under another key: %v; want ErrCorrupt", err)
	}
}

// FuzzDecodeShardRecord gives the decoder records whose checksum is right.
func FuzzDecodeShardRecord(f *testing.F) {
	key, r := goldenRecord()
	b := appendShardRecord(nil, key, r)
	f.Add(b[:len(b)-8])
	f.Add([]byte{1, 1, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 1})
	f.Fuzz(func(t *testing.T, body []byte) {
		r, err := decodeShardRecord(key, binary.LittleEndian.AppendUint64(body, shardRecordSum(key, body)))
		if err != nil {
			return
		}
		sum := int64(0)
		for _, e := range r.extents {
			sum += e.LengthBytes
		}
		if sum != r.sizeBytes || r.sizeBytes > MaxShardBytes || len(r.extents) > MaxExtents ||
			len(r.crcs) != blockCount(r.sizeBytes) {
			t.Errorf("decodeShardRecord took %+v", r)
		}
		again, err := decodeShardRecord(key, appendShardRecord(nil, key, r))
		if err != nil || !again.equal(r) {
			t.Errorf("decode of encode = %+v, %v; want %+v", again, err, r)
		}
	})
}

func TestRecordCache(t *testing.T) {
	c := newRecordCache(recordCacheParts * 1000)
	_, r := goldenRecord()
	ids := make([]ShardID, 20)
	for i := range ids {
		ids[i] = ShardID{SegmentID{1, byte(i)}, 0} // all in one part
		_, epoch := c.get(ids[i])
		c.put(ids[i], r, epoch)
	}
	fit := int(1000 / r.footprintBytes())
	for i, id := range ids {
		if got, _ := c.get(id); (got != nil) != (i >= len(ids)-fit) {
			t.Errorf("record %d in cache: %v; want the last %d", i, got != nil, fit)
		}
	}
	_, epoch := c.get(ids[0])
	c.invalidate(ids[1])
	c.put(ids[0], r, epoch)
	if got, _ := c.get(ids[0]); got != nil {
		t.Errorf("a record read before an invalidation was kept")
	}
	off := newRecordCache(-1)
	off.put(ids[0], r, 0)
	if got, _ := off.get(ids[0]); got != nil {
		t.Errorf("a cache without memory kept a record")
	}
}
