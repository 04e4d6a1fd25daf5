package sweep

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/millrace/millrace/s3/client"
)

const (
	prepareWorkers = 8
	deleteBatch    = 1000
	cleanUpTimeout = 10 * time.Minute
)

// scene is one size of a sweep.
type scene struct {
	config *Config
	to     Endpoint
	size   int64
	bodies *bodies
	prefix string
	keys   atomic.Int64 // keys 0 … keys-1 were handed out
}

func (s *scene) key(n int64) string { return fmt.Sprintf("%s%08d", s.prefix, n) }

// prepare stores the objects that are then read.
func (s *scene) prepare(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var group sync.WaitGroup
	for range min(prepareWorkers, s.config.Keys) {
		group.Go(func() {
			buf := s.bodies.buffer()
			for ctx.Err() == nil {
				n := s.keys.Add(1) - 1
				if n >= int64(s.config.Keys) {
					return
				}
				body := s.bodies.body(n, buf)
				if _, err := s.to.Put(ctx, s.config.Bucket, s.key(n), body, client.PutOptions{NoChecksum: true}); err != nil {
					cancel(err)
				}
			}
		})
	}
	group.Wait()
	s.keys.Store(int64(s.config.Keys))
	return context.Cause(ctx)
}

// cleanUp removes the keys that were handed out, also when ctx has ended.
func (s *scene) cleanUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpTimeout)
	defer cancel()
	var keys []string
	for n := range s.keys.Load() {
		keys = append(keys, s.key(n))
	}
	s.keys.Store(0)
	for batch := range slices.Chunk(keys, deleteBatch) {
		if err := s.to.DeleteMany(ctx, s.config.Bucket, batch); err != nil {
			return fmt.Errorf("clean up: %w", err)
		}
	}
	return nil
}

// tally is what one worker counts.
type tally struct {
	ops, bytes, entries, errors int64
	firstError                  error
	latencies                   []time.Duration
	transfer                    client.Transfer
}

// measure runs one row. An error means that there is no row; operations that fail are in the row.
func (s *scene) measure(ctx context.Context, concurrency int) (Row, error) {
	before, err := s.readServer(ctx, true)
	if err != nil {
		return Row{}, err
	}
	tallies := make([]tally, concurrency)
	budget := &budget{count: s.config.Count, bytes: s.config.MaxBytes}
	cpu, start := ownCPU(), time.Now()
	if s.config.Duration > 0 {
		budget.end = start.Add(s.config.Duration)
	}
	var group sync.WaitGroup
	for w := range tallies {
		group.Go(func() { s.work(ctx, w, budget, &tallies[w]) })
	}
	group.Wait()
	elapsed := time.Since(start)
	cpu = ownCPU() - cpu
	if err := ctx.Err(); err != nil {
		return Row{}, err
	}
	after, err := s.readServer(ctx, false)
	if err != nil {
		return Row{}, err
	}
	row, bytes := s.sum(tallies, elapsed)
	row.Concurrency = concurrency
	row.Client = costOf(cpu.Seconds(), row.Ops, bytes)
	if s.config.Server != nil {
		row.Server = usageBetween(before, after, row.Ops, bytes)
	}
	return row, nil
}

func (s *scene) readServer(ctx context.Context, reset bool) (Reading, error) {
	if s.config.Server == nil {
		return Reading{}, nil
	}
	r, err := s.config.Server.Read(ctx, reset)
	if err != nil {
		return Reading{}, fmt.Errorf("read the server's figures: %w", err)
	}
	return r, nil
}

// budget ends a row.
type budget struct {
	end          time.Time // zero for no end
	count, bytes int64     // 0 for no limit
	started      atomic.Int64
	moved        atomic.Int64
}

// next lets one more operation start.
func (b *budget) next() bool {
	if !b.end.IsZero() && !time.Now().Before(b.end) || b.bytes > 0 && b.moved.Load() >= b.bytes {
		return false
	}
	return b.count <= 0 || b.started.Add(1) <= b.count
}

// maxErrors ends a worker's loop: a server that refuses everything is not worth waiting for.
const maxErrors = 100

func (s *scene) work(ctx context.Context, worker int, b *budget, t *tally) {
	random := rand.New(rand.NewPCG(uint64(worker), uint64(s.size)))
	buf := s.bodies.buffer()
	for ctx.Err() == nil && t.errors < maxErrors && b.next() {
		start := time.Now()
		bytes, err := s.once(ctx, random, buf, t)
		if err != nil {
			t.errors++
			if t.firstError == nil {
				t.firstError = err
			}
			continue
		}
		t.latencies = append(t.latencies, time.Since(start))
		t.ops++
		t.bytes += bytes
		b.moved.Add(bytes)
	}
}

// once does one operation and returns the bytes that it moved.
func (s *scene) once(ctx context.Context, random *rand.Rand, buf []byte, t *tally) (int64, error) {
	c := s.config
	switch c.Op {
	case Put:
		n := s.keys.Add(1) - 1
		result, err := s.to.Put(ctx, c.Bucket, s.key(n), s.bodies.body(n, buf), client.PutOptions{NoChecksum: !c.Checksum})
		t.transfer = result.Transfer
		return s.size, err
	case Get:
		n := random.Int64N(int64(c.Keys))
		var sink sink
		if c.Verify {
			sink.want = s.bodies.body(n, buf)
		}
		result, err := s.to.Get(ctx, c.Bucket, s.key(n), &sink, client.GetOptions{NoVerify: true})
		if err == nil {
			err = sink.check(s.size)
		}
		t.transfer = result.Transfer
		return s.size, err
	case Head:
		info, err := s.to.Head(ctx, c.Bucket, s.key(random.Int64N(int64(c.Keys))))
		if err == nil && info.SizeBytes != s.size {
			err = fmt.Errorf("head: %d bytes, not %d", info.SizeBytes, s.size)
		}
		return 0, err
	}
	n := int64(0)
	for _, err := range s.to.List(ctx, c.Bucket, client.ListOptions{Prefix: s.prefix}) {
		if err != nil {
			return 0, err
		}
		n++
	}
	if n != int64(c.Keys) {
		return 0, fmt.Errorf("list: %d keys, not %d", n, c.Keys)
	}
	t.entries += n
	return 0, nil
}

// sum makes the row of the tallies; bytes are those that were moved.
func (s *scene) sum(tallies []tally, elapsed time.Duration) (row Row, bytes int64) {
	row = Row{Op: s.config.Op, SizeBytes: s.size, Seconds: elapsed.Seconds()}
	var all []time.Duration
	var entries int64
	for i := range tallies {
		t := &tallies[i]
		row.Ops += t.ops
		row.Errors += t.errors
		bytes += t.bytes
		entries += t.entries
		all = append(all, t.latencies...)
		if row.FirstError == "" && t.firstError != nil {
			row.FirstError = t.firstError.Error()
		}
		if row.Transport == "" {
			row.Transfer = t.transfer
		}
	}
	slices.Sort(all)
	row.OpsPerS = float64(row.Ops) / row.Seconds
	row.MiBPerS = float64(bytes) / (1 << 20) / row.Seconds
	row.KeysPerS = float64(entries) / row.Seconds
	row.P50Ms, row.P99Ms = quantile(all, .5), quantile(all, .99)
	return row, bytes
}

// quantile is the smallest latency that at least the share q of all don't exceed, in milliseconds.
func quantile(sorted []time.Duration, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	rank := int(q*float64(len(sorted)) + .999999)
	return float64(sorted[min(max(rank, 1), len(sorted))-1]) / float64(time.Millisecond)
}

// ownCPU is the user and system time of this process.
func ownCPU() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// sink takes the bytes of a GET.
type sink struct {
	n    int64
	want []byte // nil: only counted
	bad  bool
}

// Write implements io.Writer.
func (s *sink) Write(p []byte) (int, error) {
	if s.want != nil && !s.bad {
		end := s.n + int64(len(p))
		s.bad = end > int64(len(s.want)) || string(s.want[s.n:end]) != string(p)
	}
	s.n += int64(len(p))
	return len(p), nil
}

func (s *sink) check(size int64) error {
	if s.n != size {
		return fmt.Errorf("get: %d bytes, not %d", s.n, size)
	}
	if s.bad {
		return errors.New("get: the content is not what was put")
	}
	return nil
}
