package segment

import (
	"bytes"
	"context"
	"crypto/md5"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/minio/crc64nvme"
	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/appliance/erasure"
)

// sink is a shard writer that keeps nothing.
type sink struct{}

func (sink) WriteAt([][]byte, int64, []uint64) error { return nil }

// source is a shard reader that has the bytes in place already, and checksums them.
type source struct{}

func (s *source) ReadShard(_ int64, bufs [][]byte) error {
	var sum uint64
	for _, b := range bufs {
		for len(b) > 0 {
			n := min(len(b), erasure.BlockBytes)
			sum ^= crc64nvme.Checksum(b[:n])
			b = b[n:]
		}
	}
	if sum == 1 {
		return io.EOF
	}
	return nil
}

// cpuNanos is the CPU time of the process so far.
func cpuNanos() int64 {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return u.Utime.Nano() + u.Stime.Nano()
}

// reportCPU gives the CPU time of all goroutines: on a shared machine it says more than the time passed.
func reportCPU(b *testing.B, since int64) {
	b.ReportMetric(float64(cpuNanos()-since)/float64(b.N), "cpu-ns/op")
}

var benchSizes = []int64{64 << 10, 1 << 20, 64 << 20}

// BenchmarkWrite: with MD5, and with a body that fills the buffers by copying.
func BenchmarkWrite(b *testing.B) {
	for _, s := range parseSchemes(b, "2+2", "4+2", "8+4") {
		for _, size := range benchSizes {
			b.Run(fmt.Sprintf("%v/%dKiB", s, size>>10), func(b *testing.B) {
				r := newRig(b, 64<<20, Config{})
				g := r.geometry(s, size)
				data := payload(size, 1)
				shards := make([]ShardWriter, s.Shards())
				for j := range shards {
					shards[j] = sink{}
				}
				b.SetBytes(size)
				b.ReportAllocs()
				defer reportCPU(b, cpuNanos())
				for b.Loop() {
					sum := md5.New()
					_, err := r.Write(context.Background(), g, shards, bytes.NewReader(data), func(p []byte) { sum.Write(p) })
					if err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkWriteFloor is the arithmetic of a Write alone: copy, MD5, coding, checksums.
func BenchmarkWriteFloor(b *testing.B) {
	var coders erasure.Coders
	for _, s := range parseSchemes(b, "2+2", "4+2", "8+4") {
		b.Run(s.String(), func(b *testing.B) {
			coder, _ := coders.Coder(s)
			shards := make([][]byte, s.Shards())
			for j := range shards {
				shards[j] = payload(erasure.UnitBytes, uint64(j))
			}
			body := payload(erasure.UnitBytes, 99)
			b.SetBytes(int64(s.Data) * erasure.UnitBytes)
			defer reportCPU(b, cpuNanos())
			for b.Loop() {
				sum := md5.New()
				for j := range s.Data {
					copy(shards[j], body)
					sum.Write(shards[j])
				}
				if err := coder.Encode(shards); err != nil {
					b.Fatal(err)
				}
				for j := range shards {
					blockCRCs(shards[j])
				}
			}
		})
	}
}

// BenchmarkRead: of healthy shards, of the whole segment; the client takes the bytes at no cost.
func BenchmarkRead(b *testing.B) {
	for _, s := range parseSchemes(b, "2+2", "4+2", "8+4") {
		for _, size := range benchSizes {
			benchRead(b, fmt.Sprintf("%v/%dKiB", s, size>>10), s, size, 0, size, 0, 0)
		}
	}
}

// BenchmarkReadRange is of 64 KiB at a block's start, with and without hedging.
func BenchmarkReadRange(b *testing.B) {
	s := parseSchemes(b, "4+2")[0]
	benchRead(b, "hedged", s, 64<<20, 5<<20, 64<<10, 0, 0)
	benchRead(b, "unhedged", s, 64<<20, 5<<20, 64<<10, 0, -1)
}

// BenchmarkReadDegraded is with one data shard missing.
func BenchmarkReadDegraded(b *testing.B) {
	for _, s := range parseSchemes(b, "2+2", "4+2", "8+4") {
		benchRead(b, s.String(), s, 64<<20, 0, 64<<20, 1, 0)
	}
}

func benchRead(b *testing.B, name string, s erasure.Scheme, size, off, n int64, lost uint, hedge time.Duration) {
	b.Run(name, func(b *testing.B) {
		r := newRig(b, 64<<20, Config{HedgeAfter: hedge})
		r.dirty()
		g := r.geometry(s, size)
		shards := make([]ShardReader, s.Shards())
		for j := range shards {
			if lost>>j&1 == 0 {
				shards[j] = &source{}
			}
		}
		b.SetBytes(n)
		b.ReportAllocs()
		defer reportCPU(b, cpuNanos())
		for b.Loop() {
			if _, err := r.Read(context.Background(), g, shards, off, n, io.Discard); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkReadFloor is the checksums of a Read alone.
func BenchmarkReadFloor(b *testing.B) {
	data := payload(2<<20, 1)
	b.SetBytes(int64(len(data)))
	defer reportCPU(b, cpuNanos())
	for b.Loop() {
		(&source{}).ReadShard(0, [][]byte{data})
	}
}
