package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/mgmt/api"
)

func TestDrawPool(t *testing.T) {
	now := time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)
	at := func(d time.Duration) *time.Time {
		t := now.Add(d)
		return &t
	}
	s := &poolStatus{
		Pool: api.Pool{ID: "77f2", Status: api.Degraded, Scheme: "2+1", RawBytes: 4 << 30, RawUsedBytes: 1 << 30, ObjectFreeBytes: 2 << 30,
			Repair: api.Repair{MissingShards: 2, SegmentsFailed: 3, Progress: api.Progress{Running: true, DoneBytes: 25 << 20,
				TotalBytes: 100 << 20, BytesPerSecond: 1 << 20, SecondsLeft: 75}},
			Scrub: api.Scrub{Finished: at(-50 * time.Hour), Next: at(90 * time.Minute), DamagedShards: 1}},
		Drives: []api.Drive{
			{Slot: 0, State: "in", Slow: true, SizeBytes: 2 << 30, UsedBytes: 1 << 30, Path: "/d/00", Scrub: api.Scrub{Finished: at(-3 * time.Minute)}},
			{Slot: 1, State: "missing", SizeBytes: 2 << 30, OutSince: at(-65 * time.Second)},
			{Slot: 2, State: "failed", Error: "no more", SizeBytes: 2 << 30, ChecksumErrors: 2, ReadErrors: 1, Path: "/d/02",
				Scrub: api.Scrub{Progress: api.Progress{Running: true, DoneBytes: 1, TotalBytes: 2, BytesPerSecond: 3 << 20}}},
		},
	}
	var got strings.Builder
	drawPool(&got, s, now)
	want := strings.TrimPrefix(`
pool    77f2  2+1 over 3 drives  DEGRADED
space   [=======                       ]  25%  1.0 GiB of 4.0 GiB used; room for 2.0 GiB of objects
repair  [=======                       ]  25%  25.0 MiB of 100.0 MiB  1.0 MiB/s  1:15 left  segments that miss 2, 3 not mended
fill    all drives have their records
scrub   ended 2d ago, 1 damaged shards found, next in 1:30h

SLOT  STATE         USED               OF       ERRORS  SCRUB          PATH
00    in, slow      [=====     ]  50%  2.0 GiB  0       3:00 ago       /d/00
01    missing 1:05  [          ]   0%  2.0 GiB  0       -              -
02    failed        [          ]   0%  2.0 GiB  3       50% 3.0 MiB/s  /d/02
slot 02 failed: no more
`, "\n")
	if diff := cmp.Diff(want, got.String()); diff != "" {
		t.Errorf("drawPool (-want +got):\n%s", diff)
	}
}

func TestClock(t *testing.T) {
	for _, test := range []struct {
		d    time.Duration
		want string
	}{
		{-time.Second, "0:00"}, {61 * time.Second, "1:01"}, {time.Hour, "1:00h"}, {25*time.Hour + 5*time.Minute, "25:05h"},
		{72 * time.Hour, "3d"},
	} {
		if got := clock(test.d); got != test.want {
			t.Errorf("clock(%v) = %q; want %q", test.d, got, test.want)
		}
	}
	if ago(time.Second) != "just now" || ahead(-time.Hour) != "now" {
		t.Errorf("ago(1s) = %q, ahead(-1h) = %q; want just now, now", ago(time.Second), ahead(-time.Hour))
	}
}
