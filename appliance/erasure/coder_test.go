package erasure

import (
	"bytes"
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"sync"
	"testing"
)

func randomShards(rng *rand.Rand, s Scheme, n int) [][]byte {
	shards := make([][]byte, s.Shards())
	for j := range shards {
		shards[j] = make([]byte, n)
		for i := range shards[j] {
			shards[j][i] = byte(rng.Uint32())
		}
	}
	return shards
}

// Every subset of lost shards that leaves Data of them is made good, in the memory given for it.
func TestReconstructEverySubset(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	var coders Coders
	for _, s := range []Scheme{{1, 1}, {1, 2}, {1, 4}, {2, 1}, {2, 2}, {3, 2}, {4, 2}, {5, 4}, {2, 0}} {
		c, err := coders.Coder(s)
		if err != nil {
			t.Fatal(err)
		}
		want := randomShards(rng, s, 4096)
		if err := c.Encode(want); err != nil {
			t.Fatal(err)
		}
		for lost := range 1 << s.Shards() {
			checkLoss(t, c, want, uint(lost), uint(rng.IntN(1<<s.Shards())))
		}
	}
}

func checkLoss(t *testing.T, c *Coder, want [][]byte, lost, wanted uint) {
	t.Helper()
	got := make([][]byte, len(want))
	required := make([]bool, len(want))
	for j := range got {
		got[j] = bytes.Clone(want[j])
		if lost>>j&1 == 1 {
			clear(got[j])
			got[j] = got[j][:0]
			required[j] = wanted>>j&1 == 1
		}
	}
	first := make([]*byte, len(got))
	for j := range got {
		first[j] = &got[j][:1][0]
	}
	err := c.Reconstruct(got, required)
	if lost&wanted == 0 {
		if err != nil && bits.OnesCount(lost) <= c.scheme.Parity {
			t.Errorf("%v lost %b: %v", c.scheme, lost, err)
		}
		return
	}
	if bits.OnesCount(lost) > c.scheme.Parity {
		if !errors.Is(err, ErrTooFewShards) {
			t.Errorf("%v lost %b: %v; want ErrTooFewShards", c.scheme, lost, err)
		}
		return
	}
	if err != nil {
		t.Errorf("%v lost %b: %v", c.scheme, lost, err)
	}
	for j := range got {
		switch {
		case lost>>j&1 == 0 || required[j]:
			if !bytes.Equal(got[j], want[j]) || &got[j][0] != first[j] {
				t.Errorf("%v lost %b wanted %b: shard %d is wrong or moved", c.scheme, lost, wanted, j)
			}
		case len(got[j]) != 0:
			t.Errorf("%v lost %b wanted %b: shard %d was filled", c.scheme, lost, wanted, j)
		}
	}
}

func TestCoderArguments(t *testing.T) {
	var coders Coders
	if _, err := coders.Coder(Scheme{17, 1}); !errors.Is(err, ErrScheme) {
		t.Errorf("Coder(17+1) = %v; want ErrScheme", err)
	}
	c, _ := coders.Coder(Scheme{4, 2})
	if err := c.Encode(make([][]byte, 5)); err == nil {
		t.Error("Encode of 5 shards by 4+2: no error")
	}
	if err := c.Reconstruct(make([][]byte, 6), make([]bool, 4)); err == nil {
		t.Error("Reconstruct with 4 marks by 4+2: no error")
	}
}

func TestCodersAreShared(t *testing.T) {
	var coders Coders
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for k := 1; k <= MaxData; k++ {
				for m := 0; m <= MaxParity; m++ {
					if _, err := coders.Coder(Scheme{k, m}); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	a, _ := coders.Coder(Scheme{8, 4})
	if b, _ := coders.Coder(Scheme{8, 4}); a != b {
		t.Error("two coders of one scheme")
	}
}

func BenchmarkEncode(b *testing.B) {
	var coders Coders
	rng := rand.New(rand.NewPCG(1, 1))
	for _, s := range []Scheme{{2, 2}, {4, 2}, {8, 4}, {12, 4}, {16, 4}} {
		for _, n := range []int{4 << 10, 64 << 10, UnitBytes} {
			b.Run(fmt.Sprintf("%v/%dKiB", s, n>>10), func(b *testing.B) {
				c, _ := coders.Coder(s)
				shards := randomShards(rng, s, n)
				b.SetBytes(int64(n * s.Data))
				b.ReportAllocs()
				for b.Loop() {
					if err := c.Encode(shards); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

func BenchmarkReconstructOne(b *testing.B) {
	var coders Coders
	rng := rand.New(rand.NewPCG(1, 1))
	for _, s := range []Scheme{{2, 2}, {4, 2}, {8, 4}} {
		b.Run(s.String(), func(b *testing.B) {
			c, _ := coders.Coder(s)
			shards := randomShards(rng, s, UnitBytes)
			required := make([]bool, len(shards))
			required[0] = true
			b.SetBytes(int64(UnitBytes * s.Data))
			b.ReportAllocs()
			for b.Loop() {
				shards[0] = shards[0][:0]
				if err := c.Reconstruct(shards, required); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
