package erasure

import (
	"errors"
	"math/rand/v2"
	"testing"
)

func TestParseScheme(t *testing.T) {
	for _, test := range []struct {
		text string
		want Scheme
		ok   bool
	}{
		{"1+0", Scheme{1, 0}, true}, {"1+2", Scheme{1, 2}, true}, {"4+2", Scheme{4, 2}, true},
		{"16+4", Scheme{16, 4}, true},
		{"", Scheme{}, false}, {"4", Scheme{}, false}, {"4+", Scheme{}, false}, {"+2", Scheme{}, false},
		{"4+2+1", Scheme{}, false}, {"04+2", Scheme{}, false}, {"4+-2", Scheme{}, false},
		{" 4+2", Scheme{}, false}, {"300+2", Scheme{}, false},
		{"0+1", Scheme{0, 1}, false}, {"17+1", Scheme{17, 1}, false}, {"4+5", Scheme{4, 5}, false},
	} {
		got, err := ParseScheme(test.text)
		if got != test.want || (err == nil) != test.ok || (err != nil && !errors.Is(err, ErrScheme)) {
			t.Errorf("ParseScheme(%q) = %v, %v; want %v, ok %v", test.text, got, err, test.want, test.ok)
		}
		if err == nil && got.String() != test.text {
			t.Errorf("String of %q = %q", test.text, got)
		}
	}
}

func FuzzParseScheme(f *testing.F) {
	f.Add("4+2")
	f.Add("16+4")
	f.Fuzz(func(t *testing.T, s string) {
		if got, err := ParseScheme(s); err == nil && (got.String() != s || got.Validate() != nil) {
			t.Errorf("ParseScheme(%q) = %v", s, got)
		}
	})
}

func TestGeometryTable(t *testing.T) {
	type sizes struct {
		full, stripes, last int
		shard               int64
		blocks              int
	}
	for _, test := range []struct {
		scheme Scheme
		size   int64
		want   sizes
	}{
		{Scheme{1, 0}, 1, sizes{0, 1, 4096, 4096, 1}},
		{Scheme{4, 2}, 1, sizes{0, 1, 4096, 4096, 1}},
		{Scheme{4, 2}, 4*4096 + 1, sizes{0, 1, 8192, 8192, 1}},
		{Scheme{4, 2}, 1 << 20, sizes{1, 1, 0, 256 << 10, 4}},
		{Scheme{4, 2}, 1<<20 - 1, sizes{0, 1, 256 << 10, 256 << 10, 4}},
		{Scheme{4, 2}, 1<<20 + 1, sizes{1, 2, 4096, 260 << 10, 5}},
		{Scheme{4, 2}, 64 << 20, sizes{64, 64, 0, 16 << 20, 256}},
		{Scheme{3, 1}, 64 << 20, sizes{85, 86, 88 << 10, 85*256<<10 + 88<<10, 342}},
	} {
		g, err := NewGeometry(test.scheme, test.size)
		if err != nil {
			t.Fatal(err)
		}
		got := sizes{g.FullStripes(), g.Stripes(), g.LastUnitBytes(), g.ShardBytes(), g.Blocks()}
		if got != test.want {
			t.Errorf("%v of %d bytes = %+v; want %+v", test.scheme, test.size, got, test.want)
		}
	}
	for _, size := range []int64{-1, 0, SegmentBytes + 1} {
		if _, err := NewGeometry(Scheme{4, 2}, size); err == nil {
			t.Errorf("NewGeometry of %d bytes: no error", size)
		}
	}
}

// naivePlace is where byte off of a segment is, found by walking over the stripes.
func naivePlace(g Geometry, off int64) (shard int, at int64) {
	left, base := g.SizeBytes, int64(0)
	for {
		unit := int64(UnitBytes)
		if k := int64(g.Scheme.Data); left < k*UnitBytes {
			unit = (left + k - 1) / k
			for unit%AlignBytes != 0 {
				unit++
			}
		}
		if stripe := unit * int64(g.Scheme.Data); off >= stripe {
			off, left, base = off-stripe, left-stripe, base+unit
			continue
		}
		return int(off / unit), base + off%unit
	}
}

func TestPiecesAgainstNaiveModel(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 4000 {
		g := Geometry{
			Scheme:    Scheme{1 + rng.IntN(MaxData), rng.IntN(MaxParity + 1)},
			SizeBytes: 1 + rng.Int64N(SegmentBytes>>rng.IntN(20)),
		}
		off := rng.Int64N(g.SizeBytes)
		n := 1 + rng.Int64N((g.SizeBytes-off+int64(1)<<rng.IntN(26)-1)>>rng.IntN(8)+1)
		n = min(n, g.SizeBytes-off)
		checkPieces(t, g, off, n)
		if t.Failed() {
			t.Fatalf("seed %d: %+v, range %d+%d", seed, g, off, n)
		}
	}
}

func checkPieces(t *testing.T, g Geometry, off, n int64) {
	t.Helper()
	pos := off
	for _, p := range g.AppendPieces(nil, off, n) {
		for _, in := range []int{0, p.WantBytes / 2, p.WantBytes - 1} {
			shard, at := naivePlace(g, pos+int64(in))
			if shard != p.Shard || at != p.Offset+int64(p.Head+in) {
				t.Errorf("byte %d is at %d:%d; piece %+v", pos+int64(in), shard, at, p)
			}
		}
		end := p.Offset + int64(p.Bytes)
		if p.Offset%BlockBytes != 0 || (end%BlockBytes != 0 && end != g.ShardBytes()) || end > g.ShardBytes() {
			t.Errorf("piece %+v is not whole blocks of a shard of %d bytes", p, g.ShardBytes())
		}
		if tail := p.Bytes - p.Head - p.WantBytes; p.Head >= BlockBytes || tail < 0 || tail >= BlockBytes {
			t.Errorf("piece %+v has blocks outside the range", p)
		}
		if p.Offset/UnitBytes != (end-1)/UnitBytes {
			t.Errorf("piece %+v crosses a unit", p)
		}
		pos += int64(p.WantBytes)
	}
	if pos != off+n {
		t.Errorf("pieces end at %d; want %d", pos, off+n)
	}
}

func TestBlockRangeReadsAtMostTwoBlocks(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 2000 {
		g := Geometry{Scheme: Scheme{1 + rng.IntN(MaxData), 2}, SizeBytes: SegmentBytes}
		read := 0
		for _, p := range g.AppendPieces(nil, rng.Int64N(SegmentBytes-BlockBytes), BlockBytes) {
			read += p.Bytes
		}
		if g.LastUnitBytes()%BlockBytes == 0 && read > 2*BlockBytes {
			t.Fatalf("%v: a range of %d bytes reads %d", g.Scheme, BlockBytes, read)
		}
	}
}
