package main

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"
)

// report is the table of all that was measured.
type report struct {
	servers []string
	rows    []row
}

// row is one work on every server.
type row struct {
	work    work
	results []result
}

func (r report) print(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprint(w, "\t")
	for _, name := range r.servers {
		fmt.Fprintf(w, "%s: rate\tCPU\tp50\tp99\tpeak RSS\t", name)
	}
	if len(r.servers) > 1 {
		fmt.Fprintf(w, "%s / %s", r.servers[0], r.servers[1])
	}
	fmt.Fprintln(w)
	for _, row := range r.rows {
		fmt.Fprintf(w, "%s\t", row.work.name)
		for _, s := range row.results {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%.0f MiB\t", rate(row.work.unit, s), cost(row.work.unit, s),
				latency(s.p50Ms, .5), latency(s.p99Ms, .99), s.peakMiB)
		}
		if len(row.results) > 1 {
			fmt.Fprint(w, ratio(row.work.unit, row.results[0], row.results[1]))
		}
		fmt.Fprintln(w)
	}
	_ = w.Flush()
	for _, row := range r.rows {
		for i, s := range row.results {
			if s.readBytes > 0 {
				fmt.Fprintf(out, "%s: %s reads %.1f KiB from the drives\n", row.work.name, r.servers[i],
					float64(s.readBytes)/float64(s.ops)/kib)
			}
		}
	}
}

func rate(u unit, s result) string {
	switch {
	case s.seconds == 0 || s.ops == 0:
		return "-"
	case u == perOperation:
		return fmt.Sprintf("%.0f/s", float64(s.ops)/s.seconds)
	case u == perListing:
		return brief(s.seconds / float64(s.ops))
	}
	return fmt.Sprintf("%.0f MiB/s", float64(s.bytes)/mib/s.seconds)
}

// cost is the server's CPU time: for one operation, or for one GiB.
func cost(u unit, s result) string {
	switch {
	case s.ops == 0:
		return "-"
	case u == perOperation || u == perListing:
		return brief(s.cpuSeconds / float64(s.ops))
	case s.bytes == 0:
		return "-"
	}
	return fmt.Sprintf("%.2f s/GiB", s.cpuSeconds*gib/float64(s.bytes))
}

// ratio compares what the work is judged by.
func ratio(u unit, a, b result) string {
	var x, y float64
	what := "CPU"
	switch u {
	case perOperation:
		x, y = a.cpuSeconds/float64(max(1, a.ops)), b.cpuSeconds/float64(max(1, b.ops))
	case perByte:
		x, y = a.cpuSeconds/float64(max(1, a.bytes)), b.cpuSeconds/float64(max(1, b.bytes))
	case perListing:
		what = "time"
		x, y = a.seconds/float64(max(1, a.ops)), b.seconds/float64(max(1, b.ops))
	case perMemory:
		what = "memory"
		x, y = a.peakMiB, b.peakMiB
	}
	if y == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f %s", x/y, what)
}

// latency is the quantile of single operations, or the median of the quantiles of the rounds.
func latency(values []float64, q float64) string {
	if len(values) == 0 {
		return "-"
	}
	if len(values) < rangeReads {
		q = .5
	}
	sorted := slices.Sorted(slices.Values(values))
	return brief(sorted[min(len(sorted)-1, int(q*float64(len(sorted))))] / 1e3)
}

// brief is a time in seconds with three figures.
func brief(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	switch {
	case d < time.Millisecond:
		return fmt.Sprintf("%.3g µs", seconds*1e6)
	case d < time.Second:
		return fmt.Sprintf("%.3g ms", seconds*1e3)
	}
	return fmt.Sprintf("%.3g s", seconds)
}
