package crc32c

import "golang.org/x/sys/cpu"

const (
	// strideBytes is what one turn of fold takes.
	strideBytes = 256
	// foldBytes is the least that is worth it: less is over sooner in hash/crc32.
	foldBytes = 4 * strideBytes
)

// foldable is how many of n bytes are for fold.
func foldable(n int) int {
	if n < foldBytes || !cpu.X86.HasAVX512F || !cpu.X86.HasAVX512DQ || !cpu.X86.HasAVX512VL ||
		!cpu.X86.HasAVX512VPCLMULQDQ || !cpu.X86.HasSSE42 {
		return 0
	}
	return n &^ (strideBytes - 1)
}

// fold is the state of the CRC, which is its complement, after the n bytes at p. n is a multiple of strideBytes and not 0.
//
//go:noescape
func fold(state uint32, p *byte, n int) uint32
