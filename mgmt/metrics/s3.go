package metrics

import (
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Transport is how the bytes of a request were carried.
type Transport uint8

// The transports, as the label "transport" has them.
const (
	HTTP Transport = iota
	RDMATransport
	transports // their number
)

func (t Transport) label() string {
	return [transports]string{"http", "rdma"}[t]
}

// The HTTP statuses that are counted each by its own; others are counted as 500.
const (
	minStatus = 100
	maxStatus = 599
)

// S3 counts the requests of the S3 front.
type S3 struct {
	operations []string
	requests   *prometheus.CounterVec
	seconds    *prometheus.HistogramVec
	rows       [transports][]atomic.Pointer[row] // by operation, made when it is first seen
	in, out    [transports]prometheus.Counter
}

// row is one operation over one transport. A counter appears when its code is first seen.
type row struct {
	codes   [maxStatus - minStatus + 1]atomic.Pointer[prometheus.Counter]
	seconds prometheus.Observer
}

func newS3(registry *prometheus.Registry, operations []string) *S3 {
	s := &S3{
		operations: operations,
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "millrace_s3_requests_total", Help: "S3 requests, by operation, HTTP status and transport."},
			[]string{"op", "code", "transport"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "millrace_s3_request_duration_seconds", Help: "Time from the parsed header to the end of the answer.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}},
			[]string{"op", "transport"}),
	}
	bytes := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "millrace_s3_bytes_total", Help: "Bytes of S3 bodies received (in) and sent (out), by transport."},
		[]string{"direction", "transport"})
	registry.MustRegister(s.requests, bytes, s.seconds)
	for t := range transports {
		s.in[t] = bytes.WithLabelValues("in", t.label())
		s.out[t] = bytes.WithLabelValues("out", t.label())
		s.rows[t] = make([]atomic.Pointer[row], len(operations))
	}
	return s
}

// Observe counts one request that is over: op is its index in the list given to New, status the
// HTTP status, in and out the bytes of the bodies.
func (s *S3) Observe(op int, status int, t Transport, in, out int64, took time.Duration) {
	if op < 0 || op >= len(s.operations) {
		return
	}
	r := s.rows[t][op].Load()
	if r == nil {
		r = s.newRow(op, t)
	}
	s.counter(r, op, status, t).Inc()
	if in > 0 {
		s.in[t].Add(float64(in))
	}
	if out > 0 {
		s.out[t].Add(float64(out))
	}
	r.seconds.Observe(took.Seconds())
}

func (s *S3) newRow(op int, t Transport) *row {
	r := &row{seconds: s.seconds.WithLabelValues(s.operations[op], t.label())}
	if !s.rows[t][op].CompareAndSwap(nil, r) {
		return s.rows[t][op].Load()
	}
	return r
}

func (s *S3) counter(r *row, op, status int, t Transport) prometheus.Counter {
	if status < minStatus || status > maxStatus {
		status = 500
	}
	slot := &r.codes[status-minStatus]
	if c := slot.Load(); c != nil {
		return *c
	}
	c := s.requests.WithLabelValues(s.operations[op], strconv.Itoa(status), t.label())
	slot.Store(&c) // whoever comes second stores the same counter
	return c
}
