package segment

import (
	"context"
	"fmt"
	"slices"

	"github.com/minio/crc64nvme"

	"github.com/millrace/millrace/appliance/arena"
	"github.com/millrace/millrace/appliance/erasure"
)

// rebuildBytes is about how much is read from the sources in one step.
const rebuildBytes = 4 << 20

// Rebuild computes the missing shards from the others and writes them: missing[i] to to[i]. A nil shard of
// from is not there; one that fails is reported and not asked again. The error is ErrTooFewShards when too
// few are left, a *ShardError when a writer failed or a drive died that did not answer, or that of ctx or
// of the arena as it is. It waits for slow shards, and leaves no call running but those to a Mortal that is dead.
func (o *IO) Rebuild(ctx context.Context, g erasure.Geometry, from []ShardReader, missing []int, to []ShardWriter,
) (ReadReport, error) {
	if err := checkShards(g, len(from)); err != nil {
		return ReadReport{}, err
	}
	if len(missing) != len(to) || len(missing) > len(from) {
		return ReadReport{}, fmt.Errorf("rebuild of %d shards to %d writers", len(missing), len(to))
	}
	coder, err := o.coders.Coder(g.Scheme)
	if err != nil {
		return ReadReport{}, err
	}
	b := &rebuilder{io: o, geo: g, coder: coder, from: append([]ShardReader(nil), from...), missing: missing, to: to}
	b.errs = make([]error, len(from))
	for _, j := range missing {
		if j < 0 || j >= len(from) {
			return ReadReport{}, fmt.Errorf("rebuild of shard %d of scheme %v", j, g.Scheme)
		}
		b.from[j] = nil
	}
	if len(missing) == 0 {
		return ReadReport{}, nil
	}
	err = b.run(ctx, o.cfg.Arena)
	return b.report, err
}

type rebuilder struct {
	io      *IO
	geo     erasure.Geometry
	coder   *erasure.Coder
	from    []ShardReader
	missing []int
	to      []ShardWriter
	errs    []error // of the shards of from
	report  ReadReport
	memory  *arena.Buffers // one buffer for each source, then one for each missing shard
	hold    hold           // of memory
}

// run moves rows: the same range of every shard. Coding knows no stripes, so rows may cross them.
func (b *rebuilder) run(ctx context.Context, a *arena.Arena) error {
	k := b.geo.Scheme.Data
	rows := min(arena.MaxBytes, max(erasure.UnitBytes, rebuildBytes/k/erasure.UnitBytes*erasure.UnitBytes))
	rows = int(min(int64(rows), b.geo.ShardBytes()))
	buffers := k + len(b.missing)
	if k == 1 {
		buffers = 1
	}
	var err error
	if b.memory, err = a.AcquireN(ctx, buffers, rows); err != nil {
		return err
	}
	b.hold.bufs = []*arena.Buffers{b.memory}
	b.hold.refs.Store(1)
	defer b.hold.leave()
	for off := int64(0); off < b.geo.ShardBytes(); off += int64(rows) {
		if err := ctx.Err(); err != nil {
			return err
		}
		n := int(min(int64(rows), b.geo.ShardBytes()-off))
		shards, err := b.read(off, n)
		if err != nil {
			return err
		}
		if err := b.write(shards, off, n); err != nil {
			return err
		}
	}
	return nil
}

// read fills k shards; one that fails is replaced by another.
func (b *rebuilder) read(off int64, n int) ([][]byte, error) {
	shards := make([][]byte, len(b.from))
	for free := b.freeBuffers(); ; {
		var batch []int
		for j := range b.from {
			if b.from[j] != nil && shards[j] == nil && len(free) > 0 {
				shards[j], free = free[0][:n], free[1:]
				batch = append(batch, j)
			}
		}
		if len(free) > 0 {
			return nil, tooFew(b.errs)
		}
		if len(batch) == 0 {
			return shards, nil
		}
		buffers := slices.Clone(shards) // a call left behind must not meet changes
		left := b.io.waiters.together(batch, &b.hold, func(j int) any { return b.from[j] },
			func(j int) error { return b.from[j].ReadShard(off, [][]byte{buffers[j]}) }, b.errs)
		if left {
			return nil, firstLeft(b.errs, batch)
		}
		for _, j := range batch {
			if err := b.errs[j]; err != nil {
				b.report.Failed = append(b.report.Failed, ShardError{Shard: j, Err: err})
				b.from[j] = nil
				free = append(free, shards[j])
				shards[j] = nil
			}
		}
	}
}

func (b *rebuilder) freeBuffers() [][]byte {
	free := make([][]byte, b.geo.Scheme.Data)
	for i := range free {
		free[i] = b.memory.At(i)
	}
	return free
}

// write computes the missing shards and writes them.
func (b *rebuilder) write(shards [][]byte, off int64, n int) error {
	k := b.geo.Scheme.Data
	if k == 1 { // copies: the one that was read is written
		var source []byte
		for _, s := range shards {
			if s != nil {
				source = s
			}
		}
		for _, j := range b.missing {
			shards[j] = source
		}
	} else {
		required := make([]bool, len(shards))
		for i, j := range b.missing {
			shards[j], required[j] = b.memory.At(k + i)[:0:n], true
		}
		if err := b.coder.Reconstruct(shards, required); err != nil {
			return err
		}
		b.report.ReconstructedBytes += int64(n) * int64(len(b.missing))
	}
	errs := make([]error, len(shards))
	to := make([]ShardWriter, len(shards))
	crcs := make([][]uint64, len(shards))
	for i, j := range b.missing {
		to[j], crcs[j] = b.to[i], blockCRCs(shards[j])
	}
	b.io.waiters.together(b.missing, &b.hold, func(j int) any { return to[j] },
		func(j int) error { return to[j].WriteAt([][]byte{shards[j]}, off, crcs[j]) }, errs)
	for _, j := range b.missing {
		if errs[j] != nil {
			return &ShardError{Shard: j, Err: errs[j]}
		}
	}
	return nil
}

// blockCRCs are the CRC64NVME of the blocks of p.
func blockCRCs(p []byte) []uint64 {
	crcs := make([]uint64, 0, len(p)/erasure.BlockBytes+1)
	for at := 0; at < len(p); at += erasure.BlockBytes {
		crcs = append(crcs, crc64nvme.Checksum(p[at:min(at+erasure.BlockBytes, len(p))]))
	}
	return crcs
}

// firstLeft names the shard whose call was left behind.
func firstLeft(errs []error, batch []int) error {
	for _, j := range batch {
		if errs[j] == ErrLeft {
			return &ShardError{Shard: j, Err: ErrLeft}
		}
	}
	return ErrLeft
}
