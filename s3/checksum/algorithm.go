// Package checksum holds the additional checksums of S3: their names and hashes, and the folding of
// CRCs of adjacent pieces into the CRC of the whole.
//
// It is not about signatures, nor about the ETag's MD5. Invariant: Combine of the CRCs of two pieces is the
// CRC of the pieces put together, for every pair of lengths.
package checksum

import (
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"hash"
	"hash/crc32"
	"strings"

	"github.com/minio/crc64nvme"
)

// Algorithm is one of the checksum algorithms that S3 knows.
type Algorithm uint8

// The algorithms, in the order in which S3 introduced them. None is the zero value.
const (
	None Algorithm = iota
	CRC32
	CRC32C
	SHA1
	SHA256
	CRC64NVME
)

// MaxSizeBytes is the size of the largest value of any Algorithm.
const MaxSizeBytes = sha256.Size

var (
	// ErrUnknown is returned for a name that is no Algorithm, or no Type.
	ErrUnknown = errors.New("unknown checksum algorithm or type")
	// ErrBadValue is returned for a text that is no value of the algorithm.
	ErrBadValue = errors.New("checksum value malformed")
)

// All returns every algorithm but None.
func All() [5]Algorithm {
	return [5]Algorithm{CRC32, CRC32C, SHA1, SHA256, CRC64NVME}
}

// String returns the name that S3 uses in x-amz-checksum-algorithm, such as "CRC32C"; "" for None.
// The XML elements are "Checksum" with this name after it.
func (a Algorithm) String() string {
	switch a {
	case CRC32:
		return "CRC32"
	case CRC32C:
		return "CRC32C"
	case SHA1:
		return "SHA1"
	case SHA256:
		return "SHA256"
	case CRC64NVME:
		return "CRC64NVME"
	}
	return ""
}

// Header returns the name of the header or trailer of the value, in lower case, such as
// "x-amz-checksum-crc32c"; "" for None.
func (a Algorithm) Header() string {
	switch a {
	case CRC32:
		return "x-amz-checksum-crc32"
	case CRC32C:
		return "x-amz-checksum-crc32c"
	case SHA1:
		return "x-amz-checksum-sha1"
	case SHA256:
		return "x-amz-checksum-sha256"
	case CRC64NVME:
		return "x-amz-checksum-crc64nvme"
	}
	return ""
}

// HeaderKey returns Header in the form in which net/http keeps it as a map key.
func (a Algorithm) HeaderKey() string {
	switch a {
	case CRC32:
		return "X-Amz-Checksum-Crc32"
	case CRC32C:
		return "X-Amz-Checksum-Crc32c"
	case SHA1:
		return "X-Amz-Checksum-Sha1"
	case SHA256:
		return "X-Amz-Checksum-Sha256"
	case CRC64NVME:
		return "X-Amz-Checksum-Crc64nvme"
	}
	return ""
}

// Parse returns the algorithm with that name, in any case, or ErrUnknown.
func Parse(name string) (Algorithm, error) {
	for _, a := range All() {
		if strings.EqualFold(name, a.String()) {
			return a, nil
		}
	}
	return None, ErrUnknown
}

// ParseHeader returns the algorithm of a header or trailer name, in any case, or ErrUnknown.
func ParseHeader(name string) (Algorithm, error) {
	for _, a := range All() {
		if strings.EqualFold(name, a.Header()) {
			return a, nil
		}
	}
	return None, ErrUnknown
}

// SizeBytes is the size of a raw value; 0 for None.
func (a Algorithm) SizeBytes() int {
	switch a {
	case CRC32, CRC32C:
		return crc32.Size
	case SHA1:
		return sha1.Size
	case SHA256:
		return sha256.Size
	case CRC64NVME:
		return crc64nvme.Size
	}
	return 0
}

// New returns a new hash whose Sum appends the raw value (CRCs in big-endian order, as S3 has
// them); nil for None.
func New(a Algorithm) hash.Hash {
	switch a {
	case CRC32:
		return crc32.NewIEEE()
	case CRC32C:
		return crc32.New(crc32.MakeTable(crc32.Castagnoli))
	case SHA1:
		return sha1.New()
	case SHA256:
		return sha256.New()
	case CRC64NVME:
		return crc64nvme.New()
	}
	return nil
}

// Encode returns the base64 text of a raw value, as headers and XML carry it.
func Encode(value []byte) string {
	return base64.StdEncoding.EncodeToString(value)
}

// Decode returns the raw value that text stands for. It returns ErrBadValue unless text is
// canonical base64 (RFC 4648 section 4) of exactly SizeBytes bytes.
func (a Algorithm) Decode(text string) ([]byte, error) {
	size := a.SizeBytes()
	if size == 0 || len(text) != base64.StdEncoding.EncodedLen(size) || strings.ContainsAny(text, "\r\n") {
		return nil, ErrBadValue
	}
	value, err := base64.StdEncoding.Strict().DecodeString(text)
	if err != nil || len(value) != size {
		return nil, ErrBadValue
	}
	return value, nil
}
