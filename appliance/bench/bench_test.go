package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestLoopUsesEveryNumberOnce(t *testing.T) {
	var mu sync.Mutex
	var got []int
	s, err := loop{workers: 3, limit: 10}.run(t.Context(), func(_ context.Context, i int) (int64, error) {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, i)
		return 5, nil
	})
	slices.Sort(got)
	if want := []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}; err != nil || !slices.Equal(got, want) {
		t.Errorf("numbers = %v, %v; want %v", got, err, want)
	}
	if s.ops != 10 || s.bytes != 50 || len(s.latencies) != 10 {
		t.Errorf("sample = %d ops, %d bytes, %d latencies; want 10, 50, 10", s.ops, s.bytes, len(s.latencies))
	}
}

func TestLoopEndsAtFirstError(t *testing.T) {
	broken := errors.New("broken")
	_, err := loop{workers: 2}.run(t.Context(), func(ctx context.Context, i int) (int64, error) {
		if i == 7 {
			return 0, broken
		}
		return 0, nil
	})
	if !errors.Is(err, broken) {
		t.Errorf("error = %v; want %v", err, broken)
	}
}

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
	one := sample{ops: 100, wall: time.Second, cpu: 10 * time.Millisecond, peakBytes: 50 * mib, readBytes: 100 * 96 * kib,
		latencies: []time.Duration{time.Millisecond, 2 * time.Millisecond}}
	two := one
	two.cpu *= 4
	r := report{servers: []string{"A", "B"}, rows: []row{
		{work: work{name: "op", unit: perOperation, drives: true}, samples: []sample{one, two}},
	}}
	var b strings.Builder
	r.print(&b)
	for _, want := range []string{"100/s", "100 µs", "400 µs", "0.25 CPU", "50 MiB", "A reads 96.0 KiB"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("report lacks %q:\n%s", want, b.String())
		}
	}
}

func TestPercentile(t *testing.T) {
	var values []time.Duration
	for i := range 100 {
		values = append(values, time.Duration(100-i))
	}
	for p, want := range map[int]time.Duration{0: 1, 50: 51, 99: 100, 100: 100} {
		if got := percentile(values, p); got != want {
			t.Errorf("percentile(%d) = %d; want %d", p, got, want)
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
