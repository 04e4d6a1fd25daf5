package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/pflag"

	"github.com/millrace/millrace/appliance/cmd/millrace/sweep"
	"github.com/millrace/millrace/appliance/config"
	"github.com/millrace/millrace/s3/client"
)

func benchCommand() command {
	return command{
		name: "bench", args: "get|put|head|list", summary: "measure an S3 endpoint: sizes × concurrency",
		details: `
Closed loops of one operation. put stores bodies that all differ under new keys; get reads whole objects at random, each
loop into memory of its own; list reads the listing of --keys keys. Preparing and cleaning up are not in the times. CPU is
user and system time; the server's is there with --mgmt (from its metrics) or --server-pid (from /proc). Rows appear as they
are measured. Bytes that RDMA carried are counted by the results, by the client's device and, with --mgmt, by the server:
where they differ, the command fails. ` + clientEnvironment,
		examples: `
millrace bench put --sizes 4KiB,1MiB,64MiB --concurrency 1,8 --duration 10s
millrace bench get --published --rdma require --mgmt https://127.0.0.1:9443
millrace bench get --sizes 1MiB --concurrency 64 --processes 8 --rdma off
millrace bench get --sizes 1MiB --concurrency 8 --server-pid $(pidof minio) --json
millrace bench list --keys 100000 --count 5 --concurrency 1 --mgmt https://127.0.0.1:9443`,
		flags: func(fs *pflag.FlagSet) runner {
			f := &benchFlags{maxBytes: 4 * config.GiB, maxMemory: 4 * config.GiB}
			f.register(fs)
			return f.run
		},
	}
}

type benchFlags struct {
	endpointFlags
	sizes       []string
	concurrency []int
	published   bool
	processes   int
	worker      bool
	duration    time.Duration
	count       int64
	keys        int
	maxBytes    config.Size
	maxMemory   config.Size
	bucket      string
	verify      bool
	checksum    bool
	keep        bool
	json        bool
	mgmt        string
	pids        []int
}

func (f *benchFlags) register(fs *pflag.FlagSet) {
	fs.StringSliceVar(&f.sizes, "sizes", []string{"4KiB", "1MiB", "64MiB"}, "object `SIZES`, a list")
	fs.IntSliceVar(&f.concurrency, "concurrency", []int{8}, "loops at the same time, a list of `N`")
	fs.BoolVar(&f.published, "published", false, "sizes and concurrency of the published S3-over-RDMA sweeps: "+
		strings.Join(publishedSizes(), ",")+" × "+strings.Trim(fmt.Sprint(publishedConcurrency()), "[]"))
	fs.IntVar(&f.processes, "processes", 0, "share the loops out to `N` client processes")
	fs.BoolVar(&f.worker, "worker", false, "be one of those processes")
	_ = fs.MarkHidden("worker")
	fs.DurationVar(&f.duration, "duration", 0, "end a row after `DURATION` (default 5s, unless --count is given)")
	fs.Int64Var(&f.count, "count", 0, "end a row after `N` operations")
	fs.Var(&f.maxBytes, "max-bytes", "end a row when `SIZE` was moved, 0 for no such end; it bounds what put stores")
	fs.Var(&f.maxMemory, "max-memory", "get: leave out rows that need more than `SIZE` for what is in flight")
	fs.IntVar(&f.keys, "keys", 0, "objects for get, head and list: `N` (default up to 256 and 1GiB; list: 1000)")
	fs.StringVar(&f.bucket, "bucket", "", "use the bucket `NAME`, which must exist (default: one is made and removed)")
	fs.BoolVar(&f.verify, "verify", false, "get: compare the content with what was put")
	fs.BoolVar(&f.checksum, "checksum", false, "put: send a CRC64NVME with each object")
	fs.BoolVar(&f.keep, "keep", false, "leave the objects and the bucket there")
	fs.StringVar(&f.mgmt, "mgmt", "", "`URL` of the server's management address, for its CPU, memory and RDMA counters")
	fs.IntSliceVar(&f.pids, "server-pid", nil, "processes of the server on this machine, for its CPU and memory: a list of `PID`")
	fs.BoolVar(&f.json, "json", false, "print one JSON object a row")
	f.endpointFlags.register(fs)
}

func publishedSizes() []string    { return []string{"1MiB", "4MiB", "16MiB", "64MiB", "256MiB"} }
func publishedConcurrency() []int { return []int{1, 4, 8, 16, 32, 64} }

// maxProcesses limits --processes.
const maxProcesses = 256

// maxPrepareBytes limits what is stored by default for get and head to read.
const maxPrepareBytes = 1 << 30

func (f *benchFlags) config(op string) (sweep.Config, error) {
	c := sweep.Config{Op: sweep.Op(op), Bucket: f.bucket, Prefix: fmt.Sprintf("bench-%s-%d/", op, time.Now().UnixNano()),
		Concurrencies: f.concurrency, Duration: f.duration, Count: f.count, MaxBytes: int64(f.maxBytes), Keys: f.keys,
		MaxMemory: int64(f.maxMemory), Verify: f.verify, Checksum: f.checksum, Keep: f.keep}
	if c.Duration == 0 && c.Count == 0 {
		c.Duration = 5 * time.Second
	}
	largest := int64(1)
	for _, text := range f.sizes {
		size, err := config.ParseSize(text)
		if err != nil {
			return c, usagef("--sizes: %v", err)
		}
		c.Sizes = append(c.Sizes, int64(size))
		largest = max(largest, int64(size))
	}
	if c.Op == sweep.List && len(c.Sizes) > 1 {
		c.Sizes = c.Sizes[:1]
	}
	if f.processes < 0 || f.processes > maxProcesses {
		return c, usagef("--processes %d: want up to %d", f.processes, maxProcesses)
	}
	switch {
	case c.Keys != 0:
	case c.Op == sweep.List:
		c.Keys = 1000
	default:
		c.Keys = int(min(max(maxPrepareBytes/largest, 4), 256))
	}
	switch {
	case f.mgmt != "" && len(f.pids) > 0:
		return c, usagef("--mgmt and --server-pid exclude each other")
	case f.mgmt != "":
		c.Server = sweep.NewMetrics(f.mgmt)
	case len(f.pids) > 0:
		c.Server = sweep.Processes(f.pids)
	}
	return c, nil
}

func (f *benchFlags) run(ctx context.Context, env *environment, args []string) (err error) {
	if f.published {
		f.sizes, f.concurrency = publishedSizes(), publishedConcurrency()
	}
	most := 0
	for _, n := range f.concurrency {
		most = max(most, n)
	}
	to, err := f.client(env, most+8, benchPoolBytes)
	if err != nil {
		return err
	}
	defer to.Close()
	if f.worker {
		return sweep.Serve(ctx, to, env.stdin, env.stdout)
	}
	if len(args) != 1 {
		return usagef("want one of get, put, head, list")
	}
	c, err := f.config(args[0])
	if err != nil {
		return err
	}
	for range f.processes {
		p, e := f.process(ctx, env, most)
		if e != nil {
			return e
		}
		defer func() { err = errors.Join(err, p.Close()) }()
		c.Workers = append(c.Workers, p)
	}
	if err := c.Validate(); err != nil {
		return usagef("%v", err)
	}
	if c.Bucket == "" {
		c.Bucket = fmt.Sprintf("bench-%x", time.Now().UnixNano())
		if err := to.CreateBucket(ctx, c.Bucket); err != nil {
			return err
		}
		if !f.keep {
			defer removeBucket(ctx, to, c.Bucket, &err)
		}
	}
	return f.sweep(ctx, env, c, to)
}

// sweep measures and prints. Operations that failed make it fail at its end, and so do counters that differ.
func (f *benchFlags) sweep(ctx context.Context, env *environment, c sweep.Config, to sweep.Endpoint) error {
	print := &rowPrinter{json: f.json, w: env.stdout}
	failed := int64(0)
	var differ []string
	if err := sweep.Run(ctx, c, to, func(r sweep.Row) error {
		failed += r.Errors
		if r.RDMA != nil && r.RDMA.Disagreement != "" {
			differ = append(differ, fmt.Sprintf("%v × %d: %s", config.Size(r.SizeBytes), r.Concurrency, r.RDMA.Disagreement))
		}
		return print.row(r)
	}); err != nil {
		return err
	}
	switch {
	case failed > 0:
		return fmt.Errorf("%d operations failed", failed)
	case len(differ) > 0:
		return fmt.Errorf("the counts of RDMA differ: %s", strings.Join(differ, "; "))
	}
	return nil
}

// benchPoolBytes is small: the sweep has registered memory of its own.
const benchPoolBytes = 1 << 20

// process starts one of the client processes.
func (f *benchFlags) process(ctx context.Context, env *environment, connections int) (*sweep.Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	args := []string{"bench", "--worker", "--concurrency", strconv.Itoa(connections), "--endpoint", f.endpoint,
		"--region", f.region, "--credentials", f.credentials, "--rdma", f.rdma, "--rdma-connect", f.rdmaConnect,
		"--rdma-provider", f.rdmaProvider,
		"--insecure=" + strconv.FormatBool(f.insecure), "--rdma-crc=" + strconv.FormatBool(f.rdmaCRC)}
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Stderr = env.stderr
	return sweep.StartProcess(cmd)
}

// removeBucket keeps an earlier error; it also runs after ctx has ended.
func removeBucket(ctx context.Context, c *client.Client, bucket string, err *error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	if failed := c.DeleteBucket(ctx, bucket); failed != nil && *err == nil {
		*err = failed
	}
}

// rowPrinter prints a table, or JSON, a row at a time.
type rowPrinter struct {
	json   bool
	w      io.Writer
	headed bool
}

const benchHead = "op\tsize\tconc\tops\terrors\tops/s\tMiB/s\tp50 ms\tp99 ms\tclient µs/op\tclient s/GiB\t" +
	"server µs/op\tserver s/GiB\tRSS MiB\ttransport\tclient bytes\tserver bytes\t\n"

func (p *rowPrinter) row(r sweep.Row) error {
	if p.json {
		return writeJSON(p.w, r)
	}
	// One table a row, of cells that are wide enough, so that rows appear at once.
	t := tabwriter.NewWriter(p.w, 9, 0, 2, ' ', tabwriter.AlignRight)
	if !p.headed {
		fmt.Fprint(t, benchHead)
		p.headed = true
	}
	cells := []string{string(r.Op), config.Size(r.SizeBytes).String(), strconv.Itoa(r.Concurrency)}
	if r.LeftOut != "" {
		fmt.Fprintf(t, "%s\tleft out: %s\n", strings.Join(cells, "\t"), r.LeftOut)
		return t.Flush()
	}
	cells = append(cells, strconv.FormatInt(r.Ops, 10), strconv.FormatInt(r.Errors, 10), number(r.OpsPerS),
		number(r.MiBPerS), number(r.P50Ms), number(r.P99Ms), number(r.Client.MicrosPerOp), number(r.Client.SecondsPerGiB))
	if s := r.Server; s != nil {
		cells = append(cells, number(s.MicrosPerOp), number(s.SecondsPerGiB), number(max(s.PeakRSSMiB, s.RSSMiB)))
	} else {
		cells = append(cells, "-", "-", "-")
	}
	cells = append(cells, witnessCells(&r)...)
	fmt.Fprintln(t, strings.Join(cells, "\t")+"\t")
	if r.FirstError != "" {
		fmt.Fprintf(t, "first error: %s\n", r.FirstError)
	}
	return t.Flush()
}

// witnessCells are the transport and what both sides counted of RDMA.
func witnessCells(r *sweep.Row) []string {
	w := r.RDMA
	if w == nil {
		return []string{firstOf(r.Transport, client.TransportHTTP), "-", "-"}
	}
	transport, server := r.Transport+"/"+r.Provider, "-"
	for provider, m := range w.Server {
		transport, server = r.Transport+"/"+provider, strconv.FormatInt(m.Bytes, 10)
	}
	if len(w.Server) > 1 {
		server = fmt.Sprint(w.Server)
	}
	return []string{transport, strconv.FormatInt(w.Client.Bytes, 10), server}
}

// number prints about three digits.
func number(v float64) string {
	switch {
	case v == 0:
		return "0"
	case v < 10:
		return strconv.FormatFloat(v, 'f', 3, 64)
	case v < 1000:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 0, 64)
}
