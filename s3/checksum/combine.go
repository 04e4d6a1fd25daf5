package checksum

import "math/bits"

// field is arithmetic on polynomials over GF(2) modulo the polynomial of a bit-reflected CRC of
// up to 64 bits. An element is held as the CRC itself is: the top bit of the width is the
// coefficient of x^0. All CRCs here start with and are finally XORed with all ones, and for those
//
//	crc(A ‖ B) = crc(A) · x^(8·len(B)) + crc(B)
//
// since both constants cancel out.
type field struct {
	poly   uint64     // reflected, without the leading term
	one    uint64     // x^0
	powers [66]uint64 // powers[k] = x^(2^k): enough for 8·len of any int64 length
}

// The three fields. They are filled once and only read.
var (
	fieldIEEE       = newField(0xedb88320, 32)
	fieldCastagnoli = newField(0x82f63b78, 32)
	fieldNVME       = newField(0x9a6c9329ac4bc9b5, 64) // 64b CRC of the NVM Command Set Specification
)

func newField(poly uint64, width int) *field {
	f := &field{poly: poly, one: 1 << (width - 1)}
	f.powers[0] = f.one >> 1
	for k := 1; k < len(f.powers); k++ {
		f.powers[k] = f.multiply(f.powers[k-1], f.powers[k-1])
	}
	return f
}

// timesX returns a·x.
func (f *field) timesX(a uint64) uint64 {
	return a>>1 ^ f.poly&-(a&1)
}

func (f *field) multiply(a, b uint64) uint64 {
	var product uint64
	for bit := f.one; a != 0; bit >>= 1 {
		if a&bit != 0 {
			product ^= b
			a ^= bit
		}
		b = f.timesX(b)
	}
	return product
}

// power returns x^(8·lenBytes).
func (f *field) power(lenBytes int64) uint64 {
	product := f.one
	for rest := uint64(lenBytes); rest != 0; rest &= rest - 1 {
		k := bits.TrailingZeros64(rest) + 3 // 8 = 2^3
		product = f.multiply(product, f.powers[k])
	}
	return product
}

func (f *field) combine(a, b uint64, lenB int64) uint64 {
	if lenB < 0 {
		panic("checksum: negative length")
	}
	return f.multiply(f.power(lenB), a) ^ b
}

// CombineCRC64NVME returns the CRC of the bytes of a followed by those of b, which are lenB bytes.
// It takes about a microsecond; for many pieces of one length use a Shift.
func CombineCRC64NVME(a, b uint64, lenB int64) uint64 {
	return fieldNVME.combine(a, b, lenB)
}

// CombineCRC32 is CombineCRC64NVME for CRC32 (IEEE).
func CombineCRC32(a, b uint32, lenB int64) uint32 {
	return uint32(fieldIEEE.combine(uint64(a), uint64(b), lenB))
}

// CombineCRC32C is CombineCRC64NVME for CRC32C (Castagnoli).
func CombineCRC32C(a, b uint32, lenB int64) uint32 {
	return uint32(fieldCastagnoli.combine(uint64(a), uint64(b), lenB))
}

// Shift combines CRC64NVMEs where the second piece always has the same length. It is 2 KiB of
// tables, is never changed after it was made, and may be used by many goroutines at once.
type Shift struct {
	// tables[i][v] is the nibble v at bits 4i … 4i+3, times x^(8·length).
	tables [16][16]uint64
}

// NewCRC64Shift returns the Shift for second pieces of lenBytes bytes.
func NewCRC64Shift(lenBytes int64) *Shift {
	if lenBytes < 0 {
		panic("checksum: negative length")
	}
	s := new(Shift)
	image := fieldNVME.power(lenBytes) // of the top bit, which is x^0
	for bit := 63; bit >= 0; bit-- {
		table := &s.tables[bit/4]
		for v := range table {
			if v>>(bit%4)&1 == 1 {
				table[v] ^= image
			}
		}
		image = fieldNVME.timesX(image)
	}
	return s
}

// Combine returns the CRC of the bytes of a followed by those of b, which are as many as the
// Shift was made for.
func (s *Shift) Combine(a, b uint64) uint64 {
	for i := range s.tables {
		b ^= s.tables[i][a&15]
		a >>= 4
	}
	return b
}
