#include "textflag.h"

// A text is a polynomial over GF(2), its first bit the highest coefficient; registers hold it with the bits of each byte
// as they lie in memory, so the lowest bit of the first byte is the highest coefficient. 16 bytes A = H·x⁶⁴ + L that are
// followed by D bits may be taken away if A·xᴰ mod P is added to what follows. A carry-less product of two such 64-bit
// registers comes out as the product times x, in 128 bits. So H, the first 8 bytes, is multiplied by x^(D+63) mod P, and L
// by x^(D-1) mod P; these are the pairs below, for D of 2048, 512, 384, 256 and 128 bits.

DATA by2048<>+0x00(SB)/8, $0xe9a5d8be00000000
DATA by2048<>+0x08(SB)/8, $0x1426a81500000000
GLOBL by2048<>(SB), NOPTR|RODATA, $16

DATA by512<>+0x00(SB)/8, $0x1c19243b00000000
DATA by512<>+0x08(SB)/8, $0x75bba45b00000000
GLOBL by512<>(SB), NOPTR|RODATA, $16

// For the four lanes of a register, each onto the last one, which stays.
DATA onLast<>+0x00(SB)/8, $0xa46ef4aa00000000
DATA onLast<>+0x08(SB)/8, $0x6051243f00000000
DATA onLast<>+0x10(SB)/8, $0x33ccbbbc00000000
DATA onLast<>+0x18(SB)/8, $0xa2158b3400000000
DATA onLast<>+0x20(SB)/8, $0x3743f7bd00000000
DATA onLast<>+0x28(SB)/8, $0x3171d43000000000
DATA onLast<>+0x30(SB)/8, $0
DATA onLast<>+0x38(SB)/8, $0
GLOBL onLast<>(SB), NOPTR|RODATA, $64

// FOLD takes acc away and adds it to next.
#define FOLD(by, acc, next, spare) \
	VPCLMULQDQ $0x00, by, acc, spare \
	VPCLMULQDQ $0x11, by, acc, acc   \
	VPTERNLOGQ $0x96, next, spare, acc

// func fold(state uint32, p *byte, n int) uint32
TEXT ·fold(SB), NOSPLIT, $0-28
	MOVL state+0(FP), AX
	MOVQ p+8(FP), SI
	MOVQ n+16(FP), CX

	// Four registers, since a product takes about as long as eight can be begun.
	VMOVDQU64 0x00(SI), Z0
	VMOVDQU64 0x40(SI), Z1
	VMOVDQU64 0x80(SI), Z2
	VMOVDQU64 0xc0(SI), Z3
	VMOVD     AX, X4
	VPXORQ    Z4, Z0, Z0
	VBROADCASTI32X4 by2048<>(SB), Z8
	ADDQ      $256, SI
	SUBQ      $256, CX
	JZ        together
	PCALIGN   $32

	// What is fetched ahead crosses pages, where the processor's own prefetching stops.
stride:
	PREFETCHT0 0x800(SI)
	FOLD(Z8, Z0, 0x00(SI), Z4)
	PREFETCHT0 0x840(SI)
	FOLD(Z8, Z1, 0x40(SI), Z5)
	PREFETCHT0 0x880(SI)
	FOLD(Z8, Z2, 0x80(SI), Z6)
	PREFETCHT0 0x8c0(SI)
	FOLD(Z8, Z3, 0xc0(SI), Z7)
	ADDQ $256, SI
	SUBQ $256, CX
	JNZ  stride

together:
	VBROADCASTI32X4 by512<>(SB), Z8
	FOLD(Z8, Z0, Z1, Z4)
	FOLD(Z8, Z0, Z2, Z4)
	FOLD(Z8, Z0, Z3, Z4)

	VMOVDQU64     onLast<>(SB), Z8
	VEXTRACTI32X4 $3, Z0, X1
	VPCLMULQDQ    $0x00, Z8, Z0, Z2
	VPCLMULQDQ    $0x11, Z8, Z0, Z3
	VPXORQ        Z2, Z3, Z2
	VEXTRACTI64X4 $1, Z2, Y3
	VPXORQ        Y2, Y3, Y2
	VEXTRACTI64X2 $1, Y2, X3
	VPTERNLOGQ    $0x96, X1, X3, X2

	// The instruction for CRC32C does the rest: 16 bytes times x³², mod P.
	VMOVQ   X2, DX
	VPEXTRQ $1, X2, BX
	XORL    AX, AX
	CRC32Q  DX, AX
	CRC32Q  BX, AX
	VZEROUPPER
	MOVL    AX, ret+24(FP)
	RET
