package main

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// sample is what one or several measurements of the same work gave. Samples add up.
type sample struct {
	ops       int
	bytes     int64 // of objects, as the client saw them
	wall      time.Duration
	cpu       time.Duration // of the server
	peakBytes int64         // of the server's resident memory: the largest of all rounds
	readBytes int64         // from drives; only where the work asks for it
	latencies []time.Duration
}

func (s *sample) add(other sample) {
	s.ops += other.ops
	s.bytes += other.bytes
	s.wall += other.wall
	s.cpu += other.cpu
	s.peakBytes = max(s.peakBytes, other.peakBytes)
	s.readBytes += other.readBytes
	s.latencies = append(s.latencies, other.latencies...)
}

// loop says how often and by how many workers an operation is done.
type loop struct {
	workers int
	limit   int           // operations; 0 is no limit
	length  time.Duration // no operation begins later; 0 is no limit
}

// run calls do with 0, 1, 2 … from all workers, each when its last call is done. Every number
// below the returned sample's ops was used. The first error ends the loop.
func (l loop) run(ctx context.Context, do func(ctx context.Context, i int) (int64, error)) (sample, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next, bytes atomic.Int64
	latencies := make([][]time.Duration, l.workers)
	start := time.Now()
	var wg sync.WaitGroup
	for w := range l.workers {
		wg.Go(func() {
			for ctx.Err() == nil && (l.length == 0 || time.Since(start) < l.length) {
				i := int(next.Add(1)) - 1
				if l.limit > 0 && i >= l.limit {
					return
				}
				begin := time.Now()
				n, err := do(ctx, i)
				if err != nil {
					cancel(err)
					return
				}
				latencies[w] = append(latencies[w], time.Since(begin))
				bytes.Add(n)
			}
		})
	}
	wg.Wait()
	out := sample{bytes: bytes.Load(), wall: time.Since(start)}
	for _, l := range latencies {
		out.latencies = append(out.latencies, l...)
	}
	out.ops = len(out.latencies)
	return out, context.Cause(ctx)
}
