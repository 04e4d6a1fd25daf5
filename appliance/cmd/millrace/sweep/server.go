package sweep

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

// Reading is what the server has used up to a moment.
type Reading struct {
	CPUSeconds float64
	// PeakBytes is the highest resident memory since the last reset, or now where PeakIsNow.
	PeakBytes int64
	PeakIsNow bool
	// BodyBytes are the bytes of S3 bodies that the server counted, by transport; nil if it doesn't.
	BodyBytes map[string]float64
	// RDMA is what the server moved by RDMA, by "direction/provider"; nil if it does not say.
	RDMA map[string]Moved
}

// Server reads the server's figures. With reset the peak of memory starts anew, if that can be.
type Server interface {
	Read(ctx context.Context, reset bool) (Reading, error)
}

// Usage is the cost of a row to the server.
type Usage struct {
	CPU
	// PeakRSSMiB is the highest resident memory in the row; RSSMiB is that at its end, where the
	// peak can't be had.
	PeakRSSMiB float64 `json:"peak_rss_mib,omitempty"`
	RSSMiB     float64 `json:"rss_mib,omitempty"`
	// BodyBytes is what the server itself counted, by transport: the witness of the row.
	BodyBytes map[string]float64 `json:"body_bytes,omitempty"`

	rdma    map[string]Moved
	hasRDMA bool // its counters were read
}

func usageBetween(before, after Reading, ops, bytes int64) *Usage {
	u := &Usage{CPU: costOf(after.CPUSeconds-before.CPUSeconds, ops, bytes)}
	rss := float64(after.PeakBytes) / (1 << 20)
	if after.PeakIsNow {
		u.RSSMiB = rss
	} else {
		u.PeakRSSMiB = rss
	}
	for transport, n := range after.BodyBytes {
		if u.BodyBytes == nil {
			u.BodyBytes = make(map[string]float64)
		}
		u.BodyBytes[transport] = n - before.BodyBytes[transport]
	}
	u.hasRDMA, u.rdma = after.RDMA != nil, map[string]Moved{}
	for label, m := range after.RDMA {
		was := before.RDMA[label]
		u.rdma[label] = Moved{m.Ops - was.Ops, m.Bytes - was.Bytes}
	}
	return u
}

// Processes reads /proc of server processes on this machine.
type Processes []int

// clockTicks is the unit of /proc/PID/stat: USER_HZ, which is 100 on every Linux that Go runs on.
const clockTicks = 100

// Read implements Server.
func (p Processes) Read(_ context.Context, reset bool) (Reading, error) {
	var r Reading
	for _, pid := range p {
		dir := "/proc/" + strconv.Itoa(pid)
		if reset {
			// 5 resets the peak (proc(5)). Where it is not allowed the peak is that of the process's life.
			_ = os.WriteFile(dir+"/clear_refs", []byte("5"), 0)
		}
		stat, err := os.ReadFile(dir + "/stat")
		if err != nil {
			return Reading{}, err
		}
		cpu, err := statCPU(string(stat))
		if err != nil {
			return Reading{}, fmt.Errorf("%s/stat: %w", dir, err)
		}
		status, err := os.ReadFile(dir + "/status")
		if err != nil {
			return Reading{}, err
		}
		r.CPUSeconds += cpu
		r.PeakBytes += statusPeak(string(status))
	}
	return r, nil
}

// statCPU is the user and system time of a /proc/PID/stat (fields 14 and 15).
func statCPU(stat string) (float64, error) {
	// The name in field 2 may hold spaces and brackets.
	_, rest, ok := strings.Cut(stat[max(strings.LastIndexByte(stat, ')'), 0):], ") ")
	fields := strings.Fields(rest)
	if !ok || len(fields) < 13 {
		return 0, errors.New("malformed")
	}
	user, err1 := strconv.ParseFloat(fields[11], 64)
	system, err2 := strconv.ParseFloat(fields[12], 64)
	return (user + system) / clockTicks, errors.Join(err1, err2)
}

// statusPeak is the VmHWM of a /proc/PID/status, in bytes; 0 where there is none.
func statusPeak(status string) int64 {
	for line := range strings.Lines(status) {
		if value, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, _ := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
			return kib << 10
		}
	}
	return 0
}

// Metrics reads the /metrics of a management address.
type Metrics struct {
	url  string
	http *http.Client
}

// maxMetricsBytes limits the answer of /metrics.
const maxMetricsBytes = 16 << 20

// NewMetrics returns a reader of address, "https://host:port". Its certificate is self-signed as a rule and not
// checked: nothing secret goes there.
func NewMetrics(address string) *Metrics {
	return &Metrics{url: strings.TrimSuffix(address, "/") + "/metrics", http: &http.Client{
		Timeout:   10 * time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}},
	}}
}

// Read implements Server. The peak of memory can't be had this way; it is the present use.
func (m *Metrics) Read(ctx context.Context, _ bool) (Reading, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, m.url, nil)
	if err != nil {
		return Reading{}, err
	}
	resp, err := m.http.Do(req)
	if err != nil {
		return Reading{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxMetricsBytes))
	if err != nil {
		return Reading{}, err
	}
	if resp.StatusCode != http.StatusOK {
		return Reading{}, fmt.Errorf("%s: %s", m.url, resp.Status)
	}
	return parseMetrics(body)
}

// moved adds a counter of RDMA, by its labels.
func (r *Reading) moved(metric string, m Moved) {
	label := labelOf(metric, "direction") + "/" + labelOf(metric, "provider")
	if r.RDMA == nil {
		r.RDMA = make(map[string]Moved)
	}
	was := r.RDMA[label]
	r.RDMA[label] = Moved{was.Ops + m.Ops, was.Bytes + m.Bytes}
}

func labelOf(metric, name string) string {
	_, rest, _ := strings.Cut(metric, name+`="`)
	value, _, _ := strings.Cut(rest, `"`)
	return value
}

// parseMetrics takes what it needs of the Prometheus text format.
func parseMetrics(text []byte) (Reading, error) {
	r := Reading{PeakIsNow: true}
	found := false
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		name, value, ok := strings.Cut(lines.Text(), " ")
		if !ok || name == "#" {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			continue // another metric, with a timestamp or a space in a label
		}
		switch {
		case name == "process_cpu_seconds_total":
			r.CPUSeconds, found = v, true
		case name == "process_resident_memory_bytes":
			r.PeakBytes = int64(v)
		case strings.HasPrefix(name, "millrace_s3_bytes_total{"):
			transport := labelOf(name, "transport")
			if r.BodyBytes == nil {
				r.BodyBytes = make(map[string]float64)
			}
			r.BodyBytes[transport] += v
		case strings.HasPrefix(name, "millrace_rdma_bytes_total{"):
			r.moved(name, Moved{Bytes: int64(v)})
		case strings.HasPrefix(name, "millrace_rdma_operations_total{"):
			r.moved(name, Moved{Ops: int64(v)})
		}
	}
	if !found {
		return Reading{}, errors.New("no process_cpu_seconds_total in the metrics")
	}
	return r, lines.Err()
}
