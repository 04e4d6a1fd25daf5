// Package devtest is the conformance suite of blockdev.Device: every implementation passes Run.
//
// It is not a test of durability: what a power cut leaves can be seen only with blockdev.Mem,
// whose own tests do that.
//
// Invariant: a Device that passes Run can stand in for any other under the shard store.
package devtest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"sync"
	"testing"

	"github.com/millrace/millrace/nvme/blockdev"
)

// MinSizeBytes is the size that Run needs at least.
const MinSizeBytes = 16 << 20

const block = blockdev.AlignBytes

// Run tests the devices that open gives, one for each test, of MinSizeBytes or more. The suite
// closes each; open cleans up with t.Cleanup what else it made.
func Run(t *testing.T, open func(t *testing.T) blockdev.Device) {
	tests := []struct {
		name string
		test func(*testing.T, blockdev.Device)
	}{
		{"Bounds", testBounds},
		{"ReadBack", testReadBack},
		{"ManyBuffers", testManyBuffers},
		{"Concurrent", testConcurrent},
		{"Discard", testDiscard},
		{"Closed", testClosed},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := open(t)
			if size := d.SizeBytes(); size < MinSizeBytes || size%block != 0 {
				t.Fatalf("SizeBytes() = %d; want a multiple of %d, at least %d", size, block, MinSizeBytes)
			}
			tt.test(t, d)
			if err := d.Close(); err != nil && tt.name != "Closed" {
				t.Errorf("Close() = %v", err)
			}
		})
	}
}

// stamped returns blocks that each start with their own number and seed.
func stamped(blocks int, seed uint64) []byte {
	b := blockdev.AlignedBuffer(blocks * block)
	for i := range blocks {
		for at := i * block; at < (i+1)*block; at += 512 {
			binary.LittleEndian.PutUint64(b[at:], seed<<32|uint64(i))
		}
	}
	return b
}

func mustWrite(t *testing.T, d blockdev.Device, off int64, bufs ...[]byte) {
	t.Helper()
	if err := d.WriteAt(bufs, off); err != nil {
		t.Fatal(err)
	}
}

func mustRead(t *testing.T, d blockdev.Device, off int64, n int) []byte {
	t.Helper()
	b := blockdev.AlignedBuffer(n)
	if err := d.ReadAt([][]byte{b}, off); err != nil {
		t.Fatal(err)
	}
	return b
}

func testBounds(t *testing.T, d blockdev.Device) {
	size := d.SizeBytes()
	one := blockdev.AlignedBuffer(2 * block)
	tests := []struct {
		name string
		bufs [][]byte
		off  int64
		want error
	}{
		{"nothing", nil, 0, nil},
		{"empty buffer", [][]byte{{}}, size, nil},
		{"last block", [][]byte{one[:block]}, size - block, nil},
		{"offset", [][]byte{one[:block]}, 512, blockdev.ErrUnaligned},
		{"length", [][]byte{one[:block], one[:512]}, 0, blockdev.ErrUnaligned},
		{"address", [][]byte{one[512 : 512+block]}, 0, blockdev.ErrUnaligned},
		{"negative", [][]byte{one[:block]}, -block, blockdev.ErrOutOfRange},
		{"at the end", [][]byte{one[:block]}, size, blockdev.ErrOutOfRange},
		{"over the end", [][]byte{one[:block], one[block:]}, size - block, blockdev.ErrOutOfRange},
		{"far", [][]byte{one[:block]}, 1<<63 - block, blockdev.ErrOutOfRange},
	}
	for _, tt := range tests {
		if err := d.WriteAt(tt.bufs, tt.off); !errors.Is(err, tt.want) {
			t.Errorf("%s: WriteAt() = %v; want %v", tt.name, err, tt.want)
		}
		if err := d.ReadAt(tt.bufs, tt.off); !errors.Is(err, tt.want) {
			t.Errorf("%s: ReadAt() = %v; want %v", tt.name, err, tt.want)
		}
	}
	for _, tt := range []struct {
		off, n int64
		want   error
	}{
		{0, 0, nil}, {size - block, block, nil},
		{512, block, blockdev.ErrUnaligned}, {0, 512, blockdev.ErrUnaligned},
		{size, block, blockdev.ErrOutOfRange}, {-block, block, blockdev.ErrOutOfRange},
		{block, -block, blockdev.ErrOutOfRange}, {block, 1<<63 - block, blockdev.ErrOutOfRange},
	} {
		if err := d.Discard(tt.off, tt.n); !errors.Is(err, tt.want) {
			t.Errorf("Discard(%d, %d) = %v; want %v", tt.off, tt.n, err, tt.want)
		}
	}
}

func testReadBack(t *testing.T, d blockdev.Device) {
	size := d.SizeBytes()
	data := stamped(64, 1)
	for _, off := range []int64{0, 1 << 20, size - 64*block} {
		mustWrite(t, d, off, data)
		if got := mustRead(t, d, off, len(data)); !bytes.Equal(got, data) {
			t.Errorf("read at %d differs from what was written", off)
		}
	}
	if err := d.Flush(); err != nil {
		t.Fatal(err)
	}
	over := stamped(3, 2)
	mustWrite(t, d, 5*block, over)
	want := bytes.Clone(data)
	copy(want[5*block:], over)
	if got := mustRead(t, d, 0, len(data)); !bytes.Equal(got, want) {
		t.Error("overwriting three blocks changed others, or not those")
	}
}

// testManyBuffers uses more buffers than the kernel takes in one call, of several lengths.
func testManyBuffers(t *testing.T, d blockdev.Device) {
	const count = 1500
	data := stamped(count+count/2, 3)
	cut := func(b []byte) [][]byte {
		var bufs [][]byte
		for i := 0; len(b) > 0; i++ {
			n := block * (1 + i%2)
			bufs, b = append(bufs, b[:n:n], b[:0]), b[n:]
		}
		return bufs
	}
	bufs := cut(data)
	mustWrite(t, d, 2*block, bufs...)
	if len(bufs[0]) != block || &bufs[0][0] != &data[0] {
		t.Error("WriteAt changed the caller's slices")
	}
	if got := mustRead(t, d, 2*block, len(data)); !bytes.Equal(got, data) {
		t.Error("read in one buffer differs from what was written in many")
	}
	got := blockdev.AlignedBuffer(len(data))
	if err := d.ReadAt(cut(got), 2*block); err != nil || !bytes.Equal(got, data) {
		t.Errorf("read in many buffers differs: %v", err)
	}
}

// testConcurrent writes from many goroutines: each one's own range must hold its last write,
// and each block of a range shared by all must be one of the writes, whole.
func testConcurrent(t *testing.T, d blockdev.Device) {
	const workers, rounds, blocks = 16, 8, 16
	var all sync.WaitGroup
	for w := range workers {
		all.Go(func() {
			own := int64(1+w) * blocks * block
			for r := range rounds {
				data := stamped(blocks, uint64(w*rounds+r+1))
				err := errors.Join(d.WriteAt([][]byte{data}, own), d.WriteAt([][]byte{data}, 0))
				got := blockdev.AlignedBuffer(len(data))
				err = errors.Join(err, d.ReadAt([][]byte{got}, own), d.Flush())
				if err != nil || !bytes.Equal(got, data) {
					t.Errorf("worker %d, round %d: read differs, %v", w, r, err)
				}
			}
		})
	}
	all.Wait()
	shared := mustRead(t, d, 0, blocks*block)
	for i := range blocks {
		got := shared[i*block : (i+1)*block]
		seed := binary.LittleEndian.Uint64(got) >> 32
		if seed == 0 || !bytes.Equal(got, stamped(i+1, seed)[i*block:]) {
			t.Errorf("shared block %d is no write of any worker", i)
		}
	}
}

func testDiscard(t *testing.T, d blockdev.Device) {
	data := stamped(512, 4)
	mustWrite(t, d, 0, data)
	if err := d.Discard(128*block, 256*block); err != nil {
		t.Fatal(err)
	}
	head, tail := mustRead(t, d, 0, 128*block), mustRead(t, d, 384*block, 128*block)
	if !bytes.Equal(head, data[:128*block]) || !bytes.Equal(tail, data[384*block:]) {
		t.Error("Discard changed blocks outside its range")
	}
	mustRead(t, d, 128*block, 256*block) // any bytes, but no error
	again := stamped(100, 5)
	mustWrite(t, d, 200*block, again)
	if got := mustRead(t, d, 200*block, len(again)); !bytes.Equal(got, again) {
		t.Error("write after Discard did not stay")
	}
}

func testClosed(t *testing.T, d blockdev.Device) {
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	page := [][]byte{blockdev.AlignedBuffer(block)}
	for name, err := range map[string]error{
		"ReadAt": d.ReadAt(page, 0), "WriteAt": d.WriteAt(page, 0), "Flush": d.Flush(),
		"Discard": d.Discard(0, block), "Close": d.Close(),
	} {
		if !errors.Is(err, blockdev.ErrClosed) {
			t.Errorf("%s after Close = %v; want ErrClosed", name, err)
		}
	}
}
