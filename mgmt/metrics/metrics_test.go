package metrics

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func scrape(t *testing.T, s *Set) string {
	t.Helper()
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if w.Code != 200 {
		t.Fatalf("scrape: status %d: %s", w.Code, w.Body)
	}
	return w.Body.String()
}

func testSet() *Set {
	return New([]string{"GetObject", "PutObject"}, Sources{
		Drives: func() []Drive {
			return []Drive{
				{Slot: 0, ID: "u0", Path: "/d/00", State: "in", SizeBytes: 300, FreeBytes: 30, ReadBytes: 7, WrittenBytes: 9,
					ChecksumErrors: 1, Slow: true, LateReads: 6},
				{Slot: 11, ID: "u1", State: "missing"},
			}
		},
		Arena:  func() Arena { return Arena{SizeBytes: 96, UsedBytes: 4} },
		Engine: func() Engine { return Engine{DegradedReads: 3, ScrubDamaged: 2} },
		RDMA: func() []RDMATraffic {
			return []RDMATraffic{{Provider: "soft", ReadOps: 2, ReadBytes: 20, WriteOps: 3, WriteBytes: 30, Failed: 4, Connections: 5,
				BouncedBytes: 6, DeviceCopiedBytes: 7}}
		},
		Requests:   func() int64 { return 1 },
		DataShares: func() (int, int) { return 2, 3 },
	}, "v1")
}

func TestScrape(t *testing.T) {
	s := testSet()
	s.S3.Observe(0, 206, HTTP, 0, 1000, 3*time.Millisecond)
	s.S3.Observe(0, 206, HTTP, 0, 24, 3*time.Millisecond)
	s.S3.Observe(1, 200, HTTP, 4096, 0, time.Second)
	s.S3.Observe(1, 7, HTTP, 0, 0, time.Second)
	s.S3.Observe(99, 200, HTTP, 1, 1, 0) // no such operation: not counted
	text := scrape(t, s)
	for _, want := range []string{
		`millrace_s3_requests_total{code="206",op="GetObject",transport="http"} 2`,
		`millrace_s3_requests_total{code="200",op="PutObject",transport="http"} 1`,
		`millrace_s3_requests_total{code="500",op="PutObject",transport="http"} 1`,
		`millrace_s3_bytes_total{direction="in",transport="http"} 4096`,
		`millrace_s3_bytes_total{direction="out",transport="http"} 1024`,
		`millrace_s3_bytes_total{direction="out",transport="rdma"} 0`,
		`millrace_s3_request_duration_seconds_bucket{op="GetObject",transport="http",le="0.005"} 2`,
		`millrace_s3_requests_in_flight 1`,
		`millrace_rdma_operations_total{direction="read",provider="soft"} 2`,
		`millrace_rdma_bytes_total{direction="read",provider="soft"} 20`,
		`millrace_rdma_operations_total{direction="write",provider="soft"} 3`,
		`millrace_rdma_bytes_total{direction="write",provider="soft"} 30`,
		`millrace_rdma_failed_total{provider="soft"} 4`,
		`millrace_rdma_connections{provider="soft"} 5`,
		`millrace_rdma_copied_bytes_total{by="bounce",provider="soft"} 6`,
		`millrace_rdma_copied_bytes_total{by="device",provider="soft"} 7`,
		`millrace_rdma_bytes_total{direction="write",provider="ibverbs"} 0`,
		`millrace_rdma_declined_total{reason="off"} 0`,
		`millrace_drive_read_bytes_total{drive="00"} 7`,
		`millrace_drive_written_bytes_total{drive="00"} 9`,
		`millrace_drive_checksum_errors_total{drive="00"} 1`,
		`millrace_drive_slow{drive="00"} 1`,
		`millrace_drive_slow{drive="11"} 0`,
		`millrace_drive_late_reads_total{drive="00"} 6`,
		`millrace_drive_state{drive="11",state="missing"} 1`,
		`millrace_drive_info{drive="00",path="/d/00",uuid="u0"} 1`,
		`millrace_pool_capacity_bytes 200`,
		`millrace_pool_free_bytes 20`,
		`millrace_arena_used_bytes 4`,
		`millrace_degraded_reads_total 3`,
		`millrace_scrub_damaged_shards_total 2`,
		`millrace_build_info{version="v1"} 1`,
		"go_goroutines ", "process_cpu_seconds_total ",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the scrape has no line %q", want)
		}
	}
	if t.Failed() {
		t.Log(text)
	}
}

func TestObserveDoesNotAllocate(t *testing.T) {
	s := testSet().S3
	s.Observe(0, 200, HTTP, 1, 1, time.Millisecond)
	if n := testing.AllocsPerRun(100, func() { s.Observe(0, 200, HTTP, 1, 1, time.Millisecond) }); n != 0 {
		t.Errorf("Observe allocates %v times; want 0", n)
	}
}

func BenchmarkObserve(b *testing.B) {
	s := testSet().S3
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			s.Observe(0, 200, HTTP, 0, 4096, time.Millisecond)
		}
	})
}
