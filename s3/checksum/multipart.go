package checksum

import (
	"encoding/binary"
	"errors"
	"strconv"
	"strings"
)

// Type says what the checksum of an object made of parts is computed over.
type Type uint8

// The types. FullObject is over the bytes of the object; Composite is over the raw checksums of
// its parts, one after the other.
const (
	FullObject Type = iota + 1
	Composite
)

// MaxParts is the greatest number of parts that a composite text may state.
const MaxParts = 10_000

// ErrNotCombinable is returned when an algorithm has no checksum of the asked type.
var ErrNotCombinable = errors.New("checksum algorithm does not have this type")

// String returns the name that S3 uses in x-amz-checksum-type; "" for the zero value.
func (t Type) String() string {
	switch t {
	case FullObject:
		return "FULL_OBJECT"
	case Composite:
		return "COMPOSITE"
	}
	return ""
}

// ParseType returns the type with that name, in any case, or ErrUnknown.
func ParseType(name string) (Type, error) {
	for _, t := range [2]Type{FullObject, Composite} {
		if strings.EqualFold(name, t.String()) {
			return t, nil
		}
	}
	return 0, ErrUnknown
}

// Allows tells whether a multipart upload may have a checksum of type t: CRC64NVME is only
// FullObject, the SHAs are only Composite, CRC32 and CRC32C are either (Amazon S3 user guide,
// "Checking object integrity").
func (a Algorithm) Allows(t Type) bool {
	switch a {
	case CRC32, CRC32C:
		return t == FullObject || t == Composite
	case SHA1, SHA256:
		return t == Composite
	case CRC64NVME:
		return t == FullObject
	}
	return false
}

// DefaultType is the type of a multipart upload that names only the algorithm; 0 for None.
func (a Algorithm) DefaultType() Type {
	switch a {
	case CRC32, CRC32C, SHA1, SHA256:
		return Composite
	case CRC64NVME:
		return FullObject
	}
	return 0
}

// Part is the raw checksum of one part, and its size.
type Part struct {
	Value     []byte
	SizeBytes int64
}

// CompositeOf returns the raw Composite checksum of the parts, in order. It returns ErrNotCombinable
// for an algorithm without that type, and ErrBadValue if a value has the wrong length.
func CompositeOf(a Algorithm, parts []Part) ([]byte, error) {
	if !a.Allows(Composite) {
		return nil, ErrNotCombinable
	}
	h := New(a)
	for _, p := range parts {
		if len(p.Value) != a.SizeBytes() {
			return nil, ErrBadValue
		}
		h.Write(p.Value)
	}
	return h.Sum(nil), nil
}

// FullObjectOf returns the raw FullObject checksum of the parts put together, in order, without
// reading their bytes. Errors are CompositeOf's; a negative size is ErrBadValue.
func FullObjectOf(a Algorithm, parts []Part) ([]byte, error) {
	f, size := a.field(), a.SizeBytes()
	if f == nil || !a.Allows(FullObject) {
		return nil, ErrNotCombinable
	}
	var crc uint64 // of no bytes
	for _, p := range parts {
		if len(p.Value) != size || p.SizeBytes < 0 {
			return nil, ErrBadValue
		}
		crc = f.combine(crc, bigEndian(p.Value), p.SizeBytes)
	}
	var value [8]byte
	binary.BigEndian.PutUint64(value[:], crc)
	return value[8-size:], nil
}

func (a Algorithm) field() *field {
	switch a {
	case CRC32:
		return fieldIEEE
	case CRC32C:
		return fieldCastagnoli
	case CRC64NVME:
		return fieldNVME
	}
	return nil
}

func bigEndian(value []byte) uint64 {
	var v uint64
	for _, b := range value {
		v = v<<8 | uint64(b)
	}
	return v
}

// EncodeComposite returns the text of a Composite checksum: base64, "-", the number of parts.
func EncodeComposite(value []byte, parts int) string {
	return Encode(value) + "-" + strconv.Itoa(parts)
}

// DecodeComposite is the inverse of EncodeComposite. It returns ErrBadValue for any other text,
// and for a number of parts outside 1 … MaxParts.
func (a Algorithm) DecodeComposite(text string) (value []byte, parts int, err error) {
	encoded, count, ok := strings.Cut(text, "-")
	if !ok {
		return nil, 0, ErrBadValue
	}
	if value, err = a.Decode(encoded); err != nil {
		return nil, 0, err
	}
	parts, err = strconv.Atoi(count)
	if err != nil || parts < 1 || parts > MaxParts || strconv.Itoa(parts) != count {
		return nil, 0, ErrBadValue
	}
	return value, parts, nil
}
