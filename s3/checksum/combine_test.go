package checksum

import (
	"hash/crc32"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/minio/crc64nvme"
)

func castagnoli(p []byte) uint32 { return crc32.Checksum(p, crc32.MakeTable(crc32.Castagnoli)) }

func checkSplit(t *testing.T, data []byte, at int) {
	t.Helper()
	a, b, lenB := data[:at], data[at:], int64(len(data)-at)
	want := crc64nvme.Checksum(data)
	if got := CombineCRC64NVME(crc64nvme.Checksum(a), crc64nvme.Checksum(b), lenB); got != want {
		t.Errorf("CombineCRC64NVME(%d+%d bytes) = %x; want %x", at, lenB, got, want)
	}
	if got := NewCRC64Shift(lenB).Combine(crc64nvme.Checksum(a), crc64nvme.Checksum(b)); got != want {
		t.Errorf("Shift.Combine(%d+%d bytes) = %x; want %x", at, lenB, got, want)
	}
	want32 := crc32.ChecksumIEEE(data)
	if got := CombineCRC32(crc32.ChecksumIEEE(a), crc32.ChecksumIEEE(b), lenB); got != want32 {
		t.Errorf("CombineCRC32(%d+%d bytes) = %x; want %x", at, lenB, got, want32)
	}
	want32 = castagnoli(data)
	if got := CombineCRC32C(castagnoli(a), castagnoli(b), lenB); got != want32 {
		t.Errorf("CombineCRC32C(%d+%d bytes) = %x; want %x", at, lenB, got, want32)
	}
}

func randomBytes(r *rand.Rand, n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(r.Uint32())
	}
	return p
}

func newRand(t *testing.T) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

func TestCombineIsTheCRCOfBoth(t *testing.T) {
	r := newRand(t)
	for n := range 40 {
		data := randomBytes(r, n)
		for at := range n + 1 {
			checkSplit(t, data, at)
		}
	}
	for range 50 {
		data := randomBytes(r, r.IntN(200_000))
		checkSplit(t, data, r.IntN(len(data)+1))
	}
}

// Lengths that no test can hash: combining must be associative.
func TestCombineHugeLengths(t *testing.T) {
	r := newRand(t)
	for range 200 {
		a, b, c := r.Uint64(), r.Uint64(), r.Uint64()
		lenB, lenC := r.Int64N(1<<61), r.Int64N(1<<61)
		left := CombineCRC64NVME(CombineCRC64NVME(a, b, lenB), c, lenC)
		right := CombineCRC64NVME(a, CombineCRC64NVME(b, c, lenC), lenB+lenC)
		if left != right {
			t.Fatalf("combine of lengths %d, %d is not associative: %x, %x", lenB, lenC, left, right)
		}
		if got, want := NewCRC64Shift(lenB).Combine(a, b), CombineCRC64NVME(a, b, lenB); got != want {
			t.Fatalf("Shift(%d).Combine = %x; want %x", lenB, got, want)
		}
	}
}

func TestCombineRefusesNegativeLengths(t *testing.T) {
	for name, f := range map[string]func(){
		"combine": func() { CombineCRC64NVME(1, 2, -1) },
		"shift":   func() { NewCRC64Shift(-1) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			f()
		})
	}
}

func FuzzCombine(f *testing.F) {
	f.Add([]byte("123456789"), uint16(4))
	f.Add([]byte{}, uint16(0))
	f.Fuzz(func(t *testing.T, data []byte, at uint16) {
		checkSplit(t, data, int(at)%(len(data)+1))
	})
}

func BenchmarkCombineCRC64NVME(b *testing.B) {
	var crc uint64
	for b.Loop() {
		crc = CombineCRC64NVME(crc+1, 2, 64<<10+12345)
	}
}

func BenchmarkShiftCombine(b *testing.B) {
	s, crc := NewCRC64Shift(64<<10), uint64(0)
	for b.Loop() {
		crc = s.Combine(crc+1, 2)
	}
}

func BenchmarkNewCRC64Shift(b *testing.B) {
	for b.Loop() {
		NewCRC64Shift(64 << 10)
	}
}
