package metrics

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// RDMATraffic is what an RDMA device has done since it was opened, on this side's initiative.
type RDMATraffic struct {
	Provider             string
	ReadOps, ReadBytes   uint64 // out of clients' memory
	WriteOps, WriteBytes uint64 // into clients' memory
	Failed               uint64 // work requests that ended in an error
	Connections          int64  // that live now
	// BouncedBytes were copied because they did not lie in registered memory; DeviceCopiedBytes went
	// through a buffer of the provider.
	BouncedBytes, DeviceCopiedBytes uint64
}

// RDMA counts the requests for RDMA that were declined.
type RDMA struct {
	declined *prometheus.CounterVec
}

func newRDMA(registry *prometheus.Registry) *RDMA {
	r := &RDMA{declined: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "millrace_rdma_declined_total", Help: "Requests for RDMA that were declined, by reason."},
		[]string{"reason"})}
	registry.MustRegister(r.declined)
	r.declined.WithLabelValues("off")
	return r
}

// Declined counts a request for RDMA that was declined. There must be few different reasons.
func (r *RDMA) Declined(reason string) { r.declined.WithLabelValues(reason).Inc() }

// collectRDMA shows the device's counters, and zeros for the providers that are not in use.
func (p *pool) collectRDMA(
	gauge func(*prometheus.Desc, float64, ...string), count func(*prometheus.Desc, uint64, ...string),
) {
	operations := desc("millrace_rdma_operations_total", "RDMA work requests completed, by direction and provider.",
		"direction", "provider")
	bytes := desc("millrace_rdma_bytes_total", "Bytes moved by RDMA, by direction and provider: write is into "+
		"clients' memory, read is out of it.", "direction", "provider")
	failed := desc("millrace_rdma_failed_total", "RDMA work requests that ended in an error.", "provider")
	live := desc("millrace_rdma_connections", "RDMA connections that live.", "provider")
	copied := desc("millrace_rdma_copied_bytes_total", "Bytes moved by RDMA that were copied in this process: "+
		"bounce, for not being in registered memory; device, by the provider.", "by", "provider")
	var all []RDMATraffic
	if p.sources.RDMA != nil {
		all = p.sources.RDMA()
	}
	for _, provider := range []string{"soft", "ibverbs", "null"} {
		at := slices.IndexFunc(all, func(t RDMATraffic) bool { return t.Provider == provider })
		if at < 0 && provider == "null" {
			continue // it is for measuring only
		}
		var shown RDMATraffic
		if at >= 0 {
			shown = all[at]
		}
		count(operations, shown.ReadOps, "read", provider)
		count(operations, shown.WriteOps, "write", provider)
		count(bytes, shown.ReadBytes, "read", provider)
		count(bytes, shown.WriteBytes, "write", provider)
		count(failed, shown.Failed, provider)
		gauge(live, float64(shown.Connections), provider)
		count(copied, shown.BouncedBytes, "bounce", provider)
		count(copied, shown.DeviceCopiedBytes, "device", provider)
	}
}
