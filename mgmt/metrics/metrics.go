// Package metrics holds the appliance's Prometheus metrics: what the S3 front observes of each
// request, and what is read of the pool, its drives and the arena at a scrape.
//
// It is not a monitoring system, and it has no opinion on what is healthy. It declares what it
// reads (Sources); the wiring gives it functions.
//
// Invariant: observing a request allocates nothing and takes no lock once its operation and code
// were seen before, and a scrape only calls Sources, which must not take locks of the data path.
package metrics

import (
	"net/http"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Drive is what is known of one slot of the pool.
type Drive struct {
	Slot  int
	ID    string // the drive's UUID; "" where none was ever seated
	Path  string // where it was opened; "" where it isn't here
	State string // "in", "out" or "missing"

	SizeBytes, FreeBytes    int64 // 0 where it isn't here
	ReadBytes, WrittenBytes uint64
	ChecksumErrors          uint64
	Slow                    bool
	LateReads               uint64 // reads that were not waited for
}

// Arena is the use of the I/O buffers, in bytes.
type Arena struct {
	SizeBytes, UsedBytes int64
}

// Engine counts the events of the engine that are worth watching.
type Engine struct {
	DegradedReads, DegradedWrites, DroppedDrives, MendedShards uint64
	MovedShards                                                uint64
	ScrubbedBytes, ScrubDamaged, ScrubOrphans, ScrubDiffering  uint64
}

// Sources is what a scrape reads. A nil function leaves its metrics out.
type Sources struct {
	Drives func() []Drive
	Arena  func() Arena
	Engine func() Engine
	// RDMA has an entry for each provider in use; the metrics of others are zero.
	RDMA func() []RDMATraffic
	// Requests is the number of S3 requests in progress.
	Requests func() int64
	// DataShares gives k and n of the pool's scheme, for the usable capacity.
	DataShares func() (k, n int)
}

// Set is all metrics of one appliance, in a registry of its own.
type Set struct {
	registry *prometheus.Registry
	// S3 is for the S3 front.
	S3 *S3
	// RDMA is for requests that asked for it in vain.
	RDMA *RDMA
}

// New returns a set whose S3 part knows the operations of that list by their index.
func New(operations []string, sources Sources, version string) *Set {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		&pool{sources: sources},
	)
	build := prometheus.NewGauge(prometheus.GaugeOpts{Name: "millrace_build_info", Help: "1, with the version.",
		ConstLabels: prometheus.Labels{"version": version}})
	build.Set(1)
	registry.MustRegister(build)
	return &Set{registry: registry, S3: newS3(registry, operations), RDMA: newRDMA(registry)}
}

// Handler serves the metrics in the Prometheus text format.
func (s *Set) Handler() http.Handler {
	return promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4})
}

// driveLabel names a slot as the folders of a virtual JBOF are named.
func driveLabel(slot int) string {
	if slot < 10 {
		return "0" + strconv.Itoa(slot)
	}
	return strconv.Itoa(slot)
}
