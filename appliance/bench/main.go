// Command bench measures `millrace serve`, and MinIO beside it where its binary is given: the
// same load, by turns, on drives of the same kind and number and with the same erasure scheme.
// The drives are loop devices over memory (as root), else folders; the report names which.
//
// It is not a test of correctness and says nothing of real NVMe drives: what carries over is the
// CPU time of a server for one operation or one GiB, and its memory.
//
// Invariant: however a run ends, the servers are stopped, the mounts and loop devices are taken
// down and the memory is given back; what a killed run left is cleared by the next.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/millrace/millrace/appliance/config"
	"github.com/millrace/millrace/appliance/erasure"
)

// options are what the command line says.
type options struct {
	millrace    string
	minio       string
	scheme      erasure.Scheme
	driveSize   config.Size
	dir         string // folders here instead of loop devices
	seconds     float64
	rounds      int
	concurrency int
	listKeys    int
	large       []config.Size
	limit       time.Duration
	rdma        bool
	only        *regexp.Regexp
}

func main() {
	// A child must not outlive this process. The kernel ties that to the thread that started it.
	runtime.LockOSThread()
	o, err := parse(os.Args[1:])
	if err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "bench:", err)
		}
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, o.limit)
	defer cancel()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func parse(args []string) (options, error) {
	o := options{driveSize: 4 * config.GiB}
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.StringVar(&o.millrace, "millrace", "bin/millrace", "the binary to measure")
	fs.StringVar(&o.minio, "minio", "", "a MinIO binary to measure beside it")
	scheme := fs.String("scheme", "2+2", "erasure scheme K+M, over K+M drives")
	size := fs.String("drive-size", o.driveSize.String(), "size of each drive")
	fs.StringVar(&o.dir, "dir", "", "put the drives in folders here, instead of loop devices over memory")
	fs.Float64Var(&o.seconds, "seconds", 3, "length of one measurement")
	fs.IntVar(&o.rounds, "rounds", 2, "how often each measurement is made")
	fs.IntVar(&o.concurrency, "concurrency", 8, "requests in flight")
	fs.IntVar(&o.listKeys, "list-keys", 100_000, "keys in the bucket that is listed; 0 leaves the listing out")
	large := fs.String("large", "1GiB", "sizes of the large objects whose memory is measured, by commas")
	fs.BoolVar(&o.rdma, "rdma", false, "compare HTTP with RDMA, instead of all else")
	only := fs.String("only", "", "leave out rows that do not match this regular expression, as 'PUT 4 KiB' (-rdma: 'GET 16MiB')")
	fs.DurationVar(&o.limit, "limit", 20*time.Minute, "give up after so long")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	var err error
	if o.only, err = regexp.Compile(*only); err != nil {
		return o, err
	}
	if o.scheme, err = erasure.ParseScheme(*scheme); err != nil {
		return o, err
	}
	if o.driveSize, err = config.ParseSize(*size); err != nil {
		return o, err
	}
	for _, text := range strings.Split(*large, ",") {
		s, err := config.ParseSize(text)
		if err != nil {
			return o, err
		}
		o.large = append(o.large, s)
	}
	return o, nil
}

// run sets everything up, measures, prints, and takes everything down.
func run(ctx context.Context, o options) (err error) {
	releaseLeftovers(o.dir)
	var undo cleanup
	defer func() { err = errors.Join(err, undo.run()) }()
	b, err := newBacking(o, &undo)
	if err != nil {
		return err
	}
	fmt.Printf("%s; %d drives of %v, scheme %v, %d requests in flight; %s\n",
		b, o.scheme.Shards(), o.driveSize, o.scheme, o.concurrency, machine())
	if o.rdma {
		return compareRDMA(ctx, o, b)
	}
	servers := []*server{newMillrace(o.millrace)}
	if o.minio != "" {
		servers = append(servers, newMinio(o.minio))
	}
	for _, s := range servers {
		if err := s.start(ctx, b, o); err != nil {
			return fmt.Errorf("start %s: %w", s.name, err)
		}
	}
	r, err := measureAll(ctx, o, servers)
	r.print(os.Stdout)
	return err
}

// cleanup is a list of what must be undone, the last first.
type cleanup struct{ steps []func() error }

func (c *cleanup) add(step func() error) { c.steps = append(c.steps, step) }

func (c *cleanup) run() error {
	var errs []error
	for i := len(c.steps) - 1; i >= 0; i-- {
		errs = append(errs, c.steps[i]())
	}
	c.steps = nil
	return errors.Join(errs...)
}
