package blockdev_test

import (
	"bytes"
	"errors"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/nvme/blockdev"
)

func TestFaultRules(t *testing.T) {
	const b = blockdev.AlignBytes
	old := fill(1, 1, 1, 1)
	torn := fill(2, 1, 1, 1)
	copy(torn[b:], bytes.Repeat([]byte{2}, 512))
	flipped := fill(2, 2, 1, 1)
	flipped[b+5] ^= 1
	tests := []struct {
		name    string
		rule    blockdev.Rule
		want    []byte // of the device after a write of two blocks of 2s at 0
		wantErr error
	}{
		{"none", blockdev.Rule{}, fill(2, 2, 1, 1), nil},
		{"delay", blockdev.Rule{Delay: time.Millisecond}, fill(2, 2, 1, 1), nil},
		{"error", blockdev.Rule{Kind: blockdev.WriteOp, Err: syscall.EIO}, old, syscall.EIO},
		{"error of the second", blockdev.Rule{Kind: blockdev.WriteOp, Nth: 2, Err: syscall.EIO}, fill(2, 2, 1, 1), nil},
		{"error of others", blockdev.Rule{Kind: blockdev.FlushOp, Err: syscall.EIO}, fill(2, 2, 1, 1), nil},
		{"match", blockdev.Rule{
			Match: func(o blockdev.Op) bool { return o.Kind == blockdev.WriteOp && o.Off == 0 && o.Len == 2*b },
			Err:   blockdev.ErrInjected,
		}, old, blockdev.ErrInjected},
		{"lost", blockdev.Rule{Kind: blockdev.WriteOp, Torn: true}, old, nil},
		{"torn", blockdev.Rule{Kind: blockdev.WriteOp, Torn: true, LandBytes: b + 512}, torn, nil},
		{"torn with error", blockdev.Rule{Kind: blockdev.WriteOp, Torn: true, LandBytes: b + 512, Err: syscall.EIO},
			torn, syscall.EIO},
		{"misdirected", blockdev.Rule{Kind: blockdev.WriteOp, ShiftBytes: b}, fill(1, 2, 2, 1), nil},
		{"flipped", blockdev.Rule{Kind: blockdev.ReadOp, FlipAt: []int64{b + 5, 99 * b}}, flipped, nil},
		{"ENXIO", blockdev.Rule{Kind: blockdev.WriteOp, Err: syscall.ENXIO}, old, blockdev.ErrGone},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			mem := blockdev.NewMem(4 * b)
			write(t, mem, 0, old)
			f := blockdev.NewFault(mem, tt.rule)
			if err := f.WriteAt([][]byte{fill(2), fill(2)}, 0); !errors.Is(err, tt.wantErr) {
				t.Errorf("WriteAt() = %v; want %v", err, tt.wantErr)
			}
			if got := read(t, f, 0, 4*b); !bytes.Equal(got, tt.want) {
				t.Errorf("device holds %d %d %d %d", got[0], got[b], got[2*b], got[3*b])
			}
		})
	}
}

func TestFaultGoneHoldTimesAndCounts(t *testing.T) {
	page := [][]byte{fill(1)}
	twice := blockdev.Rule{Kind: blockdev.FlushOp, Times: 2, Err: blockdev.ErrInjected}
	f := blockdev.NewFault(blockdev.NewMem(1<<20), twice)
	for i, want := range []error{blockdev.ErrInjected, blockdev.ErrInjected, nil} {
		if err := f.Flush(); !errors.Is(err, want) {
			t.Errorf("flush %d = %v; want %v", i+1, err, want)
		}
	}
	hold := make(chan struct{})
	f.Add(blockdev.Rule{Kind: blockdev.WriteOp, Nth: 1, Hold: hold})
	var stuck sync.WaitGroup
	stuck.Go(func() {
		if err := f.WriteAt(page, 0); err != nil {
			t.Error(err)
		}
	})
	if err := f.ReadAt(page, 8192); err != nil { // others go on
		t.Error(err)
	}
	close(hold)
	stuck.Wait()
	var seen []blockdev.Op
	f.Before(func(o blockdev.Op) { seen = append(seen, o) })
	f.Add(blockdev.Rule{Kind: blockdev.DiscardOp, Gone: true})
	for _, err := range []error{f.Discard(0, 4096), f.ReadAt(page, 0), f.WriteAt(page, 0), f.Flush()} {
		if !errors.Is(err, blockdev.ErrGone) {
			t.Errorf("after Gone: %v; want ErrGone", err)
		}
	}
	if len(seen) != 4 || seen[0] != (blockdev.Op{Kind: blockdev.DiscardOp, Len: 4096, Nth: 1, Total: 6}) {
		t.Errorf("hook saw %v", seen)
	}
	f.Heal()
	if err := f.Flush(); err != nil {
		t.Errorf("healed: %v", err)
	}
	for kind, want := range map[blockdev.OpKind]int64{
		blockdev.ReadOp: 2, blockdev.WriteOp: 2, blockdev.FlushOp: 5, blockdev.DiscardOp: 1, blockdev.AnyOp: 10,
	} {
		if got := f.Count(kind); got != want {
			t.Errorf("Count(%v) = %d; want %d", kind, got, want)
		}
	}
}

func TestCounted(t *testing.T) {
	c := blockdev.NewCounted(blockdev.NewMem(1 << 20))
	write(t, c, 0, fill(1, 2))
	read(t, c, 0, 4096)
	flush(t, c)
	if err := c.Discard(4096, 8192); err != nil {
		t.Fatal(err)
	}
	_ = c.ReadAt([][]byte{fill(0)}, 1<<20) // fails, not counted
	want := blockdev.Counters{
		ReadBytes: 4096, WrittenBytes: 8192, DiscardedBytes: 8192, ReadOps: 1, WriteOps: 1, DiscardOps: 1, Flushes: 1,
	}
	if got := c.Stats(); got != want {
		t.Errorf("Stats() = %+v; want %+v", got, want)
	}
}
