package verbstest

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/verbs"
)

// testAccess: whatever is wrong with key, range or right, the peer's memory stays as it is.
func testAccess(t *testing.T, s Suite) {
	for _, tc := range []struct {
		name   string
		access verbs.Access
		op     verbs.Opcode
		change func(*verbs.WorkRequest)
		revoke bool
	}{
		{name: "key", access: both, op: verbs.OpWrite, change: func(w *verbs.WorkRequest) { w.RKey ^= 0x5a5a }},
		{name: "key", access: both, op: verbs.OpRead, change: func(w *verbs.WorkRequest) { w.RKey ^= 0x5a5a }},
		{name: "key 0", access: both, op: verbs.OpWrite, change: func(w *verbs.WorkRequest) { w.RKey = 0 }},
		{name: "before", access: both, op: verbs.OpWrite, change: func(w *verbs.WorkRequest) { w.Addr-- }},
		{name: "behind", access: both, op: verbs.OpWrite, change: func(w *verbs.WorkRequest) { w.Addr++ }},
		{name: "before", access: both, op: verbs.OpRead, change: func(w *verbs.WorkRequest) { w.Addr-- }},
		{name: "behind", access: both, op: verbs.OpRead, change: func(w *verbs.WorkRequest) { w.Addr++ }},
		{name: "wrap", access: both, op: verbs.OpWrite, change: func(w *verbs.WorkRequest) { w.Addr = 1<<64 - 5 }},
		{name: "wrap", access: both, op: verbs.OpRead, change: func(w *verbs.WorkRequest) { w.Addr = 1<<64 - 5 }},
		{name: "right", access: verbs.RemoteRead, op: verbs.OpWrite},
		{name: "right", access: verbs.RemoteWrite, op: verbs.OpRead},
		{name: "revoked", access: both, op: verbs.OpWrite, revoke: true},
		{name: "revoked", access: both, op: verbs.OpRead, revoke: true},
	} {
		t.Run(tc.name+" "+tc.op.String(), func(t *testing.T) {
			p := newPair(t, s)
			seed := newSeed(t)
			fill(p.local.Bytes(), seed)
			fill(p.remote.Bytes(), seed+1)
			here, there := bytes.Clone(p.local.Bytes()), bytes.Clone(p.remote.Bytes())
			b, w := p.bind(t, 8192, 100_000, tc.access)
			if tc.revoke {
				if err := errors.Join(b.Close(), b.Close()); err != nil {
					t.Fatal(err)
				}
			}
			wr := verbs.WorkRequest{Op: tc.op, Local: [][]byte{p.local.Bytes()[:100_000]}, Addr: w.Addr, RKey: w.RKey}
			if tc.change != nil {
				tc.change(&wr)
			}
			q := verbs.NewQueue(2)
			post(t, p.conn, wr, q)
			wantErr(t, "work request", take(t, q).Err, verbs.ErrAccess)
			<-p.conn.Done()
			wantErr(t, "connection", p.conn.Err(), verbs.ErrAccess)
			wantErr(t, "next work request", p.conn.Post(&wr, q), verbs.ErrAccess)
			closed(t, b)
			// A WRITE that runs out of the window may have begun inside of it.
			if tc.op == verbs.OpWrite && tc.name == "behind" {
				copy(there[8193:108_192], p.remote.Bytes()[8193:108_192])
			}
			if !bytes.Equal(p.local.Bytes(), here) || !bytes.Equal(p.remote.Bytes(), there) {
				t.Error("memory was changed")
			}
		})
	}
}

// keepBusy posts work requests until the connection ends, and returns the error that ended it.
func keepBusy(c verbs.Conn, wr verbs.WorkRequest) error {
	q := verbs.NewQueue(8)
	for {
		for q.Outstanding() < q.Depth() {
			if err := c.Post(&wr, q); err != nil {
				return drainQueue(q, err)
			}
		}
		if done, _ := q.Wait(context.Background()); done.Err != nil {
			return drainQueue(q, done.Err)
		}
	}
}

func drainQueue(q *verbs.Queue, err error) error {
	for q.Outstanding() > 0 {
		_, _ = q.Wait(context.Background())
	}
	return err
}

// testRevoke closes a binding while WRITEs (or READs) run; from then on its memory is the owner's alone.
func testRevoke(t *testing.T, s Suite) {
	midTransfer(t, s, func(p *pair, b verbs.Binding) error { return b.Close() })
}

func testDeregister(t *testing.T, s Suite) {
	midTransfer(t, s, func(p *pair, _ verbs.Binding) error { return p.remote.Deregister() })
}

func midTransfer(t *testing.T, s Suite, end func(*pair, verbs.Binding) error) {
	for _, op := range []verbs.Opcode{verbs.OpWrite, verbs.OpRead} {
		t.Run(op.String(), func(t *testing.T) {
			p := newPair(t, s)
			seed := newSeed(t)
			fill(p.local.Bytes(), seed)
			b, w := p.bind(t, 0, memoryBytes, both)
			wr := verbs.WorkRequest{Op: op, Local: [][]byte{p.local.Bytes()[:maxMessage]}, Addr: w.Addr, RKey: w.RKey}
			ended := make(chan error, 1)
			go func() { ended <- keepBusy(p.conn, wr) }()
			time.Sleep(time.Duration(1+rand.IntN(10)) * time.Millisecond)
			if err := end(p, b); err != nil {
				t.Fatal(err)
			}
			fill(p.remote.Bytes(), seed+1) // as the owner may, at once
			want := bytes.Clone(p.remote.Bytes())
			wantErr(t, "work request", <-ended, verbs.ErrAccess, verbs.ErrPeer)
			if !bytes.Equal(p.remote.Bytes(), want) {
				t.Error("memory was changed after it had been revoked")
			}
		})
	}
}

// testClose closes each side in mid-transfer; afterwards local memory is not touched either.
func testClose(t *testing.T, s Suite) {
	for _, op := range []verbs.Opcode{verbs.OpWrite, verbs.OpRead} {
		p := newPair(t, s)
		seed := newSeed(t)
		_, w := p.bind(t, 0, memoryBytes, both)
		wr := verbs.WorkRequest{Op: op, Local: [][]byte{p.local.Bytes()[:maxMessage]}, Addr: w.Addr, RKey: w.RKey}
		ended := make(chan error, 1)
		go func() { ended <- keepBusy(p.conn, wr) }()
		time.Sleep(2 * time.Millisecond)
		if err := p.conn.Close(); err != nil {
			t.Fatal(err)
		}
		wantErr(t, op.String(), <-ended, verbs.ErrClosed)
		fill(p.local.Bytes(), seed)
		want := bytes.Clone(p.local.Bytes())
		if err := p.local.Deregister(); err != nil {
			t.Fatal(err)
		}
		runtime.Gosched()
		if !bytes.Equal(p.local.Bytes(), want) {
			t.Error("local memory was changed after Close")
		}
		other := p.other(t)
		<-other.Done()
		wantErr(t, "the other side", other.Err(), verbs.ErrPeer)
	}
}

func testDeadPeer(t *testing.T, s Suite) {
	for _, op := range []verbs.Opcode{verbs.OpWrite, verbs.OpRead} {
		p := newPair(t, s)
		_, w := p.bind(t, 0, memoryBytes, both)
		wr := verbs.WorkRequest{Op: op, Local: [][]byte{p.local.Bytes()[:maxMessage]}, Addr: w.Addr, RKey: w.RKey}
		ended := make(chan error, 1)
		go func() { ended <- keepBusy(p.conn, wr) }()
		time.Sleep(2 * time.Millisecond)
		if err := p.passive.Close(); err != nil {
			t.Fatal(err)
		}
		wantErr(t, op.String(), <-ended, verbs.ErrPeer, verbs.ErrAccess)
		_, err := p.active.Dial(context.Background(), p.ep, nil)
		wantErr(t, "Dial", err, verbs.ErrUnreachable)
	}
}

func testMisuse(t *testing.T, s Suite) {
	p := newPair(t, s)
	_, w := p.bind(t, 0, 4096, both)
	q := verbs.NewQueue(4)
	write := func(local []byte) error {
		return p.conn.Post(&verbs.WorkRequest{Op: verbs.OpWrite, Local: [][]byte{local}, Addr: w.Addr, RKey: w.RKey}, q)
	}
	wantErr(t, "foreign memory", write(make([]byte, 10)), verbs.ErrNotRegistered)
	wantErr(t, "too large", write(p.local.Bytes()[:maxMessage+1]), verbs.ErrTooLarge)
	_, err := p.remote.Bind(-1, 1, both)
	wantErr(t, "Bind(-1, 1)", err, verbs.ErrRange)
	_, err = p.remote.Bind(1, memoryBytes, both)
	wantErr(t, "Bind(1, all)", err, verbs.ErrRange)
	_, err = p.remote.Bind(0, 1, 0)
	wantErr(t, "Bind with no rights", err, verbs.ErrAccess)
	_, err = p.active.Register(p.local.Bytes()[4096:8192])
	wantErr(t, "Register of registered memory", err, verbs.ErrRange)
	_, err = p.active.Register(nil)
	wantErr(t, "Register(nil)", err, verbs.ErrRange)
	err = p.req.Write(context.Background(), p.conn, w, 4000, [][]byte{p.local.Bytes()[:97]}, false)
	wantErr(t, "Write past the window", err, verbs.ErrRange)
	_, err = p.active.Dial(context.Background(), verbs.Session{1}.Endpoint(), nil)
	wantErr(t, "Dial of a session", err, verbs.ErrUnreachable)
	_, err = p.active.Dial(context.Background(), p.ep, make([]byte, verbs.MaxPrivateBytes+1))
	wantErr(t, "Dial with long private data", err, verbs.ErrTooLarge)
	if q.Outstanding() != 0 || p.conn.Err() != nil {
		t.Errorf("%d outstanding, connection %v; want neither to have suffered", q.Outstanding(), p.conn.Err())
	}
	if err := p.local.Deregister(); err != nil {
		t.Fatal(err)
	}
	wantErr(t, "memory no longer registered", write(p.local.Bytes()[:10]), verbs.ErrNotRegistered)
	_, err = p.local.Bind(0, 1, both)
	wantErr(t, "Bind in a region that is gone", err, verbs.ErrClosed)
	if err := p.active.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = p.active.Register(make([]byte, 10))
	wantErr(t, "Register on a closed device", err, verbs.ErrClosed)
	_, err = p.active.Dial(context.Background(), p.ep, nil)
	wantErr(t, "Dial on a closed device", err, verbs.ErrClosed)
	_, err = p.active.Listen(s.Listen, nil)
	wantErr(t, "Listen on a closed device", err, verbs.ErrClosed)
}

// testMany has several connections, several users of each, and both directions at once.
func testMany(t *testing.T, s Suite) {
	p := newPair(t, s)
	seed := newSeed(t)
	conns := []verbs.Conn{p.conn, dial(t, p.active, p.ep, nil), dial(t, p.active, p.ep, []byte("third"))}
	const users, each = 12, memoryBytes / 12
	var wg sync.WaitGroup
	for u := range users {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(u)))
			req := verbs.NewRequester(p.active.Info(), 4)
			mine, theirs := p.local.Bytes()[u*each:][:each], p.remote.Bytes()[u*each:][:each]
			for range 20 {
				n := r.IntN(each + 1)
				off := r.IntN(each - n + 1)
				b, w := p.bind(t, int64(u*each+off), int64(n), both)
				fill(mine, r.Uint64())
				op, part := "Write", theirs[off:off+n]
				err := req.Write(context.Background(), conns[u%3], w, 0, split(mine[:n], r), false)
				if err == nil && r.IntN(2) == 0 {
					closed(t, b)
					b, w = p.bind(t, int64(u*each+off), int64(n), both)
					fill(part, r.Uint64())
					op = "Read"
					err = req.Read(context.Background(), conns[u%3], w, 0, [][]byte{mine[:n]})
				}
				closed(t, b)
				if err != nil || !bytes.Equal(mine[:n], part) {
					t.Errorf("user %d: %s of %d bytes: %v, or wrong bytes", u, op, n, err)
					return
				}
			}
		})
	}
	wg.Wait()
}
