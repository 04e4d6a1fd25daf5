package blockdev_test

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/millrace/millrace/nvme/blockdev"
)

// fill returns an aligned buffer of whole blocks, each full of its own byte.
func fill(values ...byte) []byte {
	b := blockdev.AlignedBuffer(len(values) * blockdev.AlignBytes)
	for i := range b {
		b[i] = values[i/blockdev.AlignBytes]
	}
	return b
}

func write(t *testing.T, d blockdev.Device, off int64, b []byte) {
	t.Helper()
	if err := d.WriteAt([][]byte{b}, off); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, d blockdev.Device, off int64, n int) []byte {
	t.Helper()
	b := blockdev.AlignedBuffer(n)
	if err := d.ReadAt([][]byte{b}, off); err != nil {
		t.Fatal(err)
	}
	return b
}

func flush(t *testing.T, d blockdev.Device) {
	t.Helper()
	if err := d.Flush(); err != nil {
		t.Fatal(err)
	}
}

func TestCrashCloneKeepsWhatWasFlushed(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	const blocks = 256
	m := blockdev.NewMem(blocks * blockdev.AlignBytes)
	old, fresh := fill(1), fill(2)
	for i := range int64(blocks) {
		write(t, m, i*blockdev.AlignBytes, old)
	}
	flush(t, m)
	for i := range int64(blocks / 2) {
		write(t, m, i*blockdev.AlignBytes, fresh)
	}
	var kept, lost, torn int
	c := m.CrashClone(rng, 50)
	for i := range int64(blocks) {
		got := read(t, c, i*blockdev.AlignBytes, blockdev.AlignBytes)
		ones := bytes.Count(got, []byte{1})
		switch {
		case ones+bytes.Count(got, []byte{2}) != len(got) || ones%512 != 0:
			t.Fatalf("block %d holds neither old nor new sectors", i)
		case i >= blocks/2 && ones != len(got):
			t.Fatalf("block %d was flushed and is lost", i)
		case i >= blocks/2:
		case ones == 0:
			kept++
		case ones == len(got):
			lost++
		default:
			torn++
		}
	}
	if kept == 0 || lost == 0 || torn == 0 {
		t.Errorf("kept %d, lost %d, torn %d unflushed blocks; want some of each", kept, lost, torn)
	}
	for keep, want := range map[int]byte{0: 1, 100: 2} {
		if got := read(t, m.CrashClone(rng, keep), 0, 4096); !bytes.Equal(got, fill(want)) {
			t.Errorf("CrashClone(%d) block 0 holds %d; want %d", keep, got[0], want)
		}
	}
}

func TestCrashCloneIsApart(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	m := blockdev.NewMem(4 * blockdev.AlignBytes)
	write(t, m, 0, fill(1, 1, 1))
	flush(t, m)
	write(t, m, 0, fill(2))
	c := m.CrashClone(rng, 100)
	write(t, m, 0, fill(3, 3, 3))
	flush(t, m)
	if got := read(t, c, 0, 3*4096); !bytes.Equal(got, fill(2, 1, 1)) {
		t.Errorf("clone changed with its origin: %d %d %d", got[0], got[4096], got[8192])
	}
	write(t, c, 4096, fill(4))
	if got := read(t, m, 4096, 4096); !bytes.Equal(got, fill(3)) {
		t.Errorf("origin changed with its clone: %d", got[0])
	}
}

func TestDiscardCanBeUndoneByACrash(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	m := blockdev.NewMem(1 << 30)
	write(t, m, 4096, fill(7))
	flush(t, m)
	if err := m.Discard(0, 1<<30); err != nil {
		t.Fatal(err)
	}
	if got := read(t, m.CrashClone(rng, 0), 4096, 4096); !bytes.Equal(got, fill(7)) {
		t.Errorf("block holds %d; want 7", got[0])
	}
	flush(t, m)
	if got := read(t, m.CrashClone(rng, 0), 4096, 4096); !bytes.Equal(got, fill(0)) {
		t.Errorf("block holds %d after the flush; want 0", got[0])
	}
}
