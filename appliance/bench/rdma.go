package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/millrace/millrace/appliance/cmd/millrace/sweep"
	"github.com/millrace/millrace/appliance/config"
	"github.com/millrace/millrace/s3/client"
)

// way is one of the ways that bytes take between client and server.
type way struct {
	name   string
	server *server
	client *client.Client
	flags  []string // of the client processes
}

// cell is what one way gave at one size and concurrency, in all rounds.
type cell struct {
	ops, bytes              int64
	seconds, server, client float64 // elapsed, and CPU of both sides
	p50Ms, p99Ms            []float64
	provider                string
}

func (c *cell) add(r sweep.Row) error {
	switch {
	case r.Errors > 0:
		return fmt.Errorf("%d of %d operations failed: %s", r.Errors, r.Errors+r.Ops, r.FirstError)
	case r.RDMA != nil && r.RDMA.Disagreement != "":
		return errors.New(r.RDMA.Disagreement)
	}
	c.ops += r.Ops
	c.bytes += r.Ops * r.SizeBytes
	c.seconds += r.Seconds
	c.client += r.Client.Seconds
	c.server += r.Server.Seconds
	c.p50Ms, c.p99Ms = append(c.p50Ms, r.P50Ms), append(c.p99Ms, r.P99Ms)
	c.provider = r.Provider
	return nil
}

func (c *cell) rate() float64              { return float64(c.bytes) / mib / c.seconds }
func (c *cell) perGiB(cpu float64) float64 { return cpu * gib / float64(c.bytes) }

// compared is a row of the comparison: an operation on objects of a size, at several concurrencies.
type compared struct {
	op   sweep.Op
	size config.Size
}

func comparedRows() []compared {
	return []compared{
		{sweep.Get, 1 * config.MiB}, {sweep.Get, 16 * config.MiB}, {sweep.Get, 64 * config.MiB},
		{sweep.Put, 1 * config.MiB}, {sweep.Put, 16 * config.MiB},
	}
}

func comparedConcurrency() []int { return []int{1, 4, 16} }

const (
	// preparedBytes are stored for GET to read, and putBytes are stored at most in one measurement.
	preparedBytes = 128 * mib
	putBytes      = 512 * mib
)

// compareRDMA measures HTTP, soft RDMA with and without CRC, and the provider that moves nothing, by turns.
func compareRDMA(ctx context.Context, o options, b *backing) error {
	fmt.Fprintln(os.Stderr, "bench: starting the servers")
	soft := &server{name: "soft", launch: launchMillrace(o.millrace, "soft", "--rdma", "soft", "--rdma-crc=false")}
	null := &server{name: "null", launch: launchMillrace(o.millrace, "null", "--rdma", "null")}
	ways, err := openWays(ctx, o, b, soft, null)
	if err != nil {
		return err
	}
	if err := printFloors(o, os.Stdout); err != nil {
		return err
	}
	t := tabwriter.NewWriter(os.Stdout, 8, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "op\tsize\tconc\tway\tMiB/s\t× HTTP\tserver s/GiB\t× HTTP\tclient s/GiB\t× HTTP\tclient µs/op\tp50 ms\tp99 ms\t")
	for _, row := range comparedRows() {
		for _, n := range comparedConcurrency() {
			name := fmt.Sprintf("%s %v × %d", row.op, row.size, n)
			if !o.only.MatchString(name) {
				continue
			}
			fmt.Fprintf(os.Stderr, "bench: measuring %s\n", name)
			cells, err := measureWays(ctx, o, row, n, ways)
			if err != nil {
				return errors.Join(fmt.Errorf("%s: %w", name, err), t.Flush())
			}
			for i := range cells {
				printCell(t, row, n, ways[i].name, &cells[i], &cells[0])
			}
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if !o.only.MatchString("processes") {
		return nil
	}
	return compareProcesses(ctx, o, b, ways[:2])
}

// openWays starts the servers and makes the clients. The first way is HTTP.
func openWays(ctx context.Context, o options, b *backing, soft, null *server) ([]way, error) {
	for _, s := range []*server{soft, null} {
		if err := s.start(ctx, b, o); err != nil {
			return nil, fmt.Errorf("start %s: %w", s.name, err)
		}
	}
	ways := []way{
		{"HTTP", soft, soft.Client, []string{"--rdma", "off"}},
		{"soft", soft, nil, []string{"--rdma", "require"}},
		{"soft, no CRC", soft, nil, nil},
		{"null", null, nil, nil},
	}
	for i := range ways[1:] {
		w := &ways[i+1]
		var err error
		if w.client, err = w.server.dial(client.ModeRequire, w.name == "soft"); err != nil {
			return nil, err
		}
		b.undo.add(func() error { w.client.Close(); return nil })
	}
	return ways, nil
}

func (o options) sweep(row compared, concurrency int, s *server) sweep.Config {
	c := sweep.Config{Op: row.op, Bucket: bucket, Prefix: fmt.Sprintf("%s-%d/", row.op, time.Now().UnixNano()),
		Sizes: []int64{int64(row.size)}, Concurrencies: []int{concurrency},
		Duration: time.Duration(o.seconds * float64(time.Second)), Keys: int(max(1, preparedBytes/row.size)),
		Server: sweep.NewMetrics(s.mgmt)}
	if row.op == sweep.Put {
		c.MaxBytes = putBytes
	}
	return c
}

// measureWays measures all ways by turns, round by round.
func measureWays(ctx context.Context, o options, row compared, concurrency int, ways []way) ([]cell, error) {
	cells := make([]cell, len(ways))
	for range o.rounds {
		for i, w := range ways {
			err := sweep.Run(ctx, o.sweep(row, concurrency, w.server), w.client, cells[i].add)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", w.name, err)
			}
		}
	}
	return cells, nil
}

func printCell(w io.Writer, row compared, concurrency int, name string, c, http *cell) {
	fmt.Fprintf(w, "%s\t%v\t%d\t%s\t%.0f\t%.2f\t%.3f\t%.2f\t%.3f\t%.2f\t%.0f\t%.2f\t%.2f\t\n",
		row.op, row.size, concurrency, name, c.rate(), c.rate()/http.rate(),
		c.perGiB(c.server), c.perGiB(c.server)/http.perGiB(http.server),
		c.perGiB(c.client), c.perGiB(c.client)/http.perGiB(http.client),
		c.client*1e6/float64(c.ops), median(c.p50Ms), median(c.p99Ms))
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

// compareProcesses tells whether the total falls when several client processes share the loops.
func compareProcesses(ctx context.Context, o options, b *backing, ways []way) error {
	const loops = 8
	row := compared{sweep.Get, config.MiB}
	fmt.Printf("\nGET %v, %d loops in all, shared by client processes; MiB/s:\n", row.size, loops)
	for _, w := range ways {
		fmt.Printf("%-6s", w.name)
		for _, n := range []int{1, 2, 4, 8} {
			fmt.Fprintf(os.Stderr, "bench: measuring %d processes by %s\n", n, w.name)
			c := o.sweep(row, loops, w.server)
			var err error
			if c.Workers, err = startProcesses(ctx, o, b, w, n); err != nil {
				return err
			}
			var sum cell
			for range o.rounds {
				if err := sweep.Run(ctx, c, w.client, sum.add); err != nil {
					return fmt.Errorf("%d processes by %s: %w", n, w.name, err)
				}
			}
			fmt.Printf("  %d: %.0f", n, sum.rate())
			for _, p := range c.Workers {
				if err := p.(*sweep.Process).Close(); err != nil {
					return err
				}
			}
		}
		fmt.Println()
	}
	return nil
}

func startProcesses(ctx context.Context, o options, b *backing, w way, n int) ([]sweep.Worker, error) {
	var out []sweep.Worker
	for range n {
		args := append([]string{"bench", "--worker", "--endpoint", w.server.address}, w.flags...)
		cmd := exec.CommandContext(ctx, o.millrace, args...)
		cmd.Env = append(os.Environ(), "AWS_ACCESS_KEY_ID="+accessKey, "AWS_SECRET_ACCESS_KEY="+secretKey)
		cmd.Stderr = os.Stderr
		p, err := sweep.StartProcess(cmd)
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}
