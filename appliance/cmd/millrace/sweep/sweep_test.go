package sweep

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/s3/client"
)

// fake is an Endpoint in memory.
type fake struct {
	mu      sync.Mutex
	objects map[string][]byte
	puts    map[string]int // by content
	corrupt bool
	fail    error
	rdma    bool
	moved   int64 // by it
}

func newFake() *fake { return &fake{objects: map[string][]byte{}, puts: map[string]int{}} }

func (f *fake) Put(_ context.Context, _, key string, data []byte, _ client.PutOptions) (client.PutResult, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, there := f.objects[key]; there {
		return client.PutResult{}, errors.New("key used twice")
	}
	f.objects[key] = bytes.Clone(data)
	f.puts[string(data)]++
	return client.PutResult{Transfer: f.transfer(len(data))}, f.fail
}

func (f *fake) GetBuffer(_ context.Context, _, key string, dst []byte, _ client.GetOptions) (client.GetResult, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := copy(dst, f.objects[key])
	if f.corrupt {
		dst[n/2] ^= 1
	}
	return client.GetResult{Transfer: f.transfer(n), Bytes: int64(n)}, nil
}

// transfer is that of n bytes.
func (f *fake) transfer(n int) client.Transfer {
	if !f.rdma {
		return client.Transfer{Transport: "http"}
	}
	f.moved += int64(n)
	return client.Transfer{Transport: "rdma", Provider: "hard", RDMABytes: int64(n)}
}

func (*fake) Register([]byte) (*client.Memory, error) { return &client.Memory{}, nil }
func (*fake) Device() *client.Device                  { return nil }

func (f *fake) Head(_ context.Context, _, key string) (client.Info, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return client.Info{SizeBytes: int64(len(f.objects[key]))}, nil
}

func (f *fake) List(_ context.Context, _ string, o client.ListOptions) iter.Seq2[client.Entry, error] {
	f.mu.Lock()
	defer f.mu.Unlock()
	var keys []string
	for key := range f.objects {
		if strings.HasPrefix(key, o.Prefix) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return func(yield func(client.Entry, error) bool) {
		for _, key := range keys {
			if !yield(client.Entry{Key: key}, nil) {
				return
			}
		}
	}
}

func (f *fake) DeleteMany(_ context.Context, _ string, keys []string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, key := range keys {
		delete(f.objects, key)
	}
	return nil
}

// server is a Server whose CPU grows by a second with each reading.
type server struct{ cpu float64 }

func (s *server) Read(context.Context, bool) (Reading, error) {
	s.cpu++
	return Reading{CPUSeconds: s.cpu, PeakBytes: 3 << 20, BodyBytes: map[string]float64{"http": s.cpu * 10}}, nil
}

func config(op Op) Config {
	return Config{Op: op, Bucket: "b", Prefix: "p/", Sizes: []int64{0, 100, 300 << 10}, Concurrencies: []int{1, 4},
		Count: 20, Keys: 10, Verify: true, Server: &server{}}
}

func TestRun(t *testing.T) {
	for _, op := range []Op{Put, Get, Head, List} {
		to := newFake()
		var rows []Row
		err := Run(context.Background(), config(op), to, func(r Row) error {
			rows = append(rows, r)
			return nil
		})
		if err != nil || len(rows) != 6 {
			t.Fatalf("Run(%s) = %v with %d rows; want 6", op, err, len(rows))
		}
		for i, r := range rows {
			if r.Op != op || r.Ops != 20 || r.Errors != 0 || r.OpsPerS <= 0 || r.P99Ms < r.P50Ms {
				t.Errorf("row %d: %+v", i, r)
			}
			if r.Server.Seconds != 1 || r.Server.MicrosPerOp != 1e6/20 || r.Server.PeakRSSMiB != 3 ||
				r.Server.BodyBytes["http"] != 10 {
				t.Errorf("row %d: server %+v", i, r.Server)
			}
			if moves := (op == Put || op == Get) && r.SizeBytes > 0; moves != (r.MiBPerS > 0) {
				t.Errorf("row %d: %v MiB/s of %d bytes", i, r.MiBPerS, r.SizeBytes)
			}
		}
		if len(to.objects) != 0 {
			t.Errorf("Run(%s) left %d objects", op, len(to.objects))
		}
	}
}

func TestPutBodiesDiffer(t *testing.T) {
	to := newFake()
	c := config(Put)
	c.Sizes, c.Concurrencies, c.Count, c.Keep = []int64{4096, 512 << 10}, []int{4}, 100, true
	if err := Run(context.Background(), c, to, func(Row) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if len(to.puts) != 200 || len(to.objects) != 200 {
		t.Errorf("%d different bodies under %d keys; want 200 each", len(to.puts), len(to.objects))
	}
}

func TestGetFindsCorruption(t *testing.T) {
	to := newFake()
	to.corrupt = true
	c := config(Get)
	c.Sizes, c.Concurrencies = []int64{1000}, []int{1}
	err := Run(context.Background(), c, to, func(r Row) error {
		if r.Errors != 20 || r.Ops != 0 || !strings.Contains(r.FirstError, "not what was put") {
			t.Errorf("row %+v; want 20 errors", r)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestMaxBytesEndsARow(t *testing.T) {
	c := config(Put)
	c.Sizes, c.Concurrencies, c.Count, c.Duration, c.MaxBytes = []int64{1000}, []int{1}, 0, time.Hour, 5000
	err := Run(context.Background(), c, newFake(), func(r Row) error {
		if r.Ops != 5 {
			t.Errorf("%d operations; want 5", r.Ops)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestValidate(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"op":          func(c *Config) { c.Op = "mow" },
		"sizes":       func(c *Config) { c.Sizes = nil },
		"size":        func(c *Config) { c.Sizes = []int64{-1} },
		"concurrency": func(c *Config) { c.Concurrencies = []int{0} },
		"end":         func(c *Config) { c.Count = 0 },
		"keys":        func(c *Config) { c.Keys = 0 },
	} {
		c := config(Get)
		change(&c)
		if c.Validate() == nil {
			t.Errorf("Validate with a wrong %s: no error", name)
		}
	}
}

// counting is a Server that says how much the endpoint has moved by RDMA, and some bytes more.
type counting struct {
	of   *fake
	more int64
	read int64
}

func (c *counting) Read(context.Context, bool) (Reading, error) {
	c.read++
	return Reading{RDMA: map[string]Moved{"read/hard": {c.read, c.of.moved + c.more*c.read}}}, nil
}

func TestWitness(t *testing.T) {
	for _, more := range []int64{0, 7} {
		to := newFake()
		to.rdma = true
		c := config(Put)
		c.Sizes, c.Concurrencies, c.Server = []int64{1000}, []int{1}, &counting{of: to, more: more}
		err := Run(context.Background(), c, to, func(r Row) error {
			w := r.RDMA
			if r.Transport != "rdma" || r.RDMABytes != 20_000 || w == nil || w.Direction != "read" ||
				w.Client != (Moved{20, 20_000}) || w.Server["hard"] != (Moved{1, 20_000 + more}) {
				t.Errorf("row %+v, witness %+v; want 20000 bytes by RDMA", r, w)
			} else if (w.Disagreement != "") != (more > 0) {
				t.Errorf("%d bytes more on the server: disagreement %q", more, w.Disagreement)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// piped is a Worker whose orders go through Serve.
func piped(t *testing.T, to Endpoint) Worker {
	in, orders := io.Pipe()
	reports, out := io.Pipe()
	done := make(chan error, 1)
	go func() { done <- Serve(context.Background(), to, in, out) }()
	t.Cleanup(func() {
		_ = orders.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return &Process{orders: json.NewEncoder(orders), reports: json.NewDecoder(reports)}
}

func TestWorkers(t *testing.T) {
	for _, op := range []Op{Put, Get} {
		to := newFake()
		c := config(op)
		c.Sizes, c.Concurrencies, c.Workers = []int64{1000}, []int{3, 5}, []Worker{piped(t, to), piped(t, to), piped(t, to)}
		err := Run(context.Background(), c, to, func(r Row) error {
			if r.Ops != 20 || r.Errors != 0 || r.Processes != 3 || r.Seconds <= 0 || r.P99Ms <= 0 {
				t.Errorf("row %+v; want 20 operations of 3 processes", r)
			}
			return nil
		})
		if err != nil || len(to.objects) != 0 {
			t.Errorf("Run(%s) = %v, %d objects left; want none", op, err, len(to.objects))
		}
	}
	c := config(Get)
	c.Workers = make([]Worker, 2)
	if c.Validate() == nil {
		t.Error("Validate with less loops than processes: no error")
	}
}

func TestMaxMemory(t *testing.T) {
	c, left := config(Get), 0
	c.Sizes, c.Concurrencies, c.MaxMemory = []int64{1000}, []int{1, 4}, 3000
	err := Run(context.Background(), c, newFake(), func(r Row) error {
		if r.LeftOut != "" {
			left++
		}
		if (r.LeftOut != "") != (r.Concurrency == 4) || (r.LeftOut != "") != (r.Ops == 0) {
			t.Errorf("row %+v; want 4 loops left out", r)
		}
		return nil
	})
	if err != nil || left != 1 {
		t.Errorf("Run() = %v, %d rows left out; want 1", err, left)
	}
}

func TestQuantile(t *testing.T) {
	var hundred []time.Duration
	for n := 1; n <= 100; n++ {
		hundred = append(hundred, time.Duration(n)*time.Millisecond)
	}
	tests := []struct {
		list    []time.Duration
		q, want float64
	}{{nil, .5, 0}, {hundred[:1], .99, 1}, {hundred, .5, 50}, {hundred, .99, 99}, {hundred[:3], .5, 2}}
	for _, test := range tests {
		if got := quantile(test.list, test.q); got != test.want {
			t.Errorf("quantile(%d values, %v) = %v; want %v", len(test.list), test.q, got, test.want)
		}
	}
}

func TestProcesses(t *testing.T) {
	r, err := Processes{os.Getpid()}.Read(context.Background(), false)
	if err != nil || r.PeakBytes < 1<<20 || r.CPUSeconds < 0 {
		t.Errorf("Read() = %+v, %v; want the use of this process", r, err)
	}
	cpu, err := statCPU("7 (a) b) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0")
	if err != nil || cpu != 2 {
		t.Errorf("statCPU = %v, %v; want 2", cpu, err)
	}
}

func TestParseMetrics(t *testing.T) {
	text := `# HELP x y
process_cpu_seconds_total 1.5
process_resident_memory_bytes 1.048576e+06
millrace_s3_bytes_total{direction="in",transport="http"} 3
millrace_s3_bytes_total{direction="out",transport="http"} 4
millrace_s3_bytes_total{direction="out",transport="rdma"} 5
millrace_rdma_operations_total{direction="write",provider="soft"} 2
millrace_rdma_bytes_total{direction="write",provider="soft"} 1e+06
`
	got, err := parseMetrics([]byte(text))
	want := Reading{CPUSeconds: 1.5, PeakBytes: 1 << 20, PeakIsNow: true, BodyBytes: map[string]float64{"http": 7, "rdma": 5},
		RDMA: map[string]Moved{"write/soft": {2, 1_000_000}}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("parseMetrics: %v (-want +got):\n%s", err, diff)
	}
	if _, err := parseMetrics([]byte("x 1\n")); err == nil {
		t.Error("parseMetrics without CPU: no error")
	}
}

func FuzzParseMetrics(f *testing.F) {
	f.Add([]byte("process_cpu_seconds_total 1\nmillrace_s3_bytes_total{transport=\"\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if _, err := parseMetrics(text); err == nil && !bytes.Contains(text, []byte("process_cpu_seconds_total")) {
			t.Error("no error without the metric")
		}
	})
}
