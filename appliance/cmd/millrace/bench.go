package main

import (
	"context"
	"fmt"
	"io"
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
Closed loops of one operation. put stores bodies that all differ under new keys; get reads whole objects at random;
list reads the listing of --keys keys. Preparing and cleaning up are not in the times. CPU is user and system time; the
server's is there with --mgmt (from its metrics) or --server-pid (from /proc). Rows appear as they are measured. ` +
			clientEnvironment,
		examples: `
millrace bench put --sizes 4KiB,1MiB,64MiB --concurrency 1,8 --duration 10s
millrace bench get --sizes 1MiB --concurrency 8 --server-pid $(pidof minio) --json
millrace bench list --keys 100000 --count 5 --concurrency 1 --mgmt https://127.0.0.1:9443`,
		flags: func(fs *pflag.FlagSet) runner {
			f := &benchFlags{maxBytes: 4 * config.GiB}
			f.register(fs)
			return f.run
		},
	}
}

type benchFlags struct {
	endpointFlags
	sizes       []string
	concurrency []int
	duration    time.Duration
	count       int64
	keys        int
	maxBytes    config.Size
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
	fs.DurationVar(&f.duration, "duration", 0, "end a row after `DURATION` (default 5s, unless --count is given)")
	fs.Int64Var(&f.count, "count", 0, "end a row after `N` operations")
	fs.Var(&f.maxBytes, "max-bytes", "end a row when `SIZE` was moved, 0 for no such end; it bounds what put stores")
	fs.IntVar(&f.keys, "keys", 0, "objects for get, head and list: `N` (default up to 256 and 1GiB; list: 1000)")
	fs.StringVar(&f.bucket, "bucket", "", "use the bucket `NAME`, which must exist (default: one is made and removed)")
	fs.BoolVar(&f.verify, "verify", false, "get: compare the content with what was put")
	fs.BoolVar(&f.checksum, "checksum", false, "put: send a CRC64NVME with each object")
	fs.BoolVar(&f.keep, "keep", false, "leave the objects and the bucket there")
	fs.StringVar(&f.mgmt, "mgmt", "", "`URL` of the server's management address, for its CPU and memory")
	fs.IntSliceVar(&f.pids, "server-pid", nil, "processes of the server on this machine, for its CPU and memory: a list of `PID`")
	fs.BoolVar(&f.json, "json", false, "print one JSON object a row")
	f.endpointFlags.register(fs)
}

// maxPrepareBytes limits what is stored by default for get and head to read.
const maxPrepareBytes = 1 << 30

func (f *benchFlags) config(op string) (sweep.Config, error) {
	c := sweep.Config{Op: sweep.Op(op), Bucket: f.bucket, Prefix: fmt.Sprintf("bench-%s-%d/", op, time.Now().UnixNano()),
		Concurrencies: f.concurrency, Duration: f.duration, Count: f.count, MaxBytes: int64(f.maxBytes), Keys: f.keys,
		Verify: f.verify, Checksum: f.checksum, Keep: f.keep}
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
	if err := c.Validate(); err != nil {
		return c, usagef("%v", err)
	}
	return c, nil
}

func (f *benchFlags) run(ctx context.Context, env *environment, args []string) (err error) {
	if len(args) != 1 {
		return usagef("want one of get, put, head, list")
	}
	c, err := f.config(args[0])
	if err != nil {
		return err
	}
	most := 0
	for _, n := range f.concurrency {
		most = max(most, n)
	}
	to, err := f.client(env, most+8, 0)
	if err != nil {
		return err
	}
	defer to.Close()
	if c.Bucket == "" {
		c.Bucket = fmt.Sprintf("bench-%x", time.Now().UnixNano())
		if err := to.CreateBucket(ctx, c.Bucket); err != nil {
			return err
		}
		if !f.keep {
			defer removeBucket(ctx, to, c.Bucket, &err)
		}
	}
	print := &rowPrinter{json: f.json, w: env.stdout}
	failed := int64(0)
	if err := sweep.Run(ctx, c, to, func(r sweep.Row) error {
		failed += r.Errors
		return print.row(r)
	}); err != nil {
		return err
	}
	if failed > 0 {
		return fmt.Errorf("%d operations failed", failed)
	}
	return nil
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
	"server µs/op\tserver s/GiB\tRSS MiB\ttransport\t\n"

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
	cells := []string{string(r.Op), config.Size(r.SizeBytes).String(), strconv.Itoa(r.Concurrency),
		strconv.FormatInt(r.Ops, 10), strconv.FormatInt(r.Errors, 10), number(r.OpsPerS), number(r.MiBPerS),
		number(r.P50Ms), number(r.P99Ms), number(r.Client.MicrosPerOp), number(r.Client.SecondsPerGiB)}
	if s := r.Server; s != nil {
		cells = append(cells, number(s.MicrosPerOp), number(s.SecondsPerGiB), number(max(s.PeakRSSMiB, s.RSSMiB)))
	} else {
		cells = append(cells, "-", "-", "-")
	}
	cells = append(cells, firstOf(r.Transport, "http"))
	fmt.Fprintln(t, strings.Join(cells, "\t")+"\t")
	if r.FirstError != "" {
		fmt.Fprintf(t, "first error: %s\n", r.FirstError)
	}
	return t.Flush()
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
