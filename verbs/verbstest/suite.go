// Package verbstest is the one suite that every provider of verbs passes: two devices, a connection between
// them, and all that a peer may do or suffer.
//
// It is not a benchmark, and knows no provider: what is special to one (frames, hardware states) is tested
// beside it.
//
// Invariant: it judges by bytes. Memory around every range is filled with a pattern and must stay as it was.
package verbstest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/millrace/millrace/verbs"
)

// Options are what the suite asks of a device.
type Options struct {
	// MaxMessageBytes bounds one work request, so that "more than one" need not be gigabytes.
	MaxMessageBytes int64
	// StallTimeout is how long a peer may make no progress.
	StallTimeout time.Duration
}

// Open returns a new device; the suite closes it.
type Open func(t testing.TB, o Options) verbs.Device

// Suite is what a provider gives.
type Suite struct {
	Open   Open
	Listen netip.AddrPort // where the passive device listens; port 0
}

const maxMessage = 1 << 20

// Run runs the suite.
func (s Suite) Run(t *testing.T) {
	for _, tc := range []struct {
		name string
		test func(*testing.T, Suite)
	}{
		{"transfers", testTransfers}, {"unfenced", testUnfenced}, {"messages", testMessages}, {"access", testAccess},
		{"revoke in mid-transfer", testRevoke}, {"deregister in mid-transfer", testDeregister},
		{"close in mid-transfer", testClose}, {"dead peer", testDeadPeer}, {"misuse", testMisuse},
		{"many in flight", testMany}, {"limits of the queues", testQueues}, {"cancel", testCancel},
		{"counters", testCounters}, {"session", testSession},
	} {
		t.Run(tc.name, func(t *testing.T) { tc.test(t, s) })
	}
}

// pair is an active device, a passive one, and a connection.
type pair struct {
	active, passive verbs.Device
	ep              verbs.Endpoint
	conn            verbs.Conn // of the active device
	accepted        chan verbs.Conn
	local           verbs.Region
	remote          verbs.Region
	req             *verbs.Requester
}

const memoryBytes = 3 << 20

func newPair(t testing.TB, s Suite) *pair {
	t.Helper()
	o := Options{MaxMessageBytes: maxMessage, StallTimeout: 10 * time.Second}
	p := &pair{active: s.Open(t, o), passive: s.Open(t, o), accepted: make(chan verbs.Conn, 64)}
	t.Cleanup(func() { _ = p.active.Close(); _ = p.passive.Close() })
	p.ep = listen(t, p.passive, s.Listen, func(c verbs.Conn) { p.accepted <- c })
	p.conn = dial(t, p.active, p.ep, nil)
	p.local, p.remote = register(t, p.active, memoryBytes), register(t, p.passive, memoryBytes)
	p.req = verbs.NewRequester(p.active.Info(), 8)
	return p
}

func listen(t testing.TB, d verbs.Device, at netip.AddrPort, accept func(verbs.Conn)) verbs.Endpoint {
	t.Helper()
	l, err := d.Listen(at, accept)
	if err != nil {
		t.Fatalf("Listen(%s): %v", at, err)
	}
	return l.Endpoint()
}

func dial(t testing.TB, d verbs.Device, ep verbs.Endpoint, private []byte) verbs.Conn {
	t.Helper()
	c, err := d.Dial(context.Background(), ep, private)
	if err != nil {
		t.Fatalf("Dial(%s): %v", ep, err)
	}
	return c
}

func register(t testing.TB, d verbs.Device, n int) verbs.Region {
	t.Helper()
	r, err := d.Register(make([]byte, n))
	if err != nil {
		t.Fatalf("Register(%d bytes): %v", n, err)
	}
	return r
}

func (p *pair) bind(t testing.TB, off, n int64, access verbs.Access) (verbs.Binding, verbs.Window) {
	t.Helper()
	b, err := p.remote.Bind(off, n, access)
	if err != nil {
		t.Fatalf("Bind(%d, %d): %v", off, n, err)
	}
	return b, b.Window(p.ep)
}

// closed closes a binding: what an owner does before it looks at the memory.
func closed(t testing.TB, b verbs.Binding) {
	t.Helper()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
}

const both = verbs.RemoteRead | verbs.RemoteWrite

func fill(b []byte, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	for i := 0; i+8 <= len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], r.Uint64())
	}
}

func newSeed(t testing.TB) uint64 {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return seed
}

// split cuts b into pieces of any sizes, some of them empty.
func split(b []byte, r *rand.Rand) [][]byte {
	var out [][]byte
	for len(b) > 0 {
		n := min(len(b), r.IntN(1+len(b)/2)+r.IntN(3))
		out = append(out, b[:n])
		b = b[n:]
	}
	return append(out, nil)
}

// shape is one transfer: n bytes, at offsets that need not be aligned, in one slice or in several.
type shape struct {
	n                int
	localOff, winOff int64
	pieces           bool
}

func shapes() []shape {
	var out []shape
	sizes := []int{
		0, 1, 2, 3, 4, 7, 100, 4095, 4096, 65519, 65520, 65521, 65536, 131040, 131041, maxMessage - 1, maxMessage,
		maxMessage + 1, 2*maxMessage + 12345,
	}
	if testing.Short() {
		sizes = []int{0, 1, 7, 4096, 65521, 2*maxMessage + 12345}
	}
	for i, n := range sizes {
		out = append(out, shape{n: n}, shape{n, int64(1 + i), int64(3 + 5*i), true})
	}
	return out
}

func testTransfers(t *testing.T, s Suite) {
	p := newPair(t, s)
	seed := newSeed(t)
	r := rand.New(rand.NewPCG(seed, 2))
	ctx := context.Background()
	for i, sh := range shapes() {
		const at = 4096 + 13 // where the window lies in the region
		fill(p.local.Bytes(), seed+uint64(2*i))
		fill(p.remote.Bytes(), seed+uint64(2*i+1))
		mine := p.local.Bytes()[sh.localOff : sh.localOff+int64(sh.n)]
		list := [][]byte{mine}
		if sh.pieces {
			list = split(mine, r)
		}
		want := bytes.Clone(p.remote.Bytes())
		copy(want[at+sh.winOff:], mine)
		b, w := p.bind(t, at, int64(sh.n)+sh.winOff, both)
		if err := p.req.Write(ctx, p.conn, w, sh.winOff, list, false); err != nil {
			t.Fatalf("Write %+v: %v", sh, err)
		}
		closed(t, b)
		if !bytes.Equal(p.remote.Bytes(), want) {
			t.Fatalf("Write %+v: the peer's memory is not as it should be", sh)
		}
		want = bytes.Clone(p.local.Bytes())
		fill(p.remote.Bytes(), seed+uint64(3*i+7))
		copy(want[sh.localOff:], p.remote.Bytes()[at+sh.winOff:][:sh.n])
		b, w = p.bind(t, at, int64(sh.n)+sh.winOff, both)
		if err := p.req.Read(ctx, p.conn, w, sh.winOff, list); err != nil {
			t.Fatalf("Read %+v: %v", sh, err)
		}
		if !bytes.Equal(p.local.Bytes(), want) {
			t.Fatalf("Read %+v: local memory is not as it should be", sh)
		}
		closed(t, b)
	}
}

// testUnfenced: the fenced WRITE at the end, of no bytes, speaks for all before it.
func testUnfenced(t *testing.T, s Suite) {
	p := newPair(t, s)
	seed := newSeed(t)
	b, w := p.bind(t, 0, memoryBytes, both)
	fill(p.local.Bytes(), seed)
	want := bytes.Clone(p.local.Bytes())
	for off := int64(0); off < memoryBytes; off += 256 << 10 {
		part := p.local.Bytes()[off : off+256<<10]
		if err := p.req.Write(context.Background(), p.conn, w, off, [][]byte{part}, true); err != nil {
			t.Fatal(err)
		}
		fill(part, seed+1+uint64(off)) // it is ours again
	}
	if err := p.req.Write(context.Background(), p.conn, w, 0, nil, false); err != nil {
		t.Fatal(err)
	}
	closed(t, b)
	if !bytes.Equal(p.remote.Bytes(), want) {
		t.Fatal("the peer's memory is not what was in local memory at the time of each Write")
	}
}

func post(t testing.TB, c verbs.Conn, wr verbs.WorkRequest, q *verbs.Queue) {
	t.Helper()
	if err := c.Post(&wr, q); err != nil {
		t.Fatalf("Post(%s): %v", wr.Op, err)
	}
}

func take(t testing.TB, q *verbs.Queue) verbs.Completion {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	done, err := q.Wait(ctx)
	if err != nil {
		t.Fatalf("no completion: %v", err)
	}
	return done
}

func wantErr(t testing.TB, what string, err error, want ...error) {
	t.Helper()
	for _, w := range want {
		if errors.Is(err, w) {
			return
		}
	}
	t.Errorf("%s: error %v; want one of %v", what, err, want)
}

func (p *pair) other(t testing.TB) verbs.Conn {
	t.Helper()
	select {
	case c := <-p.accepted:
		return c
	case <-time.After(10 * time.Second):
		t.Fatal("the peer has not accepted the connection")
		return nil
	}
}

func testMessages(t *testing.T, s Suite) {
	p := newPair(t, s)
	seed := newSeed(t)
	there := p.other(t)
	q, rq := verbs.NewQueue(16), verbs.NewQueue(16)
	fill(p.local.Bytes(), seed)
	b, w := p.bind(t, 2<<20, 1<<20, both)
	sizes := []int{0, 1, 100, 4096, 65518, 65519, 200_000}
	for i, n := range sizes {
		mem := p.remote.Bytes()[i*200_001:][:n]
		post(t, there, verbs.WorkRequest{Op: verbs.OpRecv, ID: uint64(i), Local: [][]byte{mem[:n/2], mem[n/2:]}}, rq)
	}
	post(t, there, verbs.WorkRequest{Op: verbs.OpRecv, ID: 99}, rq)
	for i, n := range sizes {
		post(t, p.conn, verbs.WorkRequest{Op: verbs.OpSend, ID: uint64(i), Local: [][]byte{p.local.Bytes()[i : i+n]}}, q)
	}
	imm := verbs.WorkRequest{
		Op: verbs.OpWriteImm, ID: 99, Local: [][]byte{p.local.Bytes()[5:777]}, Addr: w.Addr, RKey: w.RKey, Imm: 0xdeadbeef,
	}
	post(t, p.conn, imm, q)
	for i, n := range sizes {
		got := take(t, rq)
		if got.Err != nil || got.ID != uint64(i) || got.Bytes != int64(n) || got.HasImm {
			t.Fatalf("RECV %d = %+v; want %d bytes", i, got, n)
		}
		if !bytes.Equal(p.remote.Bytes()[i*200_001:][:n], p.local.Bytes()[i:i+n]) {
			t.Fatalf("RECV %d: wrong bytes", i)
		}
	}
	if got := take(t, rq); got.ID != 99 || !got.HasImm || got.Imm != 0xdeadbeef {
		t.Fatalf("RECV = %+v; want the immediate value", got)
	}
	closed(t, b)
	if !bytes.Equal(p.remote.Bytes()[2<<20:][:772], p.local.Bytes()[5:777]) {
		t.Fatal("WRITE_WITH_IMM: the value came before the bytes")
	}
	for range len(sizes) + 1 {
		if got := take(t, q); got.Err != nil {
			t.Fatalf("%+v", got)
		}
	}
	// The other way round, which has to work too.
	post(t, p.conn, verbs.WorkRequest{Op: verbs.OpRecv, Local: [][]byte{p.local.Bytes()[:8]}}, q)
	post(t, there, verbs.WorkRequest{Op: verbs.OpSend, Local: [][]byte{p.remote.Bytes()[2<<20:][:5]}}, rq)
	if got := take(t, q); got.Err != nil || got.Bytes != 5 || fmt.Sprint(take(t, rq).Err) != "<nil>" {
		t.Fatalf("RECV at the active side = %+v", got)
	}
	// A message with no RECV for it, or too long for it, ends the connection.
	post(t, there, verbs.WorkRequest{Op: verbs.OpRecv, Local: [][]byte{p.remote.Bytes()[:4]}}, rq)
	post(t, p.conn, verbs.WorkRequest{Op: verbs.OpSend, Local: [][]byte{p.local.Bytes()[:5]}}, q)
	wantErr(t, "SEND of 5 bytes into 4", take(t, q).Err, verbs.ErrPeer, verbs.ErrAccess)
	wantErr(t, "RECV", take(t, rq).Err, verbs.ErrPeer)
}
