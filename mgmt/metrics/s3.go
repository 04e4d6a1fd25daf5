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
	requests *prometheus.CounterVec
	rows     [transports][]row
	in, out  [transports]prometheus.Counter
	current  prometheus.Gauge
}

// row is one operation over one transport. A counter appears when its code is first seen.
type row struct {
	operation string
	transport Transport
	codes     [maxStatus - minStatus + 1]atomic.Pointer[prometheus.Counter]
	seconds   prometheus.Observer
}

func newS3(registry *prometheus.Registry, operations []string) *S3 {
	s := &S3{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "millrace_s3_requests_total", Help: "S3 requests, by operation, HTTP status and transport."},
			[]string{"op", "code", "transport"}),
		current: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "millrace_s3_requests_in_flight", Help: "S3 requests in progress."}),
	}
	bytes := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "millrace_s3_bytes_total", Help: "Bytes of S3 bodies received (in) and sent (out), by transport."},
		[]string{"direction", "transport"})
	seconds := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "millrace_s3_request_duration_seconds", Help: "Time from the parsed header to the end of the answer.",
		Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}},
		[]string{"op", "transport"})
	registry.MustRegister(s.requests, s.current, bytes, seconds)
	for t := range transports {
		s.in[t] = bytes.WithLabelValues("in", t.label())
		s.out[t] = bytes.WithLabelValues("out", t.label())
		s.rows[t] = make([]row, len(operations))
		for op, name := range operations {
			s.rows[t][op] = row{operation: name, transport: t}
			if t == HTTP { // the others appear with the transport
				s.rows[t][op].seconds = seconds.WithLabelValues(name, t.label())
			}
		}
	}
	return s
}

// Begin counts a request in progress; the caller calls End when it is over.
func (s *S3) Begin() { s.current.Inc() }

// End is the counterpart of Begin.
func (s *S3) End() { s.current.Dec() }

// Observe counts one request that is over: op is its index in the list given to New, status the
// HTTP status, in and out the bytes of the bodies.
func (s *S3) Observe(op int, status int, t Transport, in, out int64, took time.Duration) {
	if op < 0 || op >= len(s.rows[t]) {
		return
	}
	r := &s.rows[t][op]
	s.counter(r, status).Inc()
	if in > 0 {
		s.in[t].Add(float64(in))
	}
	if out > 0 {
		s.out[t].Add(float64(out))
	}
	if r.seconds != nil {
		r.seconds.Observe(took.Seconds())
	}
}

func (s *S3) counter(r *row, status int) prometheus.Counter {
	if status < minStatus || status > maxStatus {
		status = 500
	}
	slot := &r.codes[status-minStatus]
	if c := slot.Load(); c != nil {
		return *c
	}
	c := s.requests.WithLabelValues(r.operation, strconv.Itoa(status), r.transport.label())
	slot.Store(&c) // whoever comes second stores the same counter
	return c
}

// RDMA counts the RDMA transports' work. No transport is there yet; the metrics are, at zero.
type RDMA struct {
	declined *prometheus.CounterVec
}

func newRDMA(registry *prometheus.Registry) *RDMA {
	operations := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "millrace_rdma_operations_total", Help: "RDMA work requests completed, by direction and provider."},
		[]string{"direction", "provider"})
	bytes := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "millrace_rdma_bytes_total", Help: "Bytes moved by RDMA, by direction and provider."},
		[]string{"direction", "provider"})
	r := &RDMA{declined: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "millrace_rdma_declined_total", Help: "Requests for RDMA that were declined, by reason."},
		[]string{"reason"})}
	registry.MustRegister(operations, bytes, r.declined)
	for _, direction := range []string{"read", "write"} {
		for _, provider := range []string{"soft", "verbs"} {
			operations.WithLabelValues(direction, provider)
			bytes.WithLabelValues(direction, provider)
		}
	}
	r.declined.WithLabelValues(DeclinedOff)
	return r
}

// DeclinedOff is the reason where the appliance serves no RDMA.
const DeclinedOff = "off"

// Declined counts a request for RDMA that was declined.
func (r *RDMA) Declined(reason string) { r.declined.WithLabelValues(reason).Inc() }
