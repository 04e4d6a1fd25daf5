package segment

import (
	"bytes"
	"context"
	"crypto/md5"
	"errors"
	"io"
	"math/bits"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"github.com/minio/crc64nvme"

	"github.com/millrace/millrace/appliance/arena"
	"github.com/millrace/millrace/appliance/erasure"
)

func TestSlabSizesHoldTheSlices(t *testing.T) {
	memory := make([]byte, arena.MaxBytes)
	for n := 1; n < 24; n++ {
		for size := 4096; size <= erasure.UnitBytes; size += 4096 {
			c, total := carver{}, 0
			for _, s := range slabSizes(nil, n, size) {
				if s > arena.MaxBytes || s < size {
					t.Fatalf("slabSizes(%d, %d) has a slab of %d", n, size, s)
				}
				c.slabs = append(c.slabs, memory[:s])
				class := arena.MinBytes
				for class < s {
					class *= 2
				}
				total += class
			}
			for range n {
				if p, _, _ := c.take(size); p == nil {
					t.Fatalf("slabSizes(%d, %d): the slices don't fit", n, size)
				}
			}
			if total > 2*n*size+arena.MinBytes {
				t.Errorf("slabSizes(%d, %d) takes %d bytes", n, size, total)
			}
		}
	}
}

// Every edge of the layout, in several schemes: written, read whole, and read with the first shards lost.
func TestSizesAndSchemes(t *testing.T) {
	r := newRig(t, 48<<20, Config{})
	r.dirty()
	const unit = erasure.UnitBytes
	schemes := []string{"1+0", "1+2", "2+2", "3+1", "4+2", "8+4", "12+4", "16+4"}
	if testing.Short() {
		schemes = []string{"1+2", "3+1", "8+4"}
	}
	for _, s := range parseSchemes(t, schemes...) {
		k := int64(s.Data)
		for _, base := range []int64{
			1, 4096, 4096 * k, 64 << 10, unit, unit * k, unit*k + 4096*k, 2 << 20, 2 * unit * k, 4<<20 + 12345,
		} {
			for _, size := range []int64{base - 1, base, base + 1} {
				if size < 1 {
					continue
				}
				g := r.geometry(s, size)
				data := payload(size, uint64(size))
				shards := r.store(g, data)
				r.wantRange(g, readers(shards, 0), data, 0, size)
				r.wantRange(g, readers(shards, 1<<s.Parity-1), data, 0, size)
				r.wantIdle()
			}
		}
	}
}

func TestLargestSegment(t *testing.T) {
	r := newRig(t, 16<<20, Config{})
	data := payload(erasure.SegmentBytes, 1)
	for _, size := range []int64{erasure.SegmentBytes - 1, erasure.SegmentBytes} {
		g := r.geometry(erasure.Scheme{Data: 4, Parity: 2}, size)
		shards := r.store(g, data[:size])
		r.wantRange(g, readers(shards, 0), data[:size], 0, size)
		r.wantRange(g, readers(shards, 0b001010), data[:size], 0, size)
		if testing.Short() {
			break
		}
	}
	if peak := r.arena.Stats().PeakBytes; peak > 8<<20 {
		t.Errorf("peak of the arena = %d MiB", peak>>20)
	}
}

// Any m lost shards, whether known to be missing or found to be: the bytes are right. One more: an error.
func TestEverySubsetOfLostShards(t *testing.T) {
	r := newRig(t, 32<<20, Config{WindowBytes: 1 << 20})
	schemes := []string{"1+2", "2+2", "3+1", "4+2"}
	if testing.Short() {
		schemes = []string{"1+2", "3+1"}
	}
	for _, s := range parseSchemes(t, schemes...) {
		size := 2*r.geometry(s, 1).StripeBytes() + 1<<20 + 4321
		g := r.geometry(s, size)
		data := payload(size, 7)
		shards := r.store(g, data)
		for lost := range uint(1) << s.Shards() {
			for j, shard := range shards {
				shard.failReadAt = -1
				if lost>>j&1 == 1 {
					shard.failReadAt = int64(j) * 100 << 10 % g.ShardBytes()
				}
			}
			if bits.OnesCount(lost) > s.Parity {
				for _, from := range [][]ShardReader{readers(shards, lost), readers(shards, 0)} {
					var got bytes.Buffer
					if _, err := r.Read(context.Background(), g, from, 0, size, &got); err == nil {
						if lost&(1<<s.Data-1) != 0 && s.Data > 1 {
							t.Fatalf("%v lost %b: no error", s, lost)
						}
					} else if !errors.Is(err, ErrTooFewShards) || !bytes.HasPrefix(data, got.Bytes()) {
						t.Fatalf("%v lost %b: %v", s, lost, err)
					}
				}
				continue
			}
			r.wantRange(g, readers(shards, lost), data, 0, size)
			report := r.wantRange(g, readers(shards, 0), data, 0, size)
			for _, f := range report.Failed {
				if lost>>f.Shard&1 == 0 || !errors.Is(f.Err, errDrive) {
					t.Errorf("%v lost %b: reported %v", s, lost, &f)
				}
			}
		}
		r.wantIdle()
	}
}

// Random geometry, range, losses and failures against the plain bytes.
func TestRandomReads(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	r := newRig(t, 64<<20, Config{WindowBytes: 1 << 20})
	rounds := 150
	if testing.Short() {
		rounds = 40
	}
	for range rounds {
		s := erasure.Scheme{Data: 1 + rng.IntN(erasure.MaxData), Parity: rng.IntN(erasure.MaxParity + 1)}
		size := 1 + rng.Int64N(int64(6<<20)>>rng.IntN(8))
		g := r.geometry(s, size)
		data := payload(size, rng.Uint64())
		shards := r.store(g, data)
		for range 20 {
			off := rng.Int64N(size)
			n := 1 + rng.Int64N((size-off-1)>>rng.IntN(12)+1)
			var lost uint
			for j, shard := range rng.Perm(len(shards))[:len(shards)] {
				shards[shard].failReadAt = -1
				if j < rng.IntN(s.Parity+1) {
					if rng.IntN(2) == 0 {
						lost |= 1 << shard
					} else {
						shards[shard].failReadAt = rng.Int64N(g.ShardBytes())
					}
				}
			}
			r.wantRange(g, readers(shards, lost), data, off, n)
		}
		r.wantIdle()
	}
}

func TestCorruptBlockIsNotDelivered(t *testing.T) {
	r := newRig(t, 16<<20, Config{})
	g := r.geometry(erasure.Scheme{Data: 4, Parity: 2}, 5<<20)
	data := payload(5<<20, 3)
	shards := r.store(g, data)
	shards[2].data[300<<10] ^= 1
	report := r.wantRange(g, readers(shards, 0), data, 0, 5<<20)
	if len(report.Failed) != 1 || report.Failed[0].Shard != 2 || report.ReconstructedBytes == 0 {
		t.Errorf("report = %+v", report)
	}
}

func TestSmallRangeReadsItsBlocksOnly(t *testing.T) {
	r := newRig(t, 16<<20, Config{})
	g := r.geometry(erasure.Scheme{Data: 4, Parity: 2}, 8<<20)
	data := payload(8<<20, 3)
	shards := r.store(g, data)
	for _, test := range []struct {
		off, n int64
		want   ReadCost
	}{
		{0, 1, ReadCost{1, 64 << 10}},
		{64 << 10, 64 << 10, ReadCost{1, 64 << 10}},
		{64<<10 - 1, 2, ReadCost{1, 128 << 10}},
		{256<<10 - 1, 2, ReadCost{2, 128 << 10}},
		{1 << 20, 1 << 20, ReadCost{4, 1 << 20}},
		{0, 2 << 20, ReadCost{4, 2 << 20}},
	} {
		for _, s := range shards {
			s.reads, s.readBytes = 0, 0
		}
		r.wantRange(g, readers(shards, 0), data, test.off, test.n)
		var got ReadCost
		for _, s := range shards {
			got.Calls += s.reads
			got.Bytes += s.readBytes
		}
		if got != test.want {
			t.Errorf("range %d+%d cost %+v; want %+v", test.off, test.n, got, test.want)
		}
	}
}

// ReadCost is what a read costs the drives.
type ReadCost struct {
	Calls int
	Bytes int64
}

// The memory that the body is read into is what the drives are given; and what they fill is what the
// client gets. Nothing is copied on the way.
func TestNothingIsCopied(t *testing.T) {
	r := newRig(t, 16<<20, Config{})
	for _, s := range parseSchemes(t, "1+2", "4+2") {
		g := r.geometry(s, 5<<20+4*4096-1)
		data := payload(g.SizeBytes, 3)
		shards := newShards(g)
		for _, shard := range shards {
			shard.keep = true
		}
		body := &spy{r: bytes.NewReader(data)}
		var digested int64
		_, err := r.Write(context.Background(), g, writers(shards), body, func(p []byte) { digested += int64(len(p)) })
		if err != nil || digested != g.SizeBytes {
			t.Fatalf("Write: %v, digested %d", err, digested)
		}
		wantWithin(t, "written data", shards[:s.Data], body.seen)
		if s.Data == 1 {
			wantWithin(t, "written copies", shards[1:], body.seen)
		}
		for _, shard := range shards {
			shard.seen = nil
		}
		client := &spy{}
		if _, err := r.Read(context.Background(), g, readers(shards, 0), 0, g.SizeBytes, client); err != nil {
			t.Fatal(err)
		}
		wantWithin(t, "read data", shards[:s.Data], client.seen)
	}
}

// spy remembers the memory that it is given.
type spy struct {
	r    io.Reader
	seen [][]byte
}

func (s *spy) Read(p []byte) (int, error) {
	s.seen = append(s.seen, p)
	return s.r.Read(p)
}

func (s *spy) Write(p []byte) (int, error) {
	s.seen = append(s.seen, p)
	return len(p), nil
}

func wantWithin(t *testing.T, what string, shards []*fakeShard, regions [][]byte) {
	t.Helper()
	for _, s := range shards {
		for _, b := range s.seen {
			found := false
			at := uintptr(unsafe.Pointer(&b[0]))
			for _, region := range regions {
				start := uintptr(unsafe.Pointer(&region[0]))
				found = found || at >= start && at < start+uintptr(len(region))
			}
			if !found {
				t.Fatalf("%s: a buffer of %d bytes is not the one of the other side", what, len(b))
			}
		}
	}
}

func TestRebuild(t *testing.T) {
	r := newRig(t, 32<<20, Config{})
	ctx := context.Background()
	for _, s := range parseSchemes(t, "1+2", "2+2", "4+2", "16+4") {
		for _, size := range []int64{1, 300 << 10, 5<<20 + 77} {
			g := r.geometry(s, size)
			shards := r.store(g, payload(size, 5))
			for lost := uint(1); lost < 1<<min(s.Shards(), 6); lost++ {
				if bits.OnesCount(lost) > s.Parity {
					continue
				}
				fresh := newShards(g)
				var missing []int
				var to []ShardWriter
				for j := range shards {
					if lost>>j&1 == 1 {
						missing, to = append(missing, j), append(to, fresh[j])
					}
				}
				if _, err := r.Rebuild(ctx, g, readers(shards, lost), missing, to); err != nil {
					t.Fatalf("Rebuild %v of %d bytes, lost %b: %v", s, size, lost, err)
				}
				for _, j := range missing {
					if !bytes.Equal(fresh[j].data, shards[j].data) || cmp.Diff(fresh[j].crcs, shards[j].crcs) != "" {
						t.Fatalf("Rebuild %v of %d bytes, lost %b: shard %d differs", s, size, lost, j)
					}
				}
				r.wantIdle()
			}
		}
	}
}

func TestRebuildFailures(t *testing.T) {
	r := newRig(t, 32<<20, Config{})
	ctx := context.Background()
	g := r.geometry(erasure.Scheme{Data: 4, Parity: 2}, 12<<20)
	shards := r.store(g, payload(12<<20, 5))
	fresh := newFakeShard(g)
	shards[1].failReadAt = 2 << 20 // in a later step than the first
	report, err := r.Rebuild(ctx, g, readers(shards, 1), []int{0}, []ShardWriter{fresh})
	if err != nil || !bytes.Equal(fresh.data, shards[0].data) || len(report.Failed) != 1 {
		t.Errorf("Rebuild with a failing source = %+v, %v", report, err)
	}
	shards[2].failReadAt = 0
	_, err = r.Rebuild(ctx, g, readers(shards, 1), []int{0}, []ShardWriter{newFakeShard(g)})
	if !errors.Is(err, ErrTooFewShards) || !errors.Is(err, errDrive) {
		t.Errorf("Rebuild with two failing sources = %v; want ErrTooFewShards", err)
	}
	shards[1].failReadAt, shards[2].failReadAt = -1, -1
	bad := newFakeShard(g)
	bad.failWriteAt = 1 << 20
	_, err = r.Rebuild(ctx, g, readers(shards, 1), []int{0}, []ShardWriter{bad})
	if shard := (*ShardError)(nil); !errors.As(err, &shard) || shard.Shard != 0 {
		t.Errorf("Rebuild to a failing drive = %v; want a ShardError", err)
	}
	r.wantIdle()
}

func TestDigestSeesTheBody(t *testing.T) {
	r := newRig(t, 16<<20, Config{})
	g := r.geometry(erasure.Scheme{Data: 2, Parity: 1}, 3<<20+5)
	data := payload(g.SizeBytes, 9)
	shards := newShards(g)
	sum, more := md5.New(), payload(100, 1)
	body := io.MultiReader(&trickle{p: data}, bytes.NewReader(more))
	res, err := r.Write(context.Background(), g, writers(shards), body, func(p []byte) { sum.Write(p) })
	if want := md5.Sum(data); err != nil || !bytes.Equal(sum.Sum(nil), want[:]) {
		t.Errorf("Write = %v; MD5 %x, want %x", err, sum.Sum(nil), want)
	}
	if res.CRC64NVME != crc64nvme.Checksum(data) {
		t.Error("wrong CRC")
	}
	if rest, _ := io.ReadAll(body); !bytes.Equal(rest, more) {
		t.Errorf("%d bytes left of the body; want %d", len(rest), len(more))
	}
}
