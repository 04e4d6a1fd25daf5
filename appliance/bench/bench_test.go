package main

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestCleanupRunsAllBackwards(t *testing.T) {
	var got []string
	var c cleanup
	c.add(func() error { got = append(got, "first"); return errors.New("e1") })
	c.add(func() error { got = append(got, "second"); return errors.New("e2") })
	err := c.run()
	if !slices.Equal(got, []string{"second", "first"}) || err == nil || !strings.Contains(err.Error(), "e1") {
		t.Errorf("run() = %v in order %v; want both errors, the last step first", err, got)
	}
}

func TestReport(t *testing.T) {
	one := result{ops: 100, seconds: 1, cpuSeconds: .01, peakMiB: 50, readBytes: 100 * 96 * kib,
		p50Ms: []float64{1, 3, 2}, p99Ms: []float64{5}}
	two := one
	two.cpuSeconds *= 4
	r := report{servers: []string{"A", "B"}, rows: []row{
		{work: work{name: "op", unit: perOperation}, results: []result{one, two}},
	}}
	var b strings.Builder
	r.print(&b)
	for _, want := range []string{"100/s", "100 µs", "400 µs", "0.25 CPU", "50 MiB", "2 ms", "5 ms", "A reads 96.0 KiB"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("report lacks %q:\n%s", want, b.String())
		}
	}
}

func TestRatio(t *testing.T) {
	a := result{ops: 2, bytes: gib, seconds: 1, cpuSeconds: 1, peakMiB: 10}
	b := result{ops: 1, bytes: 2 * gib, seconds: 4, cpuSeconds: 4, peakMiB: 40}
	for u, want := range map[unit]string{
		perOperation: "0.12 CPU", perByte: "0.50 CPU", perListing: "0.12 time", perMemory: "0.25 memory",
	} {
		if got := ratio(u, a, b); got != want {
			t.Errorf("ratio(%d) = %s; want %s", u, got, want)
		}
	}
}

func TestParse(t *testing.T) {
	o, err := parse([]string{"-scheme", "4+4", "-large", "1GiB, 10GiB", "-minio", "x"})
	if err != nil || o.scheme.Shards() != 8 || len(o.large) != 2 || o.minio != "x" {
		t.Errorf("parse() = %+v, %v", o, err)
	}
	for _, args := range [][]string{{"-scheme", "4"}, {"-large", "x"}, {"-drive-size", "-1"}, {"-unknown"}} {
		if _, err := parse(args); err == nil {
			t.Errorf("parse(%q) gave no error", args)
		}
	}
}
