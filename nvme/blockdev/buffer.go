package blockdev

import "unsafe"

// AlignedBuffer returns n zero bytes of memory that starts at a multiple of AlignBytes. Its
// capacity is n rounded up to AlignBytes.
func AlignedBuffer(n int) []byte {
	whole := (n + AlignBytes - 1) &^ (AlignBytes - 1)
	raw := make([]byte, whole+AlignBytes)
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(raw))) & (AlignBytes - 1))
	return raw[skip : skip+n : skip+whole]
}
