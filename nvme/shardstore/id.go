package shardstore

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"fmt"
)

// DriveID is a drive's own UUID, given to it when it is formatted.
type DriveID [16]byte

// PoolID is the UUID of the pool that a drive belongs to.
type PoolID [16]byte

// SegmentID is the UUID of a segment: what the shards of one erasure-coded unit have in common.
type SegmentID [16]byte

// ShardID names a shard: one of the pieces of a segment. A drive holds at most one shard of an ID.
type ShardID struct {
	Segment SegmentID
	Index   uint8 // which of the segment's shards
}

// NewDriveID returns a random ID (RFC 9562 version 4).
func NewDriveID() DriveID { return DriveID(newUUID()) }

// NewPoolID returns a random ID (RFC 9562 version 4).
func NewPoolID() PoolID { return PoolID(newUUID()) }

// NewSegmentID returns a random ID (RFC 9562 version 4).
func NewSegmentID() SegmentID { return SegmentID(newUUID()) }

func newUUID() (id [16]byte) {
	rand.Read(id[:]) // never fails, see crypto/rand
	id[6] = id[6]&0x0f | 0x40
	id[8] = id[8]&0x3f | 0x80
	return id
}

// String gives the ID in the form of RFC 9562.
func (id DriveID) String() string { return uuidString(id) }

// String gives the ID in the form of RFC 9562.
func (id PoolID) String() string { return uuidString(id) }

// String gives the ID in the form of RFC 9562.
func (id SegmentID) String() string { return uuidString(id) }

// String gives the segment's ID, a slash and the index.
func (id ShardID) String() string { return fmt.Sprintf("%s/%d", id.Segment, id.Index) }

// Compare orders IDs as the store does: by segment bytes, then index.
func (id ShardID) Compare(other ShardID) int {
	if c := bytes.Compare(id.Segment[:], other.Segment[:]); c != 0 {
		return c
	}
	return int(id.Index) - int(other.Index)
}

func uuidString(id [16]byte) string {
	h := hex.EncodeToString(id[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}
