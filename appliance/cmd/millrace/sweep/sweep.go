// Package sweep measures an S3 endpoint: closed loops of one operation, over sizes × concurrency.
//
// It is not a model of a workload, and it draws no conclusion. The client's own cost is measured and
// given beside the server's, since on one machine both compete for the same cores.
//
// Invariant: what a row counts was really done: a PUT stores a body that no other PUT of the sweep
// has, under a new key; a GET reads all bytes into memory of its own and checks their number; an operation that
// failed is counted as an error and in nothing else; preparing and cleaning up are outside of the times; and bytes
// that RDMA is said to have carried are compared with what the server and the device counted.
package sweep

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/millrace/millrace/s3/client"
)

// Op is what a sweep measures.
type Op string

// The operations. List reads a whole listing of Config.Keys keys each time.
const (
	Get  Op = "get"
	Put  Op = "put"
	Head Op = "head"
	List Op = "list"
)

// Endpoint is what a sweep calls; *client.Client is one.
type Endpoint interface {
	Put(ctx context.Context, bucket, key string, data []byte, o client.PutOptions) (client.PutResult, error)
	GetBuffer(ctx context.Context, bucket, key string, dst []byte, o client.GetOptions) (client.GetResult, error)
	Head(ctx context.Context, bucket, key string) (client.Info, error)
	List(ctx context.Context, bucket string, o client.ListOptions) iter.Seq2[client.Entry, error]
	DeleteMany(ctx context.Context, bucket string, keys []string) error
	Register(mem []byte) (*client.Memory, error)
	Device() *client.Device
}

// Config says what is measured.
type Config struct {
	Op            Op
	Bucket        string
	Prefix        string // of all keys
	Sizes         []int64
	Concurrencies []int
	// Duration ends a row; so does Count operations, or MaxBytes moved. 0 is no such limit, but
	// one of Duration and Count must be given.
	Duration time.Duration
	Count    int64
	MaxBytes int64
	// Keys is the number of objects for Get, Head and List.
	Keys int
	// Verify compares the content of each GET with what was put.
	Verify bool
	// Checksum sends a CRC64NVME with each PUT.
	Checksum bool
	// MaxMemory is the most memory for the objects that Get has in flight: rows that need more are left out. 0 is
	// no limit.
	MaxMemory int64
	// Keep leaves the objects there.
	Keep bool
	// Server reads the server's own figures; nil leaves them out.
	Server Server
	// Workers are processes that share each row evenly; without any, the loops are in this one.
	Workers []Worker
}

// Limits of a sweep.
const (
	MaxConcurrency = 4096
	MaxSizeBytes   = 5 << 30
	MaxKeys        = 10_000_000
)

// Validate says what is wrong with the configuration.
func (c *Config) Validate() error {
	var errs []error
	switch c.Op {
	case Get, Put, Head, List:
	default:
		errs = append(errs, fmt.Errorf("operation %q: want get, put, head or list", c.Op))
	}
	for _, n := range c.Concurrencies {
		if n < 1 || n > MaxConcurrency {
			errs = append(errs, fmt.Errorf("concurrency %d: want 1 to %d", n, MaxConcurrency))
		}
	}
	for _, n := range c.Sizes {
		if n < 0 || n > MaxSizeBytes {
			errs = append(errs, fmt.Errorf("size %d: want 0 to %d", n, int64(MaxSizeBytes)))
		}
	}
	for _, n := range c.Concurrencies {
		if n < len(c.Workers) {
			errs = append(errs, fmt.Errorf("concurrency %d is less than one for each of %d processes", n, len(c.Workers)))
		}
	}
	if len(c.Sizes) == 0 || len(c.Concurrencies) == 0 {
		errs = append(errs, errors.New("no sizes or no concurrency"))
	}
	if c.Duration <= 0 && c.Count <= 0 {
		errs = append(errs, errors.New("neither a duration nor a count"))
	}
	if c.Keys < 1 || c.Keys > MaxKeys {
		errs = append(errs, fmt.Errorf("keys %d: want 1 to %d", c.Keys, MaxKeys))
	}
	return errors.Join(errs...)
}

// Row is the result of one size at one concurrency. Latencies are in milliseconds; CPU is user
// and system time.
type Row struct {
	Op          Op      `json:"op"`
	SizeBytes   int64   `json:"size_bytes"`
	Concurrency int     `json:"concurrency"`
	Processes   int     `json:"processes,omitempty"` // that share the concurrency; 0 for one that also measures
	Ops         int64   `json:"ops"`
	Errors      int64   `json:"errors"`
	FirstError  string  `json:"first_error,omitempty"`
	Seconds     float64 `json:"seconds"`
	OpsPerS     float64 `json:"ops_per_s"`
	MiBPerS     float64 `json:"mib_per_s"`
	KeysPerS    float64 `json:"keys_per_s,omitempty"` // List only
	P50Ms       float64 `json:"p50_ms"`
	P99Ms       float64 `json:"p99_ms"`
	Client      CPU     `json:"client"`
	Server      *Usage  `json:"server,omitempty"`
	client.Transfer
	RDMA *Witness `json:"rdma,omitempty"`
	// LeftOut says why the row was not measured; "" if it was.
	LeftOut string `json:"left_out,omitempty"`
}

// CPU is the cost of a row to one side.
type CPU struct {
	Seconds       float64 `json:"cpu_s"`
	MicrosPerOp   float64 `json:"cpu_us_per_op"`
	SecondsPerGiB float64 `json:"cpu_s_per_gib,omitempty"` // 0 where no bytes were moved
}

func costOf(seconds float64, ops, bytes int64) CPU {
	c := CPU{Seconds: seconds}
	if ops > 0 {
		c.MicrosPerOp = seconds * 1e6 / float64(ops)
	}
	if bytes > 0 {
		c.SecondsPerGiB = seconds * (1 << 30) / float64(bytes)
	}
	return c
}

// Run measures every size at every concurrency and hands each row to emit as soon as it is there.
// Objects are removed behind each size, also after an error, unless Keep is set.
func Run(ctx context.Context, c Config, to Endpoint, emit func(Row) error) error {
	if err := c.Validate(); err != nil {
		return err
	}
	for _, size := range c.Sizes {
		if err := runSize(ctx, &c, to, size, emit); err != nil {
			return fmt.Errorf("bench %s of %d bytes: %w", c.Op, size, err)
		}
	}
	return nil
}

func runSize(ctx context.Context, c *Config, to Endpoint, size int64, emit func(Row) error) (err error) {
	s := &scene{config: c, to: to, own: &local{to: to}, size: size, prefix: fmt.Sprintf("%s%d/", c.Prefix, size)}
	defer func() {
		if !c.Keep {
			err = errors.Join(err, s.cleanUp(ctx))
		}
		err = errors.Join(err, s.own.close())
	}()
	if c.Op != Put {
		if err := s.prepare(ctx); err != nil {
			return fmt.Errorf("prepare: %w", err)
		}
	}
	for _, concurrency := range c.Concurrencies {
		row := Row{Op: c.Op, SizeBytes: size, Concurrency: concurrency}
		if need := size * int64(concurrency); c.Op == Get && c.MaxMemory > 0 && need > c.MaxMemory {
			row.LeftOut = fmt.Sprintf("needs %d MiB of memory", need>>20)
		} else if row, err = s.measure(ctx, concurrency); err != nil {
			return err
		}
		if err := emit(row); err != nil {
			return err
		}
		if c.Op == Put && !c.Keep {
			if err := s.cleanUp(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}
