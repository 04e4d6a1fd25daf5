// Package checksum holds the additional checksums of S3: their names and hashes, and the folding of
// CRCs of adjacent pieces into the CRC of the whole.
//
// It is not about signatures, nor about the ETag's MD5. Invariant: Combine of the CRCs of two pieces is the
// CRC of the pieces put together, for every pair of lengths.
package checksum

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
