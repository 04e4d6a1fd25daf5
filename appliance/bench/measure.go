package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"github.com/millrace/millrace/appliance/cmd/millrace/sweep"
	"github.com/millrace/millrace/appliance/config"
	"github.com/millrace/millrace/s3/client"
)

const (
	kib = 1 << 10
	mib = 1 << 20
	gib = 1 << 30

	rangeBytes    = 64 * kib
	rangeReads    = 64
	partBytes     = 64 * mib
	partsParallel = 4
	listings      = 3
	maxPutBytes   = gib // in one round, so that drives in memory suffice
)

// unit says what servers are compared by.
type unit int

const (
	perOperation unit = iota // CPU time for one operation
	perByte                  // CPU time for one GiB
	perListing               // time
	perMemory                // the peak of the resident memory
)

// result is what one or several rounds of the same work gave on one server.
type result struct {
	ops, bytes int64
	seconds    float64
	cpuSeconds float64 // of the server
	p50Ms      []float64
	p99Ms      []float64
	peakMiB    float64 // of the server: the largest of all rounds
	readBytes  int64   // from the drives; only where the work counts it
}

func (r *result) add(other result) {
	r.ops += other.ops
	r.bytes += other.bytes
	r.seconds += other.seconds
	r.cpuSeconds += other.cpuSeconds
	r.p50Ms = append(r.p50Ms, other.p50Ms...)
	r.p99Ms = append(r.p99Ms, other.p99Ms...)
	r.peakMiB = max(r.peakMiB, other.peakMiB)
	r.readBytes += other.readBytes
}

// work is one row of the report.
type work struct {
	name string
	unit unit
	once bool // one round, since it takes long
	do   func(ctx context.Context, o options, s *server) (result, error)
}

// swept is a work that `millrace bench` can do. Small objects are left there: some servers remove
// them later, which would be counted in what is measured then.
func swept(op sweep.Op, size int64, u unit, name string, adjust func(*sweep.Config)) work {
	return work{name: name, unit: u, do: func(ctx context.Context, o options, s *server) (result, error) {
		c := sweep.Config{
			Op: op, Bucket: bucket, Prefix: fmt.Sprintf("%s-%d/", op, time.Now().UnixNano()), Sizes: []int64{size},
			Concurrencies: []int{o.concurrency}, Duration: time.Duration(o.seconds * float64(time.Second)),
			MaxBytes: maxPutBytes, Keys: int(min(256, gib/size)), Keep: size < mib, Server: s.process(),
		}
		if op != sweep.Put {
			c.MaxBytes = 0
		}
		if adjust != nil {
			adjust(&c)
		}
		var out result
		err := sweep.Run(ctx, c, s.Client, func(r sweep.Row) error {
			if r.Errors > 0 {
				return fmt.Errorf("%d of %d operations failed: %s", r.Errors, r.Errors+r.Ops, r.FirstError)
			}
			out = fromRow(r)
			return nil
		})
		return out, err
	}}
}

func fromRow(r sweep.Row) result {
	out := result{ops: r.Ops, seconds: r.Seconds, p50Ms: []float64{r.P50Ms}, p99Ms: []float64{r.P99Ms}}
	if r.Op == sweep.Put || r.Op == sweep.Get {
		out.bytes = r.Ops * r.SizeBytes
	}
	if r.Server != nil {
		out.cpuSeconds, out.peakMiB = r.Server.Seconds, r.Server.PeakRSSMiB
	}
	return out
}

func works(o options) []work {
	out := []work{
		swept(sweep.Put, 4*kib, perOperation, "PUT 4 KiB", nil),
		swept(sweep.Get, 4*kib, perOperation, "GET 4 KiB", nil),
		swept(sweep.Head, 4*kib, perOperation, "HEAD", nil),
		swept(sweep.Put, mib, perByte, "PUT 1 MiB", nil),
		swept(sweep.Get, mib, perByte, "GET 1 MiB", nil),
		swept(sweep.Put, 64*mib, perByte, "PUT 64 MiB", nil),
		swept(sweep.Get, 64*mib, perByte, "GET 64 MiB", nil),
	}
	for _, size := range o.large {
		out = append(out, largeWorks(size)...)
	}
	if o.listKeys > 0 {
		w := swept(sweep.List, 64, perListing, fmt.Sprintf("list %d keys", o.listKeys), func(c *sweep.Config) {
			c.Keys, c.Count, c.Duration, c.Concurrencies = o.listKeys, listings, 0, []int{1}
		})
		w.once = true
		out = append(out, w)
	}
	return slices.DeleteFunc(out, func(w work) bool { return !o.only.MatchString(w.name) })
}

// largeWorks store one large object, read it, read ranges of it, and remove it.
func largeWorks(size config.Size) []work {
	key := "large-" + size.String()
	one := func(name string, u unit, do func(ctx context.Context, s *server) (result, error)) work {
		return work{name: name, unit: u, once: true, do: func(ctx context.Context, _ options, s *server) (result, error) {
			return s.watch(ctx, func() (result, error) { return do(ctx, s) })
		}}
	}
	return []work{
		one("PUT one of "+size.String(), perMemory, func(ctx context.Context, s *server) (result, error) {
			o := client.UploadOptions{PartBytes: partBytes, Parallel: partsParallel, SizeBytes: int64(size)}
			random := rand.NewChaCha8([32]byte{})
			r, err := s.Upload(ctx, bucket, key, io.LimitReader(random, int64(size)), o)
			return result{ops: 1, bytes: r.SizeBytes}, err
		}),
		one("GET one of "+size.String(), perMemory, func(ctx context.Context, s *server) (result, error) {
			r, err := s.Get(ctx, bucket, key, io.Discard, client.GetOptions{NoVerify: true})
			return result{ops: 1, bytes: r.Bytes}, err
		}),
		one("range 64 KiB of "+size.String(), perOperation, func(ctx context.Context, s *server) (result, error) {
			out, err := readRanges(ctx, s, key, int64(size))
			return out, errors.Join(err, s.Delete(ctx, bucket, key))
		}),
	}
}

// readRanges reads ranges that begin anywhere, one after the other, and counts what the drives gave.
func readRanges(ctx context.Context, s *server, key string, size int64) (result, error) {
	before, err := s.driveReadBytes(ctx)
	if err != nil {
		return result{}, err
	}
	var out result
	for range rangeReads {
		start := time.Now()
		r, err := s.Get(ctx, bucket, key, io.Discard,
			client.GetOptions{Offset: rand.Int64N(size - rangeBytes), Length: rangeBytes})
		if err != nil {
			return out, err
		}
		out.ops++
		out.bytes += r.Bytes
		ms := float64(time.Since(start)) / float64(time.Millisecond)
		out.p50Ms, out.p99Ms = append(out.p50Ms, ms), append(out.p99Ms, ms)
	}
	after, err := s.driveReadBytes(ctx)
	out.readBytes = after - before
	return out, err
}

// watch adds to the result of do what the server used meanwhile.
func (s *server) watch(ctx context.Context, do func() (result, error)) (result, error) {
	before, err := s.process().Read(ctx, true)
	if err != nil {
		return result{}, err
	}
	start := time.Now()
	out, err := do()
	if err != nil {
		return out, err
	}
	out.seconds = time.Since(start).Seconds()
	after, err := s.process().Read(ctx, false)
	out.cpuSeconds = after.CPUSeconds - before.CPUSeconds
	out.peakMiB = float64(after.PeakBytes) / mib
	return out, err
}

// measureAll does every work on every server by turns. What was measured before an error is
// in the report.
func measureAll(ctx context.Context, o options, servers []*server) (report, error) {
	var r report
	for _, s := range servers {
		r.servers = append(r.servers, s.name)
	}
	for i, w := range works(o) {
		fmt.Fprintln(os.Stderr, "measuring", w.name)
		if i == 0 { // once uncounted: heaps and log files grow in the first seconds
			if _, err := w.measure(ctx, o, servers); err != nil {
				return r, fmt.Errorf("%s: %w", w.name, err)
			}
		}
		row, err := w.measure(ctx, o, servers)
		if err != nil {
			return r, fmt.Errorf("%s: %w", w.name, err)
		}
		r.rows = append(r.rows, row)
	}
	return r, nil
}

// measure does the work on the servers by turns, round by round.
func (w work) measure(ctx context.Context, o options, servers []*server) (row, error) {
	out := row{work: w, results: make([]result, len(servers))}
	rounds := o.rounds
	if w.once {
		rounds = 1
	}
	for range rounds {
		for i, s := range servers {
			r, err := w.do(ctx, o, s)
			if err != nil {
				return out, fmt.Errorf("%s: %w", s.name, err)
			}
			out.results[i].add(r)
		}
	}
	return out, nil
}
