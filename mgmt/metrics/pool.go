package metrics

import "github.com/prometheus/client_golang/prometheus"

// pool reads Sources at each scrape.
type pool struct {
	sources Sources
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// Describe sends nothing: which metrics there are depends on the sources and the drives.
func (p *pool) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (p *pool) Collect(to chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	count := func(d *prometheus.Desc, v uint64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	if p.sources.Drives != nil {
		p.collectDrives(gauge, count)
	}
	p.collectRDMA(gauge, count)
	if p.sources.Requests != nil {
		gauge(desc("millrace_s3_requests_in_flight", "S3 requests in progress."), float64(p.sources.Requests()))
	}
	if p.sources.Arena != nil {
		a := p.sources.Arena()
		gauge(desc("millrace_arena_size_bytes", "Size of the arena of I/O buffers."), float64(a.SizeBytes))
		gauge(desc("millrace_arena_used_bytes", "Bytes of the arena in use."), float64(a.UsedBytes))
	}
	if p.sources.Engine != nil {
		e := p.sources.Engine()
		count(desc("millrace_degraded_reads_total", "Reads that needed other shards than the data shards."), e.DegradedReads)
		count(desc("millrace_degraded_writes_total", "Segments written with fewer shards than the scheme has."),
			e.DegradedWrites)
		count(desc("millrace_dropped_drives_total", "Drives taken out after a fault."), e.DroppedDrives)
		count(desc("millrace_mended_shards_total", "Shards made anew by repair."), e.MendedShards)
		count(desc("millrace_moved_shards_total", "Shards moved back to drives that replace others."), e.MovedShards)
		count(desc("millrace_scrub_read_bytes_total", "Bytes read and verified by scrubs."), e.ScrubbedBytes)
		count(desc("millrace_scrub_damaged_shards_total", "Shards that a scrub found damaged."), e.ScrubDamaged)
		count(desc("millrace_scrub_orphan_shards_total", "Shards that a scrub found nothing to refer to."), e.ScrubOrphans)
		count(desc("millrace_scrub_differing_records_total", "Index records that a scrub found to differ between drives."),
			e.ScrubDiffering)
	}
}

func (p *pool) collectDrives(
	gauge func(*prometheus.Desc, float64, ...string), count func(*prometheus.Desc, uint64, ...string),
) {
	read := desc("millrace_drive_read_bytes_total", "Bytes read from the drive's data area.", "drive")
	written := desc("millrace_drive_written_bytes_total", "Bytes written to the drive's data area.", "drive")
	damaged := desc("millrace_drive_checksum_errors_total", "Blocks read that did not match their checksum.", "drive")
	late := desc("millrace_drive_late_reads_total", "Reads that were not waited for: other drives made up for them.", "drive")
	slow := desc("millrace_drive_slow", "1 if the drive is slower than the others, so that reads spare it.", "drive")
	size := desc("millrace_drive_size_bytes", "Size of the drive's data area.", "drive")
	free := desc("millrace_drive_free_bytes", "Free bytes of the drive's data area.", "drive")
	state := desc("millrace_drive_state", "1 for the state that the drive is in.", "drive", "state")
	info := desc("millrace_drive_info", "1, with the drive's identity and place.", "drive", "uuid", "path")
	var sizeBytes, freeBytes int64
	for _, d := range p.sources.Drives() {
		label := driveLabel(d.Slot)
		count(read, d.ReadBytes, label)
		count(written, d.WrittenBytes, label)
		count(damaged, d.ChecksumErrors, label)
		count(late, d.LateReads, label)
		gauge(slow, flag(d.Slow), label)
		gauge(size, float64(d.SizeBytes), label)
		gauge(free, float64(d.FreeBytes), label)
		for _, s := range []string{"in", "out", "missing"} {
			gauge(state, flag(s == d.State), label, s)
		}
		gauge(info, 1, label, d.ID, d.Path)
		sizeBytes += d.SizeBytes
		freeBytes += d.FreeBytes
	}
	if p.sources.DataShares == nil {
		return
	}
	if k, n := p.sources.DataShares(); n > 0 {
		share := float64(k) / float64(n)
		gauge(desc("millrace_pool_capacity_bytes", "Object bytes that the drives present can hold, full or not."),
			float64(sizeBytes)*share)
		gauge(desc("millrace_pool_free_bytes", "Object bytes for which there is space."), float64(freeBytes)*share)
	}
}

func flag(set bool) float64 {
	if set {
		return 1
	}
	return 0
}
