package segment

import (
	"context"
	"fmt"
	"sync"

	"github.com/millrace/millrace/appliance/arena"
	"github.com/millrace/millrace/appliance/erasure"
)

// rebuildBytes is about how much is read from the sources in one step.
const rebuildBytes = 4 << 20

// Rebuild computes the missing shards from the others and writes them: missing[i] to to[i]. A nil shard of
// from is not there; one that fails is reported and not asked again. The error is ErrTooFewShards when too
// few are left, a *ShardError when a writer failed, or that of ctx or of the arena as it is. It waits for
// slow shards, and leaves no call running.
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
	b := &rebuilder{geo: g, coder: coder, from: append([]ShardReader(nil), from...), missing: missing, to: to}
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
	geo     erasure.Geometry
	coder   *erasure.Coder
	from    []ShardReader
	missing []int
	to      []ShardWriter
	errs    []error // of the shards of from
	report  ReadReport
	memory  *arena.Buffers // one buffer for each source, then one for each missing shard
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
	defer b.memory.Release()
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
		parallel(batch, func(j int) { b.errs[j] = b.from[j].ReadShard(off, [][]byte{shards[j]}) })
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
	errs := make([]error, len(b.to))
	index := make([]int, len(b.to))
	for i := range index {
		index[i] = i
	}
	parallel(index, func(i int) { errs[i] = b.to[i].WriteAt([][]byte{shards[b.missing[i]]}, off) })
	for i, err := range errs {
		if err != nil {
			return &ShardError{Shard: b.missing[i], Err: err}
		}
	}
	return nil
}

// parallel calls f for each of list at once, and returns when all have.
func parallel(list []int, f func(int)) {
	var wg sync.WaitGroup
	for _, j := range list[1:] {
		wg.Go(func() { f(j) })
	}
	f(list[0])
	wg.Wait()
}
