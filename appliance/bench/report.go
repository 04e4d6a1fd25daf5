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
	samples []sample
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
		for _, s := range row.samples {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d MiB\t", rate(row.work.unit, s), cost(row.work.unit, s),
				brief(percentile(s.latencies, 50)), brief(percentile(s.latencies, 99)), s.peakBytes/mib)
		}
		if len(row.samples) > 1 {
			fmt.Fprint(w, ratio(row.work.unit, row.samples[0], row.samples[1]))
		}
		fmt.Fprintln(w)
	}
	_ = w.Flush()
	for _, row := range r.rows {
		if row.work.drives {
			for i, s := range row.samples {
				fmt.Fprintf(out, "%s: %s reads %.1f KiB from the drives\n", row.work.name, r.servers[i],
					float64(s.readBytes)/float64(max(1, s.ops))/kib)
			}
		}
	}
}

func rate(u unit, s sample) string {
	seconds := s.wall.Seconds()
	switch {
	case seconds == 0 || s.ops == 0:
		return "-"
	case u == perOperation:
		return fmt.Sprintf("%.0f/s", float64(s.ops)/seconds)
	case u == perListing:
		return brief(s.wall / time.Duration(s.ops))
	}
	return fmt.Sprintf("%.0f MiB/s", float64(s.bytes)/mib/seconds)
}

// cost is the server's CPU time: for one operation, or for one GiB.
func cost(u unit, s sample) string {
	switch {
	case s.ops == 0:
		return "-"
	case u == perOperation || u == perListing:
		return brief(s.cpu / time.Duration(s.ops))
	case s.bytes == 0:
		return "-"
	}
	return fmt.Sprintf("%.2f s/GiB", s.cpu.Seconds()*gib/float64(s.bytes))
}

// ratio compares what the work is judged by.
func ratio(u unit, a, b sample) string {
	var x, y float64
	what := "CPU"
	switch u {
	case perOperation:
		x, y = a.cpu.Seconds()/float64(max(1, a.ops)), b.cpu.Seconds()/float64(max(1, b.ops))
	case perByte:
		x, y = a.cpu.Seconds()/float64(max(1, a.bytes)), b.cpu.Seconds()/float64(max(1, b.bytes))
	case perListing:
		what = "time"
		x, y = a.wall.Seconds()/float64(max(1, a.ops)), b.wall.Seconds()/float64(max(1, b.ops))
	case perMemory:
		what = "memory"
		x, y = float64(a.peakBytes), float64(b.peakBytes)
	}
	if y == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f %s", x/y, what)
}

// percentile is the smallest value that p percent of the values do not exceed.
func percentile(values []time.Duration, p int) time.Duration {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[min(len(sorted)-1, len(sorted)*p/100)]
}

// brief is a duration with three figures.
func brief(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return fmt.Sprintf("%.3g µs", float64(d)/float64(time.Microsecond))
	case d < time.Second:
		return fmt.Sprintf("%.3g ms", float64(d)/float64(time.Millisecond))
	}
	return fmt.Sprintf("%.3g s", d.Seconds())
}
