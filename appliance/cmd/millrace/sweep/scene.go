package sweep

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
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
	own    *local // puts what is read; the only worker if the sweep has no others
	size   int64
	prefix string
	keys   int64 // keys 0 … keys-1 were, or may have been, put
}

// workers are those who do the loads.
func (s *scene) workers() []Worker {
	if len(s.config.Workers) > 0 {
		return s.config.Workers
	}
	return []Worker{s.own}
}

// load is the part of a row that worker i of n does.
func (s *scene) load(i, n, concurrency int) Load {
	c := s.config
	share := func(v int64) int64 { return (v*int64(i+1))/int64(n) - v*int64(i)/int64(n) }
	l := Load{Op: c.Op, Bucket: c.Bucket, Prefix: s.prefix, SizeBytes: s.size, Keys: c.Keys, Verify: c.Verify,
		Checksum: c.Checksum, Duration: c.Duration, Count: share(c.Count), MaxBytes: share(c.MaxBytes),
		Loops: int(share(int64(concurrency))), First: int64(i), Step: int64(n)}
	if c.Count > 0 && l.Count == 0 {
		l.Loops = 0
	}
	return l
}

// prepare stores the objects that are then read.
func (s *scene) prepare(ctx context.Context) error {
	workers := min(prepareWorkers, s.config.Keys)
	if err := s.own.Prepare(ctx, Load{Op: Put, SizeBytes: s.size, Loops: workers}); err != nil {
		return err
	}
	s.keys = int64(s.config.Keys)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var group sync.WaitGroup
	for w := range workers {
		group.Go(func() {
			for n := int64(w); n < s.keys && ctx.Err() == nil; n += int64(workers) {
				body := s.own.bodies.body(n, s.own.buffer(w))
				o := client.PutOptions{NoChecksum: true}
				if _, err := s.to.Put(ctx, s.config.Bucket, keyOf(s.prefix, n), body, o); err != nil {
					cancel(err)
				}
			}
		})
	}
	group.Wait()
	return context.Cause(ctx)
}

// cleanUp removes the keys that may be there, also when ctx has ended.
func (s *scene) cleanUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpTimeout)
	defer cancel()
	var keys []string
	for n := range s.keys {
		keys = append(keys, keyOf(s.prefix, n))
	}
	s.keys = 0
	for batch := range slices.Chunk(keys, deleteBatch) {
		if err := s.to.DeleteMany(ctx, s.config.Bucket, batch); err != nil {
			return fmt.Errorf("clean up: %w", err)
		}
	}
	return nil
}

// measure runs one row. An error means that there is no row; operations that fail are in the row.
func (s *scene) measure(ctx context.Context, concurrency int) (Row, error) {
	workers := s.workers()
	outcomes, errs := make([]Outcome, len(workers)), make([]error, len(workers))
	each := func(do func(i int) error) error {
		var group sync.WaitGroup
		for i := range workers {
			group.Go(func() { errs[i] = do(i) })
		}
		group.Wait()
		return errors.Join(errs...)
	}
	if err := each(func(i int) error { return workers[i].Prepare(ctx, s.load(i, len(workers), concurrency)) }); err != nil {
		return Row{}, err
	}
	before, err := s.readServer(ctx, true)
	if err != nil {
		return Row{}, err
	}
	var sum Outcome
	err = each(func(i int) (err error) {
		outcomes[i], err = workers[i].Run(ctx)
		return err
	})
	for i := range outcomes {
		sum.add(&outcomes[i])
		if n := outcomes[i].Keys; s.config.Op == Put && n > 0 {
			s.keys = max(s.keys, int64(i)+int64(len(workers))*(n-1)+1)
		}
	}
	if err != nil {
		return Row{}, err
	}
	after, err := s.readServer(ctx, false)
	if err != nil {
		return Row{}, err
	}
	row := s.row(&sum)
	row.Concurrency, row.Processes = concurrency, len(s.config.Workers)
	if s.config.Server != nil {
		row.Server = usageBetween(before, after, sum.Ops, sum.Bytes)
	}
	row.RDMA = witnessOf(&sum, row.Server)
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

// row makes the row of what was done.
func (s *scene) row(sum *Outcome) Row {
	slices.Sort(sum.Latencies)
	return Row{
		Op: s.config.Op, SizeBytes: s.size, Seconds: sum.Seconds, Ops: sum.Ops, Errors: sum.Errors,
		FirstError: sum.FirstError, Transfer: client.Transfer{Transport: sum.Transfer.Transport,
			Provider: sum.Transfer.Provider, RDMABytes: sum.RDMABytes, Reason: sum.Transfer.Reason},
		OpsPerS:  float64(sum.Ops) / sum.Seconds,
		MiBPerS:  float64(sum.Bytes) / (1 << 20) / sum.Seconds,
		KeysPerS: float64(sum.Entries) / sum.Seconds,
		P50Ms:    quantile(sum.Latencies, .5), P99Ms: quantile(sum.Latencies, .99),
		Client: costOf(sum.CPUSeconds, sum.Ops, sum.Bytes),
	}
}

// quantile is the smallest latency that at least the share q of all don't exceed, in milliseconds.
func quantile(sorted []time.Duration, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	rank := int(q*float64(len(sorted)) + .999999)
	return float64(sorted[min(max(rank, 1), len(sorted))-1]) / float64(time.Millisecond)
}
