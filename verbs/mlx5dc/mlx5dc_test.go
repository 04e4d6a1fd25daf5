package mlx5dc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/verbs"
	lib "github.com/millrace/millrace/verbs/ibverbs/libibverbs"
)

// bench is an adapter and the pool that is tested on it.
type bench struct {
	*adapter
	pool  *Initiators
	mem   *memory
	meter verbs.Meter
}

func clientGID() [16]byte { return netip.MustParseAddr("::ffff:192.0.2.7").As16() }

func newBench(t testing.TB, cfg Config) *bench {
	t.Helper()
	b := &bench{adapter: newAdapter(t), mem: &memory{mem: make([]byte, 4<<20)}}
	b.open(t, cfg)
	return b
}

func (b *bench) host() Host {
	return Host{
		Provider: "ibverbs", Verbs: b.verbs(), MLX5: b.mlx5(), Context: 1, PD: 2, Port: 1, MaxReads: 16, MaxMessageBytes: 1 << 30,
		Memory: b.mem, Meter: &b.meter, PathMTU: func() uint32 { return 5 },
		SourceGID: func(to [16]byte) (uint8, error) {
			if !netip.AddrFrom16(to).Is4In6() {
				return 0, errors.New("no IPv6 here")
			}
			return 3, nil
		},
	}
}

func (b *bench) open(t testing.TB, cfg Config) {
	t.Helper()
	if cfg.FlushTimeout == 0 {
		cfg.FlushTimeout = 10 * time.Second
	}
	pool, err := Open(b.host(), cfg)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	b.pool = pool
	t.Cleanup(func() {
		if err := pool.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		b.mem.mu.Lock()
		defer b.mem.mu.Unlock()
		if b.mem.held != 0 {
			t.Errorf("%d work requests still hold memory", b.mem.held)
		}
	})
}

func (b *bench) info() verbs.DeviceInfo {
	most, segments, depth := b.pool.Limits()
	return verbs.DeviceInfo{MaxMessageBytes: most, MaxSegments: segments, SendDepth: depth}
}

func (b *bench) dial(t testing.TB, w verbs.Window) verbs.Conn {
	t.Helper()
	c, err := b.pool.Dial(t.Context(), w.Endpoint)
	if err != nil {
		t.Fatalf("Dial(%v): %v", w.Endpoint, err)
	}
	return c
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

func (b *bench) write(w verbs.Window, id uint64, n int) *verbs.WorkRequest {
	return &verbs.WorkRequest{Op: verbs.OpWrite, ID: id, Local: [][]byte{b.mem.mem[:n]}, Addr: w.Addr, RKey: w.RKey}
}

const both = verbs.RemoteRead | verbs.RemoteWrite

func TestTransfers(t *testing.T) {
	b := newBench(t, Config{DCIs: 4, MaxMessageBytes: 64 << 10, MaxSegments: 3})
	there, w := b.addTarget(clientGID(), 77, 1<<20, both)
	c := b.dial(t, w)
	req := verbs.NewRequester(b.info(), 8)
	r := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{0, 1, 4096, 65536, 65537, 300_001, 1<<20 - 5} {
		for i := range b.mem.mem {
			b.mem.mem[i] = byte(r.Uint32())
		}
		local := [][]byte{b.mem.mem[3 : 3+n/3], nil, b.mem.mem[3+n/3 : 3+n/2], b.mem.mem[3+n/2 : 3+n-n/9], b.mem.mem[3+n-n/9 : 3+n]}
		want := bytes.Clone(there.mem)
		copy(want[5:], b.mem.mem[3:3+n])
		if err := req.Write(t.Context(), c, w, 5, local, false); err != nil {
			t.Fatalf("Write of %d: %v", n, err)
		}
		if !bytes.Equal(want, there.mem) {
			t.Fatalf("Write of %d: the window is not as it should be", n)
		}
		mine := bytes.Clone(b.mem.mem)
		for i := range there.mem {
			there.mem[i] = byte(r.Uint32())
		}
		copy(mine[3:3+n], there.mem[5:])
		if err := req.Read(t.Context(), c, w, 5, local); err != nil {
			t.Fatalf("Read of %d: %v", n, err)
		}
		if !bytes.Equal(mine, b.mem.mem) {
			t.Fatalf("Read of %d: local memory is not as it should be", n)
		}
	}
	got := b.meter.Read("ibverbs")
	if got.Initiated.WriteBytes != got.Initiated.ReadBytes || got.Initiated.WriteBytes == 0 || got.Failed != 0 || got.Live != 1 {
		t.Errorf("counters %+v; want the same both ways, nothing failed, one connection", got)
	}
}

// TestAttributes looks at what the adapter was told.
func TestAttributes(t *testing.T) {
	b := newBench(t, Config{DCIs: 2, HopLimit: 4, TrafficClass: 104, OutstandingReads: 64})
	_, w := b.addTarget(clientGID(), 77, 100, both)
	w.Endpoint.LID = 0x1c
	b.dial(t, w)
	b.adapter.mu.Lock()
	defer b.adapter.mu.Unlock()
	if len(b.handles) != 1 || len(b.dcis) != 2 || b.adapter.limits.MaxSendWR != 64 || b.adapter.limits.MaxSendSGE != 16 || b.adapter.limits.MaxRecvWR != 0 {
		t.Errorf("%d handles, %d DCIs with %+v; want 1, 2 with 64 and 16", len(b.handles), len(b.dcis), b.adapter.limits)
	}
	for _, a := range b.handles {
		g := a.GRH
		if g.DGID != clientGID() || g.SGIDIndex != 3 || g.HopLimit != 4 || g.TrafficClass != 104 || a.DLID != 0x1c || a.PortNum != 1 {
			t.Errorf("address handle %+v", a)
		}
	}
	for _, d := range b.dcis {
		if d.maxReads != 16 || d.state != lib.StateRTS {
			t.Errorf("a DCI with %d READs in state %d; want 16, no more than the device takes, in RTS", d.maxReads, d.state)
		}
	}
}

// TestErrors breaks one transfer, and wants its error, that those behind it fail too, and that the DCI serves the next client.
func TestErrors(t *testing.T) {
	tests := []struct {
		name   string
		access verbs.Access
		spoil  func(*bench, *verbs.Window, *verbs.WorkRequest)
		want   error
		status lib.WCStatus
	}{
		{"wrong key", both, func(_ *bench, _ *verbs.Window, wr *verbs.WorkRequest) { wr.RKey++ }, verbs.ErrAccess, lib.WCRemAccessErr},
		{"behind the end", both, func(_ *bench, _ *verbs.Window, wr *verbs.WorkRequest) { wr.Addr += 1 << 20 }, verbs.ErrAccess, lib.WCRemAccessErr},
		{"no right to write", verbs.RemoteRead, func(*bench, *verbs.Window, *verbs.WorkRequest) {}, verbs.ErrAccess, lib.WCRemAccessErr},
		{"no right to read", verbs.RemoteWrite, func(_ *bench, _ *verbs.Window, wr *verbs.WorkRequest) { wr.Op = verbs.OpRead }, verbs.ErrAccess, lib.WCRemAccessErr},
		{"nobody there", both, func(b *bench, _ *verbs.Window, _ *verbs.WorkRequest) { delete(b.targets, 77) }, verbs.ErrPeer, lib.WCRetryExcErr},
		{"another DC key", both, func(b *bench, _ *verbs.Window, _ *verbs.WorkRequest) { b.targets[77].key = 1 }, verbs.ErrPeer, lib.WCRetryExcErr},
	}
	for _, noReset := range []bool{false, true} {
		for _, tt := range tests {
			t.Run(fmt.Sprintf("%s, reset %v", tt.name, !noReset), func(t *testing.T) {
				b := newBench(t, Config{DCIs: 1})
				b.noReset = noReset
				_, w := b.addTarget(clientGID(), 77, 1<<20, tt.access)
				there, other := b.addTarget(clientGID(), 78, 1<<20, both)
				c := b.dial(t, w)
				wr := b.write(w, 1, 4096)
				tt.spoil(b, &w, wr)
				q := verbs.NewQueue(8)
				resume := b.stall()
				for i := range uint64(3) {
					wr.ID = i
					if err := c.Post(wr, q); err != nil {
						t.Fatalf("Post: %v", err)
					}
				}
				resume()
				for i := range uint64(3) {
					done := take(t, q)
					var status *lib.StatusError
					if done.ID != i || !errors.Is(done.Err, tt.want) || !errors.As(done.Err, &status) || status.Status != tt.status {
						t.Errorf("completion %+v; want number %d with %v", done, i, tt.status)
					}
				}
				<-c.Done()
				if err := c.Post(wr, q); !errors.Is(err, tt.want) || !errors.Is(c.Err(), tt.want) {
					t.Errorf("Post to a connection that has ended: %v; want %v", err, tt.want)
				}
				b.mem.mem[9] = 99
				if err := verbs.NewRequester(b.info(), 4).Write(t.Context(), b.dial(t, other), other, 0, [][]byte{b.mem.mem[:10]}, false); err != nil || there.mem[9] != 99 {
					t.Errorf("the next client: %v", err)
				}
				b.adapter.mu.Lock()
				defer b.adapter.mu.Unlock()
				if resets, created := b.resets, b.created; noReset && created != 2 || !noReset && (resets != 1 || created != 1) {
					t.Errorf("%d resets, %d DCIs made", resets, created)
				}
			})
		}
	}
}

func TestMisuse(t *testing.T) {
	b := newBench(t, Config{DCIs: 1, MaxMessageBytes: 1 << 20, MaxSegments: 2, SendDepth: 4})
	_, w := b.addTarget(clientGID(), 77, 2<<20, both)
	c := b.dial(t, w)
	defer b.stall()()
	q, small := verbs.NewQueue(16), verbs.NewQueue(1)
	tests := []struct {
		name string
		wr   verbs.WorkRequest
		want error
	}{
		{"SEND", verbs.WorkRequest{Op: verbs.OpSend}, ErrOneSided}, {"RECV", verbs.WorkRequest{Op: verbs.OpRecv}, ErrOneSided},
		{"WRITE_WITH_IMM", verbs.WorkRequest{Op: verbs.OpWriteImm}, ErrOneSided}, {"no operation", verbs.WorkRequest{}, ErrOneSided},
		{"too many bytes", *b.write(w, 0, 1<<20+1), verbs.ErrTooLarge},
		{"too many segments", verbs.WorkRequest{Op: verbs.OpRead, Local: [][]byte{b.mem.mem[:1], b.mem.mem[:1], b.mem.mem[:1]}}, verbs.ErrTooLarge},
		{"memory of somebody else", verbs.WorkRequest{Op: verbs.OpRead, Local: [][]byte{make([]byte, 10)}}, verbs.ErrNotRegistered},
	}
	for _, tt := range tests {
		if err := c.Post(&tt.wr, q); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v; want %v", tt.name, err, tt.want)
		}
	}
	if q.Outstanding() != 0 {
		t.Errorf("%d are outstanding after refusals; want none", q.Outstanding())
	}
	if err := c.Post(b.write(w, 1, 10), small); err != nil {
		t.Fatal(err)
	}
	if err := c.Post(b.write(w, 2, 10), small); !errors.Is(err, verbs.ErrQueueFull) {
		t.Errorf("second in a queue of one: %v; want ErrQueueFull", err)
	}
	for i := range 3 {
		if err := c.Post(b.write(w, uint64(i), 10), q); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Post(b.write(w, 9, 10), q); !errors.Is(err, verbs.ErrQueueFull) {
		t.Errorf("more than the connection holds: %v; want ErrQueueFull", err)
	}
}

func TestDialRefuses(t *testing.T) {
	b := newBench(t, Config{DCIs: 1, MaxConns: 1})
	_, w := b.addTarget(clientGID(), 77, 100, both)
	v6 := netip.MustParseAddr("2001:db8::1").As16()
	tests := []struct {
		name string
		to   verbs.Endpoint
		want error
	}{
		{"session", verbs.Endpoint{GID: clientGID(), QPN: 77, Session: true}, verbs.ErrUnreachable},
		{"soft", verbs.Endpoint{GID: clientGID(), QPN: 77, LID: verbs.LIDSoft}, verbs.ErrUnreachable},
		{"RC", verbs.Endpoint{GID: clientGID(), QPN: 77, LID: verbs.LIDRC}, verbs.ErrUnreachable},
		{"no number", verbs.Endpoint{GID: clientGID()}, verbs.ErrUnreachable},
		{"a number of 25 bits", verbs.Endpoint{GID: clientGID(), QPN: 1 << 24}, verbs.ErrUnreachable},
		{"no GID", verbs.Endpoint{QPN: 77}, verbs.ErrUnreachable},
		{"another family", verbs.Endpoint{GID: v6, QPN: 77}, verbs.ErrUnreachable},
	}
	for _, tt := range tests {
		if _, err := b.pool.Dial(t.Context(), tt.to); !errors.Is(err, tt.want) {
			t.Errorf("Dial(%s): %v; want %v", tt.name, err, tt.want)
		}
	}
	c := b.dial(t, w)
	if _, err := b.pool.Dial(t.Context(), w.Endpoint); !errors.Is(err, verbs.ErrLimit) {
		t.Errorf("one connection too many: %v; want ErrLimit", err)
	}
	_ = c.Close()
	b.dial(t, w)
}

func TestOpenFails(t *testing.T) {
	for _, tt := range []struct {
		name  string
		spoil func(*adapter)
		want  error
	}{
		{"not mlx5", func(a *adapter) { a.noDC = true }, ErrUnsupported},
		{"no DCIs", func(a *adapter) { a.noCreate = true }, syscall.ENOMEM},
	} {
		b := &bench{adapter: newAdapter(t), mem: &memory{}}
		tt.spoil(b.adapter)
		if _, err := Open(b.host(), Config{}); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v; want %v", tt.name, err, tt.want)
		}
	}
}
