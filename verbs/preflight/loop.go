package preflight

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/millrace/millrace/verbs"
	"github.com/millrace/millrace/verbs/fabric"
)

// LoopResult is what a loop measured.
type LoopResult struct {
	Provider string `json:"provider"`
	Device   string `json:"device"`
	Bytes    int64  `json:"bytes"` // in each direction
	// WriteMiBps and ReadMiBps are of one transfer of all bytes.
	WriteMiBps float64 `json:"write_mibps"`
	ReadMiBps  float64 `json:"read_mibps"`
	// WriteMicros and ReadMicros are the medians of operations of 4 KiB, one at a time.
	WriteMicros float64 `json:"write_micros"`
	ReadMicros  float64 `json:"read_micros"`
	// CPUSecondsPerGiB is of both ends together, of the large transfers.
	CPUSecondsPerGiB float64 `json:"cpu_seconds_per_gib"`
}

// The limits of a loop.
const (
	smallBytes   = 4096
	smallRounds  = 200
	loopDepth    = 16
	MaxLoopBytes = 1 << 30 // the most that Loop moves in each direction
)

// ErrMismatch: the bytes that arrived are not those that were sent.
var ErrMismatch = errors.New("bytes differ")

// Loop moves sizeBytes by WRITE and by READ from a device to itself, over a listener at the address, and compares them.
// It needs twice the memory. Nothing of it is kept.
func Loop(ctx context.Context, dev verbs.Device, at netip.AddrPort, sizeBytes int64) (r LoopResult, err error) {
	if !dev.Info().Moves {
		return r, fmt.Errorf("loop: %s moves no bytes", dev.Info().Provider)
	}
	l := &loop{size: min(max(sizeBytes, smallBytes), MaxLoopBytes), requests: verbs.NewRequester(dev.Info(), loopDepth)}
	defer func() { err = errors.Join(err, l.close()) }()
	if err := l.open(ctx, dev, at); err != nil {
		return r, fmt.Errorf("loop: %w", err)
	}
	r = LoopResult{Provider: dev.Info().Provider, Device: dev.Info().Name, Bytes: l.size}
	if err := l.measure(ctx, &r); err != nil {
		return r, fmt.Errorf("loop: %w", err)
	}
	return r, nil
}

// loop is a device that is connected to itself.
type loop struct {
	size          int64
	local, remote []byte
	requests      *verbs.Requester
	conn          verbs.Conn
	far           verbs.Region // of remote
	ep            verbs.Endpoint
	closers       []func() error
}

func (l *loop) open(ctx context.Context, dev verbs.Device, at netip.AddrPort) error {
	l.local, l.remote = make([]byte, l.size), make([]byte, l.size)
	for i := 0; i < len(l.remote); i += smallBytes {
		l.remote[i] = 1 // the kernel gives a page when it is touched: not while it is measured
	}
	near, err := dev.Register(l.local)
	if err != nil {
		return err
	}
	l.closers = append(l.closers, near.Deregister)
	if l.far, err = dev.Register(l.remote); err != nil {
		return err
	}
	l.closers = append(l.closers, l.far.Deregister)
	listener, err := dev.Listen(at, nil)
	if err != nil {
		return err
	}
	l.closers = append(l.closers, listener.Close)
	l.ep = listener.Endpoint()
	l.conn, err = dev.Dial(ctx, l.ep, nil)
	if err != nil {
		return err
	}
	l.closers = append(l.closers, l.conn.Close)
	return nil
}

func (l *loop) close() error {
	var err error
	for _, c := range slices.Backward(l.closers) {
		err = errors.Join(err, c())
	}
	return err
}

func (l *loop) measure(ctx context.Context, r *LoopResult) error {
	source := rand.NewChaCha8([32]byte{1})
	_, _ = source.Read(l.local)
	whole := [][]byte{l.local}
	wrote, spent, err := l.timed(func(w verbs.Window) error { return l.requests.Write(ctx, l.conn, w, 0, whole, false) })
	if err != nil {
		return err
	}
	if !bytes.Equal(l.local, l.remote) {
		return fmt.Errorf("WRITE: %w", ErrMismatch)
	}
	clear(l.local)
	read, more, err := l.timed(func(w verbs.Window) error { return l.requests.Read(ctx, l.conn, w, 0, whole) })
	if err != nil {
		return err
	}
	if !bytes.Equal(l.local, l.remote) {
		return fmt.Errorf("READ: %w", ErrMismatch)
	}
	mib := float64(l.size) / (1 << 20)
	r.WriteMiBps, r.ReadMiBps = mib/wrote.Seconds(), mib/read.Seconds()
	r.CPUSecondsPerGiB = (spent + more).Seconds() / (2 * mib / 1024)
	_, _, err = l.timed(func(w verbs.Window) error { return l.small(ctx, w, r) })
	return err
}

// timed does something with the remote memory, and closes the window after it: only then may that be looked at.
func (l *loop) timed(do func(verbs.Window) error) (took, cpu time.Duration, err error) {
	binding, err := l.far.Bind(0, l.size, verbs.RemoteRead|verbs.RemoteWrite)
	if err != nil {
		return 0, 0, err
	}
	before, start := cpuTime(), time.Now()
	err = do(binding.Window(l.ep))
	took, cpu = time.Since(start), cpuTime()-before
	return took, cpu, errors.Join(err, binding.Close())
}

func (l *loop) small(ctx context.Context, w verbs.Window, r *LoopResult) error {
	piece := [][]byte{l.local[:smallBytes]}
	writes, reads := make([]time.Duration, smallRounds), make([]time.Duration, smallRounds)
	for i := range smallRounds {
		start := time.Now()
		if err := l.requests.Write(ctx, l.conn, w, 0, piece, false); err != nil {
			return err
		}
		writes[i] = time.Since(start)
		start = time.Now()
		if err := l.requests.Read(ctx, l.conn, w, 0, piece); err != nil {
			return err
		}
		reads[i] = time.Since(start)
	}
	r.WriteMicros, r.ReadMicros = median(writes), median(reads)
	return nil
}

func median(d []time.Duration) float64 {
	slices.Sort(d)
	return float64(d[len(d)/2].Nanoseconds()) / 1000
}

// cpuTime is what the process has used of the CPUs so far.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// LoopFindings runs the loop and reports it, and what the error counters of the ports did meanwhile. Only those of
// ports that the loop went over tell anything of it.
func LoopFindings(
	ctx context.Context, sys System, dev verbs.Device, at netip.AddrPort, sizeBytes int64, ports ...PortID,
) []Finding {
	c := &checker{sys: sys}
	before := make([]Errors, len(ports))
	for i, p := range ports {
		before[i] = ReadErrors(sys.Sys, p.Device, p.Port)
	}
	r, err := Loop(ctx, dev, at, sizeBytes)
	subject := dev.Info().Provider + " " + dev.Info().Name
	if err != nil {
		advice := "see the other findings first; then the kernel's log"
		if errors.Is(err, ErrMismatch) {
			advice = "do not use this machine for data: memory, adapter or driver is broken"
		}
		c.problem("loop", subject, err.Error(), advice)
	} else {
		c.ok("loop", subject, "%d MiB there and back, bytes compared: WRITE %.0f MiB/s, READ %.0f MiB/s; 4 KiB: WRITE %.1f µs, READ %.1f µs; "+
			"%.2f CPU s/GiB for both ends", r.Bytes>>20, r.WriteMiBps, r.ReadMiBps, r.WriteMicros, r.ReadMicros, r.CPUSecondsPerGiB)
		c.findings[0].Loop = &r
	}
	for i, p := range ports {
		grown := ReadErrors(sys.Sys, p.Device, p.Port).Since(before[i])
		if len(grown) > 0 {
			c.problem("errors", p.String(), "grew during the loop: "+grown.String(), "see cable, switch port, MTU on the whole path, PFC and ECN")
		} else if before[i] != nil {
			c.ok("errors", p.String(), "did not grow during the loop")
		}
	}
	return c.findings
}

// LoopPlace is where a loop over hardware has to run: the port and GID of the first address to listen at that has one, else
// of any port. The error is as of fabric.PlaceOf.
func LoopPlace(sys System, cfg Config) (fabric.Place, error) {
	f, err := fabric.Read(sys.Sys, sys.Kernel)
	if err != nil {
		return fabric.Place{}, err
	}
	for _, addr := range cfg.Listen {
		if addr.IsValid() && !addr.IsUnspecified() {
			return f.PlaceOf(addr)
		}
	}
	place, err := f.Any(fabric.IPv4)
	if err != nil {
		place, err = f.Any(fabric.IPv6)
	}
	return place, err
}

// PortID names a port.
type PortID struct {
	Device string
	Port   int
}

// String returns device/port.
func (p PortID) String() string { return fmt.Sprintf("%s/%d", p.Device, p.Port) }
