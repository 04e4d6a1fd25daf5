package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"strings"
	"time"

	"github.com/millrace/millrace/appliance/config"
	"github.com/millrace/millrace/s3/client"
)

const (
	kib = 1 << 10
	mib = 1 << 20
	gib = 1 << 30

	listWorkers   = 16
	listBodyBytes = 64
	listBucket    = "bench-list"
	rangeBytes    = 64 * kib
	rangeReads    = 64
	partBytes     = 64 * mib
	partsParallel = 4
)

// unit says what the CPU time of a work is divided by.
type unit int

const (
	perOperation unit = iota
	perByte
	perListing // compared by time, not by CPU
	perMemory  // compared by the peak of the resident memory
)

// work is one row of the report.
type work struct {
	name string
	unit unit
	do   func(ctx context.Context, t *target) (sample, error)
	// once: one round is enough, since the work takes long by itself.
	once bool
	// drives: also count what is read from the drives.
	drives bool
}

// target is a server with what was written to it.
type target struct {
	*server
	written map[int64]int // number of objects by size
	body    []byte        // random bytes, shared by all objects
	o       options
}

func (t *target) key(size int64, i int) string { return fmt.Sprintf("%d/%08d", size, i) }

func (t *target) loop(limit int) loop {
	return loop{workers: t.o.concurrency, limit: limit, length: time.Duration(t.o.seconds * float64(time.Second))}
}

// put writes new keys: overwriting would charge some servers with the removal of the old.
func put(size int64, limit int) func(context.Context, *target) (sample, error) {
	return func(ctx context.Context, t *target) (sample, error) {
		first := t.written[size]
		s, err := t.loop(limit).run(ctx, func(ctx context.Context, i int) (int64, error) {
			_, err := t.Put(ctx, bucket, t.key(size, first+i), t.body[:size], client.PutOptions{NoChecksum: true})
			return size, err
		})
		t.written[size] += s.ops
		return s, err
	}
}

func get(size int64) func(context.Context, *target) (sample, error) {
	return func(ctx context.Context, t *target) (sample, error) {
		return t.loop(0).run(ctx, func(ctx context.Context, _ int) (int64, error) {
			key := t.key(size, mathrand.IntN(t.written[size]))
			r, err := t.Get(ctx, bucket, key, io.Discard, client.GetOptions{NoVerify: true})
			return r.Bytes, err
		})
	}
}

func head(size int64) func(context.Context, *target) (sample, error) {
	return func(ctx context.Context, t *target) (sample, error) {
		return t.loop(0).run(ctx, func(ctx context.Context, _ int) (int64, error) {
			_, err := t.Head(ctx, bucket, t.key(size, mathrand.IntN(t.written[size])))
			return 0, err
		})
	}
}

// remove deletes the objects of a size, to make room.
func remove(ctx context.Context, t *target, size int64) error {
	var keys []string
	for i := range t.written[size] {
		keys = append(keys, t.key(size, i))
	}
	t.written[size] = 0
	for len(keys) > 0 {
		n := min(len(keys), client.MaxDeleteKeys)
		if err := t.DeleteMany(ctx, bucket, keys[:n]); err != nil {
			return err
		}
		keys = keys[n:]
	}
	return nil
}

// fill makes the bucket that is listed.
func fill(ctx context.Context, t *target) (sample, error) {
	if err := t.CreateBucket(ctx, listBucket); err != nil {
		return sample{}, err
	}
	l := loop{workers: listWorkers, limit: t.o.listKeys}
	return l.run(ctx, func(ctx context.Context, i int) (int64, error) {
		key := fmt.Sprintf("%03d/%08d", i%1000, i)
		_, err := t.Put(ctx, listBucket, key, t.body[:listBodyBytes], client.PutOptions{NoChecksum: true})
		return listBodyBytes, err
	})
}

func list(ctx context.Context, t *target) (sample, error) {
	return loop{workers: 1, limit: 1}.run(ctx, func(ctx context.Context, _ int) (int64, error) {
		n := 0
		for _, err := range t.List(ctx, listBucket, client.ListOptions{}) {
			if err != nil {
				return 0, err
			}
			n++
		}
		if n != t.o.listKeys {
			return 0, fmt.Errorf("%s listed %d keys of %d", t.name, n, t.o.listKeys)
		}
		return 0, nil
	})
}

func largeKey(size config.Size) string { return "large-" + size.String() }

func putLarge(size config.Size) func(context.Context, *target) (sample, error) {
	return func(ctx context.Context, t *target) (sample, error) {
		return loop{workers: 1, limit: 1}.run(ctx, func(ctx context.Context, _ int) (int64, error) {
			o := client.UploadOptions{PartBytes: partBytes, Parallel: partsParallel, SizeBytes: int64(size)}
			r, err := t.Upload(ctx, bucket, largeKey(size), io.LimitReader(repeat{t.body}, int64(size)), o)
			return r.SizeBytes, err
		})
	}
}

func getLarge(size config.Size) func(context.Context, *target) (sample, error) {
	return func(ctx context.Context, t *target) (sample, error) {
		return loop{workers: 1, limit: 1}.run(ctx, func(ctx context.Context, _ int) (int64, error) {
			r, err := t.Get(ctx, bucket, largeKey(size), io.Discard, client.GetOptions{NoVerify: true})
			return r.Bytes, err
		})
	}
}

// readRanges reads ranges that begin anywhere, one after the other.
func readRanges(size config.Size) func(context.Context, *target) (sample, error) {
	return func(ctx context.Context, t *target) (sample, error) {
		return loop{workers: 1, limit: rangeReads}.run(ctx, func(ctx context.Context, _ int) (int64, error) {
			o := client.GetOptions{Offset: mathrand.Int64N(int64(size) - rangeBytes), Length: rangeBytes}
			r, err := t.Get(ctx, bucket, largeKey(size), io.Discard, o)
			return r.Bytes, err
		})
	}
}

// repeat gives the same bytes again and again.
type repeat struct{ body []byte }

func (r repeat) Read(p []byte) (int, error) { return copy(p, r.body), nil }

// group is a run of works on the same objects, and how to make room after them.
type group struct {
	works []work
	after func(ctx context.Context, t *target) error
}

func sized(size int64, limit int, u unit, name string) group {
	g := group{works: []work{
		{name: "PUT " + name, unit: u, do: put(size, limit)},
		{name: "GET " + name, unit: u, do: get(size)},
	}}
	if u == perOperation {
		g.works = append(g.works, work{name: "HEAD", unit: u, do: head(size)})
	}
	g.after = func(ctx context.Context, t *target) error { return remove(ctx, t, size) }
	return g
}

func groups(o options) []group {
	out := []group{
		sized(4*kib, 20_000, perOperation, "4 KiB"),
		sized(mib, 512, perByte, "1 MiB"),
		sized(64*mib, 12, perByte, "64 MiB"),
	}
	for _, size := range o.large {
		name := strings.TrimSpace(size.String())
		out = append(out, group{
			works: []work{
				{name: "PUT one of " + name, unit: perMemory, do: putLarge(size), once: true},
				{name: "GET one of " + name, unit: perMemory, do: getLarge(size), once: true},
				{name: "range 64 KiB of " + name, unit: perOperation, do: readRanges(size), once: true, drives: true},
			},
			after: func(ctx context.Context, t *target) error { return t.Delete(ctx, bucket, largeKey(size)) },
		})
	}
	if o.listKeys > 0 {
		out = append(out, group{
			works: []work{
				{name: fmt.Sprintf("PUT %d keys", o.listKeys), unit: perOperation, do: fill, once: true},
				{name: fmt.Sprintf("list %d keys", o.listKeys), unit: perListing, do: list},
			},
			after: func(context.Context, *target) error { return nil },
		})
	}
	return out
}

// measureAll does every work on every server by turns. What was measured before an error is
// in the report.
func measureAll(ctx context.Context, o options, servers []*server) (report, error) {
	var r report
	body := make([]byte, 64*mib)
	_, _ = rand.Read(body)
	var targets []*target
	for _, s := range servers {
		r.servers = append(r.servers, s.name)
		targets = append(targets, &target{server: s, written: map[int64]int{}, body: body, o: o})
	}
	for _, g := range groups(o) {
		for _, w := range g.works {
			row, err := w.measure(ctx, targets)
			if err != nil {
				return r, fmt.Errorf("%s: %w", w.name, err)
			}
			r.rows = append(r.rows, row)
		}
		for _, t := range targets {
			if err := g.after(ctx, t); err != nil {
				return r, fmt.Errorf("make room on %s: %w", t.name, err)
			}
		}
	}
	return r, nil
}

// measure does the work on the servers by turns, round by round.
func (w work) measure(ctx context.Context, targets []*target) (row, error) {
	out := row{work: w, samples: make([]sample, len(targets))}
	rounds := targets[0].o.rounds
	if w.once {
		rounds = 1
	}
	for range rounds {
		for i, t := range targets {
			s, err := w.one(ctx, t)
			if err != nil {
				return out, fmt.Errorf("%s: %w", t.name, err)
			}
			out.samples[i].add(s)
		}
	}
	return out, nil
}

// one is one round on one server, with what the server used for it.
func (w work) one(ctx context.Context, t *target) (sample, error) {
	if err := t.resetPeak(); err != nil {
		return sample{}, err
	}
	var before int64
	var err error
	if w.drives {
		if before, err = t.driveReadBytes(ctx); err != nil {
			return sample{}, err
		}
	}
	used, err := t.cpu()
	if err != nil {
		return sample{}, err
	}
	s, err := w.do(ctx, t)
	if err != nil {
		return s, err
	}
	now, err := t.cpu()
	if err != nil {
		return s, err
	}
	s.cpu = now - used
	if w.drives {
		after, err := t.driveReadBytes(ctx)
		if err != nil {
			return s, err
		}
		s.readBytes = after - before
	}
	s.peakBytes, err = t.peak()
	return s, err
}
