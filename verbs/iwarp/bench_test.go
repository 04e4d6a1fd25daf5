package iwarp_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/verbs"
	"github.com/millrace/millrace/verbs/iwarp"
	"github.com/millrace/millrace/verbs/token"
)

// The passive side of the benchmarks is a process of its own, so that each side's CPU time can be told. It
// is this test binary again, with benchPeer in its environment: "soft" or "soft-nocrc" for a device with a
// window, "tcp" for a plain stream. It prints where it is, and its CPU seconds when its standard input ends.
const benchPeer = "MILLRACE_BENCH_PEER"

const benchWindow = 64 << 20

func TestMain(m *testing.M) {
	if kind := os.Getenv(benchPeer); kind != "" {
		if err := peerProcess(kind); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// benchMemory has all its pages, so that no page fault is measured.
func benchMemory() []byte {
	mem := make([]byte, benchWindow)
	for i := range mem {
		mem[i] = byte(i)
	}
	return mem
}

func benchConfig(kind string) iwarp.Config { return iwarp.Config{NoCRC: kind == "soft-nocrc"} }

func peerProcess(kind string) error {
	mem := benchMemory()
	if kind == "tcp" {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go plainPeer(c, mem)
			}
		}()
		fmt.Println(l.Addr())
	} else {
		dev := iwarp.Open(benchConfig(kind))
		l, err := dev.Listen(netip.MustParseAddrPort("127.0.0.1:0"), nil)
		if err != nil {
			return err
		}
		r, err := dev.Register(mem)
		if err != nil {
			return err
		}
		b, err := r.Bind(0, benchWindow, verbs.RemoteRead|verbs.RemoteWrite)
		if err != nil {
			return err
		}
		tok, err := b.Window(l.Endpoint()).Token()
		if err != nil {
			return err
		}
		fmt.Println(tok)
	}
	// Each line asks for the CPU time so far.
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		fmt.Println(cpuSeconds())
	}
	return nil
}

// plainPeer answers requests of 9 bytes: a letter and a length. 'w' takes that many bytes and sends one
// back; 'r' sends that many.
func plainPeer(c net.Conn, mem []byte) {
	var ask [9]byte
	for {
		if _, err := io.ReadFull(c, ask[:]); err != nil {
			return
		}
		part := mem[:binary.BigEndian.Uint64(ask[1:])]
		var err error
		if ask[0] == 'w' {
			if _, err = io.ReadFull(c, part); err == nil {
				_, err = c.Write(ask[:1])
			}
		} else {
			_, err = c.Write(part)
		}
		if err != nil {
			return
		}
	}
}

func cpuSeconds() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

// peerOf starts the passive process, and returns its first line and a function that asks for its CPU time.
func peerOf(b *testing.B, kind string) (string, func() float64) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), benchPeer+"="+kind)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = in.Close(); _ = cmd.Wait() })
	lines := bufio.NewReader(out)
	line := func() string {
		s, err := lines.ReadString('\n')
		if err != nil {
			b.Fatal(err)
		}
		return strings.TrimSpace(s)
	}
	where := line()
	return where, func() float64 {
		fmt.Fprintln(in)
		v, err := strconv.ParseFloat(line(), 64)
		if err != nil {
			b.Fatal(err)
		}
		return v
	}
}

// measure runs op, which moves n bytes, and reports rates and CPU time of both sides.
func measure(b *testing.B, n int, peerCPU func() float64, op func() error) {
	for range 3 {
		if err := op(); err != nil {
			b.Fatal(err)
		}
	}
	b.SetBytes(int64(n))
	b.ReportAllocs()
	here, there, start := cpuSeconds(), peerCPU(), time.Now()
	for b.Loop() {
		if err := op(); err != nil {
			b.Fatal(err)
		}
	}
	here, there = cpuSeconds()-here, peerCPU()-there
	gib := float64(n) * float64(b.N) / (1 << 30)
	b.ReportMetric(here/gib, "active-s/GiB")
	b.ReportMetric(there/gib, "passive-s/GiB")
	b.ReportMetric(here*1e6/float64(b.N), "active-µs/op")
	b.ReportMetric(gib/time.Since(start).Seconds(), "GiB/s")
}

// BenchmarkTransfer moves objects of several sizes between two processes: by the soft provider with and
// without CRC, and over a plain TCP stream, which is the floor.
func BenchmarkTransfer(b *testing.B) {
	for _, size := range []int{64 << 10, 1 << 20, 16 << 20} {
		for _, dir := range []string{"write", "read"} {
			for _, kind := range []string{"tcp", "soft-nocrc", "soft"} {
				b.Run(fmt.Sprintf("%s/%dKiB/%s", dir, size>>10, kind), func(b *testing.B) {
					where, peerCPU := peerOf(b, kind)
					if kind == "tcp" {
						plain(b, where, peerCPU, dir, size)
					} else {
						soft(b, where, peerCPU, dir, size, kind)
					}
				})
			}
		}
	}
}

func plain(b *testing.B, where string, peerCPU func() float64, dir string, size int) {
	c, err := net.Dial("tcp", where)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	mem := benchMemory()
	off := 0
	measure(b, size, peerCPU, func() error {
		part := mem[off:][:size]
		off = (off + size) % benchWindow
		ask := append([]byte{dir[0]}, binary.BigEndian.AppendUint64(nil, uint64(size))...)
		if _, err := c.Write(ask); err != nil {
			return err
		}
		if dir == "write" {
			if _, err := c.Write(part); err != nil {
				return err
			}
			_, err := io.ReadFull(c, ask[:1])
			return err
		}
		_, err := io.ReadFull(c, part)
		return err
	})
}

func soft(b *testing.B, where string, peerCPU func() float64, dir string, size int, kind string) {
	tok, err := token.Parse(where)
	if err != nil {
		b.Fatal(err)
	}
	w := verbs.WindowOf(tok)
	dev := iwarp.Open(benchConfig(kind))
	defer dev.Close()
	r, err := dev.Register(benchMemory())
	if err != nil {
		b.Fatal(err)
	}
	c, err := dev.Dial(context.Background(), w.Endpoint, nil)
	if err != nil {
		b.Fatal(err)
	}
	req := verbs.NewRequester(dev.Info(), 4)
	local := make([][]byte, 1)
	off := 0
	ctx := context.Background()
	measure(b, size, peerCPU, func() error {
		local[0] = r.Bytes()[off:][:size]
		at := int64(off)
		off = (off + size) % benchWindow
		if dir == "write" {
			return req.Write(ctx, c, w, at, local, false)
		}
		return req.Read(ctx, c, w, at, local)
	})
}
