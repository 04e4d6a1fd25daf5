package iwarp

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/verbs"
)

// sheet is a window that is scratch, with bytes around it that are not, and what must be in it.
type sheet struct {
	dev    *Device
	addr   string
	region verbs.Region
	bind   verbs.Binding
	win    verbs.Window

	mu      sync.Mutex
	want    []byte
	written []bool
	total   int64
}

const sheetBytes, marginBytes = 3 << 20, 1 << 16

func newSheet(t *testing.T, crc bool) *sheet {
	t.Helper()
	s := &sheet{dev: Open(Config{NoCRC: !crc}), want: make([]byte, sheetBytes), written: make([]bool, sheetBytes)}
	t.Cleanup(func() { _ = s.dev.Close() })
	l, err := s.dev.Listen(netip.MustParseAddrPort("127.0.0.1:0"), nil)
	if err != nil {
		t.Fatal(err)
	}
	s.addr = netip.AddrPortFrom(l.Endpoint().Addr(), uint16(l.Endpoint().QPN)).String()
	if s.region, err = s.dev.Register(bytes.Repeat([]byte{0xee}, sheetBytes+2*marginBytes)); err != nil {
		t.Fatal(err)
	}
	if s.bind, err = s.region.Bind(marginBytes, sheetBytes, verbs.RemoteWrite|verbs.Scratch); err != nil {
		t.Fatal(err)
	}
	s.win = s.bind.Window(l.Endpoint())
	return s
}

// check compares what was written, and the margins.
func (s *sheet) check(t *testing.T) {
	t.Helper()
	all := s.region.Bytes()
	for i, b := range all {
		at := i - marginBytes
		if at < 0 || at >= sheetBytes {
			if b != 0xee {
				t.Fatalf("byte %d beside the window is %#x; want it untouched", i, b)
			}
		} else if s.written[at] && b != s.want[at] {
			t.Fatalf("byte %d of the window is %#x; want %#x", at, b, s.want[at])
		}
	}
}

// scribe writes messages into a sheet as a peer may: in FPDUs of any sizes, one message behind the other or not.
type scribe struct {
	*sheet
	rnd    *rand.Rand
	crc    bool
	stream []byte
}

func (s *scribe) message(at, n, fpdu int) {
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(s.rnd.Uint32())
	}
	s.mu.Lock()
	copy(s.want[at:], data)
	for i := range data {
		s.written[at+i] = true
	}
	s.total += int64(n)
	s.mu.Unlock()
	for to := s.win.Addr + uint64(at); len(data) > 0; {
		k := min(fpdu, len(data))
		if s.rnd.IntN(300) == 0 { // not as the others
			k = 1 + s.rnd.IntN(k)
		}
		frame := append(appendTagged(nil, opWrite, k == len(data), s.win.RKey, to, k), data[:k]...)
		s.stream = append(s.stream, sealed(frame, s.crc)...)
		data, to = data[k:], to+uint64(k)
	}
	if s.rnd.IntN(4) == 0 {
		ask := readRequest{sinkSTag: 1}
		s.stream = append(s.stream, sealed(append(appendUntagged(nil, opReadRequest, true, queueRead, s.asked(), 0,
			readRequestBytes), ask.append(nil)...), s.crc)...)
	}
}

// asked is the number of the next READ request: those in the stream are counted.
func (s *scribe) asked() uint32 {
	n := uint32(1)
	for b := s.stream; len(b) > 0; {
		h := parseHeader(b)
		if h.op == opReadRequest {
			n++
		}
		b = b[h.fpduBytes():]
	}
	return n
}

// send sends the stream in pieces, over a connection that stays.
func (s *scribe) send(t *testing.T) net.Conn {
	c, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if _, err := c.Write(startFrame{revision: 1, crc: s.crc}.append(nil)); err != nil {
		t.Error(err)
	}
	if _, err := readStart(c, true); err != nil {
		t.Error(err)
	}
	go func() { _, _ = io.Copy(io.Discard, c) }()
	for b := s.stream; len(b) > 0; {
		n := min(len(b), 1+s.rnd.IntN(1<<(3+s.rnd.IntN(18))))
		if _, err := c.Write(b[:n]); err != nil {
			t.Error(err)
			break
		}
		b = b[n:]
	}
	return c
}

func (s *scribe) size() int {
	switch s.rnd.IntN(3) {
	case 0:
		return maxPayload
	case 1:
		return 4 << s.rnd.IntN(14)
	}
	return 1 + s.rnd.IntN(maxPayload)
}

// TestForeseen writes in all kinds of ways to windows whose owner lets the device look ahead.
func TestForeseen(t *testing.T) {
	rounds := 30
	if testing.Short() {
		rounds = 6
	}
	for round := range rounds {
		seed := rand.Uint64()
		crc := round%2 == 0
		s := newSheet(t, crc)
		w := &scribe{sheet: s, rnd: rand.New(rand.NewPCG(seed, 1)), crc: crc}
		usual := 1 + w.rnd.IntN(sheetBytes/2)
		for at := 0; at < sheetBytes; {
			n := min(usual, sheetBytes-at)
			if w.rnd.IntN(5) == 0 {
				n = min(1+w.rnd.IntN(1<<20), sheetBytes-at)
			}
			w.message(at, n, w.size())
			if at += n; w.rnd.IntN(8) == 0 { // back, or over a gap
				at = w.rnd.IntN(sheetBytes)
			}
			if len(w.stream) > 4*sheetBytes {
				break
			}
		}
		w.send(t)
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		err := s.bind.(*binding).Placed(ctx, s.total)
		cancel()
		if s.check(t); err != nil || t.Failed() {
			t.Fatalf("seed %d: Placed(%d) = %v", seed, s.total, err)
		}
	}
}

// TestForeseenByTwo lets two connections write into one window: what one has written is never lost by the other's looking
// ahead.
func TestForeseenByTwo(t *testing.T) {
	for range 5 {
		s := newSheet(t, false)
		seed := rand.Uint64()
		var both sync.WaitGroup
		for i := range 2 {
			w := &scribe{sheet: s, rnd: rand.New(rand.NewPCG(seed, uint64(i)))}
			const stripe = 192 << 10
			for at := i * stripe; at+stripe <= sheetBytes; at += 2 * stripe {
				w.message(at, stripe, maxPayload)
			}
			both.Go(func() { w.send(t) })
		}
		both.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		err := s.bind.(*binding).Placed(ctx, s.total)
		cancel()
		if s.check(t); err != nil {
			t.Fatalf("seed %d: Placed(%d) = %v", seed, s.total, err)
		}
	}
}

// TestPlaced waits for bytes that come, that don't, and whose connection ends.
func TestPlaced(t *testing.T) {
	s := newSheet(t, false)
	w := &scribe{sheet: s, rnd: rand.New(rand.NewPCG(1, 1))}
	w.message(0, 1<<20, maxPayload)
	wait := func(n int64) error {
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		return s.bind.(*binding).Placed(ctx, n)
	}
	if err := wait(1); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Placed before anything was sent = %v; want it to wait", err)
	}
	done := make(chan error, 1)
	go func() { done <- s.bind.(*binding).Placed(context.Background(), s.total) }()
	conn := w.send(t)
	if err := <-done; err != nil {
		t.Errorf("Placed(%d) = %v", s.total, err)
	}
	go func() { done <- s.bind.(*binding).Placed(context.Background(), s.total+1) }()
	time.Sleep(10 * time.Millisecond)
	_ = conn.Close()
	if err := <-done; !errors.Is(err, verbs.ErrPeer) {
		t.Errorf("Placed of what can't come any more = %v; want ErrPeer", err)
	}
	if err := wait(s.total); err != nil {
		t.Errorf("Placed of what has come = %v after the connection has ended; want nil", err)
	}
}

// TestForeseenTooFar has a message end earlier than the one before it did, with bytes in the window where it might have
// gone on: from the same connection, or from another.
func TestForeseenTooFar(t *testing.T) {
	const fpdu = 60000
	for _, tc := range []struct {
		name   string
		others bool
	}{{"own bytes", false}, {"another's bytes", true}} {
		t.Run(tc.name, func(t *testing.T) {
			for range 20 {
				s := newSheet(t, false)
				first := &scribe{sheet: s, rnd: rand.New(rand.NewPCG(1, 1))}
				second := first
				if tc.others {
					second = &scribe{sheet: s, rnd: rand.New(rand.NewPCG(2, 2))}
				}
				first.message(0, 4, fpdu) // so that nothing is foreseen of the next
				first.message(1<<20, 1<<20, fpdu)
				if tc.others {
					first.send(t)
					if err := s.bind.(*binding).Placed(context.Background(), s.total); err != nil {
						t.Fatal(err)
					}
					second.message(0, 4, fpdu)
					second.message(2<<20, 1<<20, fpdu)
				}
				second.message(256<<10, 512<<10, fpdu)
				second.message(2<<20, 400<<10, fpdu)
				second.send(t)
				if err := s.bind.(*binding).Placed(context.Background(), s.total); err != nil {
					t.Fatal(err)
				}
				s.check(t)
			}
		})
	}
}
