package crc32c

import (
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"testing"
)

func want(crc uint32, b []byte) uint32 {
	return crc32.Update(crc, crc32.MakeTable(crc32.Castagnoli), b)
}

// random is n bytes that are the same in every run.
func random(n int) []byte {
	r := rand.NewChaCha8([32]byte{1})
	b := make([]byte, n)
	_, _ = r.Read(b)
	return b
}

func TestUpdateIsHashCRC32(t *testing.T) {
	text := random(80 << 10)
	lengths := []int{65519, 65520, 65521, 70000}
	for n := range 3000 {
		lengths = append(lengths, n)
	}
	for _, n := range lengths {
		for _, start := range []int{0, 1, 3, 8, 16, 63} {
			for _, crc := range []uint32{0, 1, 0xffffffff, 0x8a9136aa} {
				b := text[start:][:n]
				if got, want := Update(crc, b), want(crc, b); got != want {
					t.Fatalf("Update(%#x, %d bytes from %d) = %#x; want %#x", crc, n, start, got, want)
				}
			}
		}
	}
}

// TestUpdateOfEveryBit has one bit set at each place of a text in turn: all constants of the loop take part.
func TestUpdateOfEveryBit(t *testing.T) {
	b := make([]byte, 1280)
	for bit := range len(b) * 8 {
		b[bit/8] = 1 << (bit % 8)
		if got, want := Update(0, b), want(0, b); got != want {
			t.Fatalf("bit %d: Update = %#x; want %#x", bit, got, want)
		}
		b[bit/8] = 0
	}
}

// TestUpdateStaysInside has other bytes around the text, which must not matter.
func TestUpdateStaysInside(t *testing.T) {
	text := random(6 << 10)
	for _, n := range []int{1024, 1279, 1280, 4096} {
		b := append([]byte(nil), text...)
		before := Update(7, b[512:][:n:n])
		for i := range b {
			if i < 512 || i >= 512+n {
				b[i]++
			}
		}
		if got := Update(7, b[512:][:n:n]); got != before {
			t.Errorf("Update of %d bytes = %#x with other bytes around; want %#x", n, got, before)
		}
	}
}

func FuzzUpdate(f *testing.F) {
	f.Add(uint32(0), []byte("123456789"), uint16(4))
	f.Add(uint32(1), random(5000), uint16(1111))
	f.Fuzz(func(t *testing.T, crc uint32, b []byte, cut uint16) {
		n := min(int(cut), len(b))
		if got, want := Update(Update(crc, b[:n]), b[n:]), want(crc, b); got != want {
			t.Errorf("Update(%#x, %d bytes, cut at %d) = %#x; want %#x", crc, len(b), n, got, want)
		}
	})
}

// BenchmarkUpdate has hash/crc32 beside it, over bytes in the cache and over more than it holds.
func BenchmarkUpdate(b *testing.B) {
	const payload = 65520
	for _, size := range []int{1 << 10, payload, 96 << 20} {
		text := random(size)
		for name, update := range map[string]func(uint32, []byte) uint32{"crc32c": Update, "hash": want} {
			b.Run(fmt.Sprintf("%dKiB/%s", size>>10, name), func(b *testing.B) {
				b.SetBytes(int64(size))
				for b.Loop() {
					for at := 0; at < size; at += payload {
						update(0, text[at:min(at+payload, size)])
					}
				}
			})
		}
	}
}
