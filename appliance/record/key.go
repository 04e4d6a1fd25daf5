package record

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
)

// The first byte of every key says what the record is.
const (
	kindBody     = 'b' // group, instance                → the bytes of an inline layout
	kindConfig   = 'c' // name                           → configuration (JSON), on every drive
	kindMap      = 'e' //                                → the placement map (JSON), on every drive
	kindFree     = 'f' // group, seq, number             → what may be freed
	kindRepair   = 'h' //                                → how far a repair of the pool has come
	kindPending  = 'i' // segment, shard index           → empty: not known to be referred to yet
	kindOpLog    = 'l' // seq                            → the keys that the mutation touched
	kindManifest = 'm' // group, upload                  → the parts of a completed upload
	kindObject   = 'o' // bucket, key                    → the current version
	kindPart     = 'p' // group, upload, part number     → a part
	kindOwner    = 'r' // segment, shard index           → which record refers to the shard
	kindScrub    = 's' //                                → how far the scrub of the drive has come
	kindUpload   = 'u' // bucket, escaped key, upload    → an upload in progress
	// kindVersion = 'v' is kept for versions that are not current.
	kindWatermark = 'w' //                               → the seq up to which all mutations are complete
)

// UploadID identifies a multipart upload; IDs sort in the order of their making.
type UploadID [16]byte

// String returns the form that clients see.
func (u UploadID) String() string { return hex.EncodeToString(u[:]) }

// ParseUploadID parses String's form.
func ParseUploadID(s string) (UploadID, error) {
	var u UploadID
	if len(s) != 2*len(u) {
		return u, fmt.Errorf("%w: upload ID", ErrInvalid)
	}
	if _, err := hex.Decode(u[:], []byte(s)); err != nil {
		return u, fmt.Errorf("%w: upload ID", ErrInvalid)
	}
	return u, nil
}

// ObjectKey is the key of a current version. Keys of a bucket sort as S3 keys do.
func ObjectKey(bucket uint64, key string) []byte {
	return append(BucketPrefix(bucket), key...)
}

// BucketPrefix is what all object keys of a bucket begin with.
func BucketPrefix(bucket uint64) []byte {
	return binary.BigEndian.AppendUint64(append(make([]byte, 0, 64), kindObject), bucket)
}

// ParseObjectKey splits an object record's key.
func ParseObjectKey(k []byte) (bucket uint64, key string, err error) {
	if len(k) < 9 || k[0] != kindObject {
		return 0, "", fmt.Errorf("%w: object key", ErrInvalid)
	}
	return binary.BigEndian.Uint64(k[1:]), string(k[9:]), nil
}

// BodyKey is the key of an inline body.
func BodyKey(group int, i Instance) []byte {
	return append(groupPrefix(kindBody, group), i[:]...)
}

// ManifestKey is the key of a completed upload's list of parts.
func ManifestKey(group int, u UploadID) []byte {
	return append(groupPrefix(kindManifest, group), u[:]...)
}

// PartKey is the key of a part. Number 0 gives the lower bound of an upload's parts.
func PartKey(group int, u UploadID, number int) []byte {
	return binary.BigEndian.AppendUint16(PartPrefix(group, u), uint16(number))
}

// PartPrefix is what the keys of all parts of an upload begin with.
func PartPrefix(group int, u UploadID) []byte {
	return append(groupPrefix(kindPart, group), u[:]...)
}

// ParsePartKey splits a part record's key.
func ParsePartKey(k []byte) (group int, u UploadID, number int, err error) {
	if len(k) != 1+2+len(u)+2 || k[0] != kindPart {
		return 0, u, 0, fmt.Errorf("%w: part key", ErrInvalid)
	}
	copy(u[:], k[3:])
	return GroupOfKey(k), u, int(binary.BigEndian.Uint16(k[3+len(u):])), nil
}

// ParseManifestKey splits a manifest's key.
func ParseManifestKey(k []byte) (group int, u UploadID, err error) {
	if len(k) != 1+2+len(u) || k[0] != kindManifest {
		return 0, u, fmt.Errorf("%w: manifest key", ErrInvalid)
	}
	copy(u[:], k[3:])
	return GroupOfKey(k), u, nil
}

// ParseBodyKey splits the key of an inline body.
func ParseBodyKey(k []byte) (group int, i Instance, err error) {
	if len(k) != 1+2+len(i) || k[0] != kindBody {
		return 0, i, fmt.Errorf("%w: body key", ErrInvalid)
	}
	copy(i[:], k[3:])
	return GroupOfKey(k), i, nil
}

// GroupOfKey gives the group of a key that names it: of a body, free, manifest or part record.
func GroupOfKey(k []byte) int {
	if len(k) < 3 {
		return 0
	}
	return int(binary.BigEndian.Uint16(k[1:]))
}

// FreeKey is the key of the n-th record of what mutation seq left to be freed.
func FreeKey(group int, seq uint64, n int) []byte {
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint64(groupPrefix(kindFree, group), seq), uint16(n))
}

// FreePrefix is what all keys of free records begin with.
func FreePrefix() []byte { return []byte{kindFree} }

// OpLogKey is the key of a mutation's op-log entry.
func OpLogKey(seq uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{kindOpLog}, seq)
}

// OpLogPrefix is what the keys of all op-log entries begin with.
func OpLogPrefix() []byte { return []byte{kindOpLog} }

// ParseOpLogKey gives the seq of an op-log entry.
func ParseOpLogKey(k []byte) (uint64, error) {
	if len(k) != 9 || k[0] != kindOpLog {
		return 0, fmt.Errorf("%w: op-log key", ErrInvalid)
	}
	return binary.BigEndian.Uint64(k[1:]), nil
}

// MapKey is the key of the placement map.
func MapKey() []byte { return []byte{kindMap} }

// WatermarkKey is the key of the watermark.
func WatermarkKey() []byte { return []byte{kindWatermark} }

// ScrubKey is the key of the state of a drive's scrub.
func ScrubKey() []byte { return []byte{kindScrub} }

// RepairKey is the key of the state of the pool's repair.
func RepairKey() []byte { return []byte{kindRepair} }

// ConfigKey is the key of a configuration record.
func ConfigKey(name string) []byte { return append([]byte{kindConfig}, name...) }

// ConfigName is the inverse of ConfigKey.
func ConfigName(k []byte) string { return string(k[1:]) }

// PendingKey marks a shard on a drive as not yet known to be referred to.
func PendingKey(segment [16]byte, index int) []byte { return shardKey(kindPending, segment, index) }

// PendingPrefix is what the keys of all pending marks begin with.
func PendingPrefix() []byte { return []byte{kindPending} }

// OwnerKey is the key of the record that names a shard's owner.
func OwnerKey(segment [16]byte, index int) []byte { return shardKey(kindOwner, segment, index) }

// ParsePendingKey gives the shard of a pending mark.
func ParsePendingKey(k []byte) (segment [16]byte, index int, err error) {
	return parseShardKey(kindPending, k)
}

// ParseOwnerKey gives the shard of an owner record.
func ParseOwnerKey(k []byte) (segment [16]byte, index int, err error) {
	return parseShardKey(kindOwner, k)
}

func parseShardKey(kind byte, k []byte) (segment [16]byte, index int, err error) {
	if len(k) != 18 || k[0] != kind {
		return segment, 0, fmt.Errorf("%w: shard key", ErrInvalid)
	}
	copy(segment[:], k[1:])
	return segment, int(k[17]), nil
}

func shardKey(kind byte, segment [16]byte, index int) []byte {
	return append(append(append(make([]byte, 0, 18), kind), segment[:]...), byte(index))
}

// UploadKey is the key of an upload in progress: its bucket's uploads sort by key, then ID.
func UploadKey(bucket uint64, key string, u UploadID) []byte {
	return append(UploadsOfKey(bucket, key), u[:]...)
}

// UploadsOfKey is what the keys of all uploads of one S3 key begin with. NUL in a key is written
// as 00 FF and the key ends with 00 01, so that no key's uploads sort among another's.
func UploadsOfKey(bucket uint64, key string) []byte {
	return append(UploadsPrefix(bucket, key), 0, 1)
}

// UploadsPrefix is what the keys of the uploads of all S3 keys with that prefix begin with.
func UploadsPrefix(bucket uint64, prefix string) []byte {
	k := binary.BigEndian.AppendUint64([]byte{kindUpload}, bucket)
	return append(k, bytes.ReplaceAll([]byte(prefix), []byte{0}, []byte{0, 0xff})...)
}

// ParseUploadKey splits an upload record's key.
func ParseUploadKey(k []byte) (bucket uint64, key string, u UploadID, err error) {
	const fixed = 1 + 8 + 2 + len(u)
	if len(k) < fixed || k[0] != kindUpload || !bytes.Equal(k[len(k)-18:len(k)-16], []byte{0, 1}) {
		return 0, "", u, fmt.Errorf("%w: upload key", ErrInvalid)
	}
	escaped := k[9 : len(k)-18]
	copy(u[:], k[len(k)-16:])
	key = string(bytes.ReplaceAll(escaped, []byte{0, 0xff}, []byte{0}))
	return binary.BigEndian.Uint64(k[1:]), key, u, nil
}

// KeyRange is the keys from Lower up to, but without, Upper.
type KeyRange struct{ Lower, Upper []byte }

// GroupedRanges are the ranges of all records that belong to a placement group.
func GroupedRanges() []KeyRange {
	return kindRanges(kindBody, kindFree, kindManifest, kindObject, kindPart, kindUpload)
}

// UnseatedRanges are the ranges of all records that a drive that was away can't keep: all but
// those that say what its own shards are.
func UnseatedRanges() []KeyRange {
	return append(GroupedRanges(), kindRanges(kindConfig, kindOpLog, kindWatermark)...)
}

func kindRanges(kinds ...byte) []KeyRange {
	ranges := make([]KeyRange, len(kinds))
	for i, k := range kinds {
		ranges[i] = KeyRange{Lower: []byte{k}, Upper: []byte{k + 1}}
	}
	return ranges
}

// Kind says what kind of record a key is for.
type Kind byte

// The kinds of records.
const (
	BodyRecord      Kind = kindBody
	ConfigRecord    Kind = kindConfig
	MapRecord       Kind = kindMap
	FreeRecord      Kind = kindFree
	RepairRecord    Kind = kindRepair
	PendingRecord   Kind = kindPending
	OpLogRecord     Kind = kindOpLog
	ManifestRecord  Kind = kindManifest
	ObjectRecord    Kind = kindObject
	PartRecord      Kind = kindPart
	OwnerRecord     Kind = kindOwner
	ScrubRecord     Kind = kindScrub
	UploadRecord    Kind = kindUpload
	WatermarkRecord Kind = kindWatermark
)

// KindOf gives the kind of a key's record; 0 for an empty key.
func KindOf(k []byte) Kind {
	if len(k) == 0 {
		return 0
	}
	return Kind(k[0])
}

// RangeOf is the range of all records of a kind.
func RangeOf(k Kind) KeyRange { return kindRanges(byte(k))[0] }

// NameOfKey gives the bucket and S3 key that the record of that key belongs to, if it names them; else the
// record names its group (GroupOfKey).
func NameOfKey(k []byte) (bucket uint64, key string, named bool, err error) {
	if len(k) == 0 {
		return 0, "", false, fmt.Errorf("%w: empty key", ErrInvalid)
	}
	switch k[0] {
	case kindObject:
		bucket, key, err = ParseObjectKey(k)
		return bucket, key, true, err
	case kindUpload:
		bucket, key, _, err = ParseUploadKey(k)
		return bucket, key, true, err
	}
	return 0, "", false, nil
}

// PrefixEnd returns the first key after all keys that begin with prefix.
func PrefixEnd(prefix []byte) []byte {
	end := bytes.Clone(prefix)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i]++; end[i] != 0 {
			return end[:i+1]
		}
	}
	return nil
}

// Segment returns the identity of segment i of the instance.
func (in Instance) Segment(i int) (id [16]byte) {
	copy(id[:], in[:])
	binary.BigEndian.PutUint32(id[12:], uint32(i))
	return id
}

// InstanceOf splits a segment's identity.
func InstanceOf(segment [16]byte) (in Instance, i int) {
	copy(in[:], segment[:])
	return in, int(binary.BigEndian.Uint32(segment[12:]))
}

func groupPrefix(kind byte, group int) []byte {
	return binary.BigEndian.AppendUint16(append(make([]byte, 0, 32), kind), uint16(group))
}
