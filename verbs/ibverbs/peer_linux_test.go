package ibverbs_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/verbs"
	"github.com/millrace/millrace/verbs/ibverbs"
	"github.com/millrace/millrace/verbs/token"
)

var (
	serveAt  = flag.String("serve", "", "address and port at which TestServe waits for TestDial of another machine")
	dialTo   = flag.String("dial", "", "address and port of a TestServe")
	perftest = flag.String("perftest", "", "operation (write, read), address and port of an ib_write_bw or ib_read_bw that waits, with -x 1 -s 65536 -n 20")
	pingPong = flag.String("pingpong", "", "address and port of an ibv_rc_pingpong that waits, with -m 4096 and -n 100")
)

func openHardware(t testing.TB, cfg ibverbs.Config) (*ibverbs.Device, netip.Addr) {
	t.Helper()
	name, addr := hardware(t)
	cfg.Device = name
	d, err := ibverbs.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d, addr
}

func registerHardware(t testing.TB, d verbs.Device, n int) verbs.Region {
	t.Helper()
	r, err := d.Register(make([]byte, n))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// pattern fills b with bytes that both sides know.
func pattern(b []byte, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	for i := 0; i+8 <= len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], r.Uint64())
	}
}

func postOne(t testing.TB, c verbs.Conn, q *verbs.Queue, op verbs.Opcode, local []byte) {
	t.Helper()
	if err := c.Post(&verbs.WorkRequest{Op: op, Local: [][]byte{local}}, q); err != nil {
		t.Fatal(err)
	}
}

func takeOne(t testing.TB, q *verbs.Queue) verbs.Completion {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	done, err := q.Wait(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if done.Err != nil {
		t.Fatal(done.Err)
	}
	return done
}

const (
	peerBytes = 9<<20 + 4321 // more than Soft-RoCE takes in one message
	written   = "written"
)

// TestServe is the passive side of a transfer between two machines: it tells the other its window, and looks at what
// was written into it.
func TestServe(t *testing.T) {
	if *serveAt == "" {
		t.Skip("needs -serve, and TestDial on another machine")
	}
	d, _ := openHardware(t, ibverbs.Config{})
	r := registerHardware(t, d, peerBytes+4096)
	window, message := r.Bytes()[:peerBytes], r.Bytes()[peerBytes:]
	pattern(window, 1)
	accepted := make(chan verbs.Conn, 1)
	l, err := d.Listen(netip.MustParseAddrPort(*serveAt), func(c verbs.Conn) { accepted <- c })
	if err != nil {
		t.Fatal(err)
	}
	b, err := r.Bind(0, peerBytes, verbs.RemoteRead|verbs.RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	tok, err := b.Window(l.Endpoint()).Token()
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println("serving")
	c := <-accepted
	q := verbs.NewQueue(2)
	n := copy(message, tok.String())
	postOne(t, c, q, verbs.OpRecv, message[2048:])
	postOne(t, c, q, verbs.OpSend, message[:n])
	for range 2 {
		if done := takeOne(t, q); done.Op == verbs.OpRecv && string(message[2048:][:done.Bytes]) != written {
			t.Errorf("peer sends %q; want %q", message[2048:][:done.Bytes], written)
		}
	}
	want := make([]byte, peerBytes)
	pattern(want, 2)
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if !bytes.Equal(window, want) {
		t.Error("the window does not hold what the peer wrote")
	}
	<-c.Done() // the peer has seen that its window is gone, or has ended
}

// TestDial is the active side.
func TestDial(t *testing.T) {
	if *dialTo == "" {
		t.Skip("needs -dial, and TestServe on another machine")
	}
	d, _ := openHardware(t, ibverbs.Config{})
	at := netip.MustParseAddrPort(*dialTo)
	ep := verbs.Endpoint{GID: at.Addr().As16(), QPN: uint32(at.Port()), LID: verbs.LIDRC}
	ctx := context.Background()
	c, err := d.Dial(ctx, ep, []byte("hello"))
	if err != nil {
		t.Fatal(err)
	}
	r := registerHardware(t, d, peerBytes+4096)
	local, message := r.Bytes()[:peerBytes], r.Bytes()[peerBytes:]
	q := verbs.NewQueue(2)
	postOne(t, c, q, verbs.OpRecv, message[:token.Size])
	tok, err := token.Parse(string(message[:takeOne(t, q).Bytes]))
	if err != nil {
		t.Fatal(err)
	}
	w := verbs.WindowOf(tok)
	if w.Endpoint != ep {
		t.Errorf("endpoint in the token is %+v; want %+v", w.Endpoint, ep)
	}
	req := verbs.NewRequester(d.Info(), 8)
	if err := req.Read(ctx, c, w, 0, [][]byte{local}); err != nil {
		t.Fatal(err)
	}
	want := make([]byte, peerBytes)
	pattern(want, 1)
	if !bytes.Equal(local, want) {
		t.Error("READ brought other bytes than the peer has")
	}
	pattern(local, 2)
	// In pieces, so that several work requests are under way.
	var pieces [][]byte
	for rest := local; len(rest) > 0; {
		n := min(len(rest), 100_001)
		pieces, rest = append(pieces, rest[:n]), rest[n:]
	}
	if err := req.Write(ctx, c, w, 0, pieces, false); err != nil {
		t.Fatal(err)
	}
	postOne(t, c, q, verbs.OpSend, message[:copy(message, written)])
	takeOne(t, q)
	if got := d.Counters().Initiated; got.WriteBytes != peerBytes || got.ReadBytes != peerBytes || got.SendOps != 1 {
		t.Errorf("counters %+v", got)
	}
}

// TestPingPong plays the client of ibv_rc_pingpong from rdma-core: 100 messages each way.
func TestPingPong(t *testing.T) {
	if *pingPong == "" {
		t.Skip("needs -pingpong, and an ibv_rc_pingpong on another machine")
	}
	const size, rounds = 4096, 100
	d, _ := openHardware(t, ibverbs.Config{})
	s, err := d.PrepareRC(netip.Addr{})
	if err != nil {
		t.Fatal(err)
	}
	tcp, err := net.DialTimeout("tcp", *pingPong, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	// "lid:queue pair:psn:gid", ended by a zero byte.
	own := s.Local()
	fmt.Fprintf(tcp, "%04x:%06x:%06x:%x\x00", own.LID, own.QPN, own.PSN, own.GID)
	reply := make([]byte, 4+1+6+1+6+1+32+1)
	if _, err := io.ReadFull(tcp, reply); err != nil {
		t.Fatal(err)
	}
	remote := verbs.RCAddress{Port: 1}
	var gid string
	if _, err := fmt.Sscanf(string(reply[:len(reply)-1]), "%x:%x:%x:%s", &remote.LID, &remote.QPN, &remote.PSN, &gid); err != nil {
		t.Fatalf("reply %q: %v", reply, err)
	}
	if n, err := hex.Decode(remote.GID[:], []byte(gid)); n != 16 || err != nil {
		t.Fatalf("reply %q: GID %q", reply, gid)
	}
	c, err := s.Connect(context.Background(), remote)
	if err != nil {
		t.Fatal(err)
	}
	r := registerHardware(t, d, 2*size)
	in, out := r.Bytes()[:size], r.Bytes()[size:]
	want := bytes.Repeat([]byte{0x7b}, size)
	copy(out, want)
	sent, received := verbs.NewQueue(1), verbs.NewQueue(1)
	postOne(t, c, received, verbs.OpRecv, in)
	if _, err := tcp.Write([]byte("done\x00")); err != nil {
		t.Fatal(err)
	}
	for i := range rounds {
		postOne(t, c, sent, verbs.OpSend, out)
		if got := takeOne(t, received); got.Bytes != size || !bytes.Equal(in, want) {
			t.Fatalf("message %d: %d bytes, or not the right ones", i, got.Bytes)
		}
		clear(in)
		if i < rounds-1 {
			postOne(t, c, received, verbs.OpRecv, in)
		}
		takeOne(t, sent)
	}
	if got := d.Counters().Initiated; got.SendOps != rounds || got.SendBytes != rounds*size {
		t.Errorf("counters %+v", got)
	}
}

// perftestPeer is the TCP connection to a program of perftest: both sides send each other the same number of bytes, the
// client first.
type perftestPeer struct {
	t   *testing.T
	tcp net.Conn
}

func (p perftestPeer) exchange(own []byte) []byte {
	p.t.Helper()
	if _, err := p.tcp.Write(own); err != nil {
		p.t.Fatal(err)
	}
	theirs := make([]byte, len(own))
	if _, err := io.ReadFull(p.tcp, theirs); err != nil {
		p.t.Fatal(err)
	}
	return theirs
}

// number exchanges a number in network order.
func (p perftestPeer) number(v uint64) { p.exchange(binary.BigEndian.AppendUint64(nil, v)) }

// perftestKeys writes a queue pair and memory as perftest does: LID, READs outstanding, queue pair, PSN, rkey, address, GID by
// bytes, shared receive queue.
func perftestKeys(a verbs.RCAddress, w verbs.Window) []byte {
	b := fmt.Appendf(nil, "%04x:%04x:%06x:%06x:%08x:%016x:", a.LID, 1, a.QPN, a.PSN, w.RKey, w.Addr)
	for _, v := range a.GID {
		b = fmt.Appendf(b, "%02x:", v)
	}
	return fmt.Appendf(b, "%08x:\x00", 0)
}

func parsePerftestKeys(t *testing.T, b []byte) (verbs.RCAddress, verbs.Window) {
	t.Helper()
	a := verbs.RCAddress{Port: 1}
	var w verbs.Window
	var reads uint32
	if _, err := fmt.Sscanf(string(b), "%x:%x:%x:%x:%x:%x:", &a.LID, &reads, &a.QPN, &a.PSN, &w.RKey, &w.Addr); err != nil {
		t.Fatalf("keys %q: %v", b, err)
	}
	const before = 4 + 1 + 4 + 1 + 6 + 1 + 6 + 1 + 8 + 1 + 16 + 1
	gid := bytes.ReplaceAll(b[before:before+48], []byte(":"), nil)
	if _, err := hex.Decode(a.GID[:], gid); err != nil {
		t.Fatalf("keys %q: %v", b, err)
	}
	return a, w
}

// TestPerftest plays the client of ib_write_bw or ib_read_bw of perftest 4.5: 20 WRITEs or READs of 64 KiB.
func TestPerftest(t *testing.T) {
	if *perftest == "" {
		t.Skip("needs -perftest, and a program of perftest on another machine")
	}
	const size, rounds = 64 << 10, 20
	op, at, _ := strings.Cut(*perftest, ",")
	d, _ := openHardware(t, ibverbs.Config{})
	s, err := d.PrepareRC(netip.MustParseAddrPort(at).Addr())
	if err != nil {
		t.Fatal(err)
	}
	tcp, err := net.DialTimeout("tcp", at, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	p := perftestPeer{t, tcp}
	p.exchange([]byte("6.06\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00")) // version
	p.exchange([]byte{0, 0, 0x10, 0})                                          // size of a page
	p.exchange([]byte{0, 0, 0, 64})                                            // size of a cache line
	p.exchange([]byte("5\x00"))                                                // MTU 4096
	r := registerHardware(t, d, size)
	own := perftestKeys(s.Local(), verbs.Window{Addr: 4096, RKey: 1})
	remote, w := parsePerftestKeys(t, p.exchange(own))
	w.SizeBytes = size
	c, err := s.Connect(context.Background(), remote)
	if err != nil {
		t.Fatal(err)
	}
	p.exchange(own)
	p.exchange(own)
	req := verbs.NewRequester(d.Info(), 4)
	for range rounds {
		if op == "read" {
			err = req.Read(context.Background(), c, w, 0, [][]byte{r.Bytes()})
		} else {
			err = req.Write(context.Background(), c, w, 0, [][]byte{r.Bytes()}, false)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	p.exchange(own)
	for _, v := range []uint64{size, rounds, math.Float64bits(1), math.Float64bits(1), math.Float64bits(1)} { // what was measured
		p.number(v)
	}
	p.exchange(own)
	p.exchange([]byte("done\x00"))
	got := d.Counters().Initiated
	if got.WriteBytes+got.ReadBytes != size*rounds {
		t.Errorf("counters %+v", got)
	}
}
