// Package crc32c is the CRC of MPA's FPDUs (RFC 5044 §4.4): CRC32C, of the Castagnoli polynomial, as in iSCSI.
//
// It is hash/crc32 of the standard library, and on processors that multiply polynomials in registers of 64 bytes a loop of
// its own for most of a long text: there the CRC of a payload is a third of what receiving it costs. It is not for
// anything that is kept; what is on drives has CRC64NVME.
//
// Invariant: Update is hash/crc32's Update, for every text and every start.
package crc32c

import "hash/crc32"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Update is the CRC of a text whose first part has the CRC crc (0 if there is none), and b is the rest.
func Update(crc uint32, b []byte) uint32 {
	if n := foldable(len(b)); n > 0 {
		crc = ^fold(^crc, &b[0], n)
		b = b[n:]
	}
	return crc32.Update(crc, castagnoli, b)
}
