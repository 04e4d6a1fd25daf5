package ibverbs

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/verbs"
	lib "github.com/millrace/millrace/verbs/ibverbs/libibverbs"
	"github.com/millrace/millrace/verbs/ibverbs/libibverbstest"
)

// posted puts work requests on a connection whose device does nothing, and returns their queue: SENDs and a RECV.
func (p *pair) stuck(t *testing.T) *verbs.Queue {
	t.Helper()
	p.machine.Frozen.Store(true)
	q := verbs.NewQueue(8)
	for i := range 3 {
		wr := p.write(100)
		wr.ID = uint64(i)
		if err := p.conn.Post(wr, q); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.conn.Post(&verbs.WorkRequest{Op: verbs.OpRecv, ID: 3, Local: [][]byte{p.local.Bytes()[:9]}}, q); err != nil {
		t.Fatal(err)
	}
	return q
}

// TestFaults: whatever the device does or doesn't, everything completes, and the connection tells why.
func TestFaults(t *testing.T) {
	for _, tc := range []struct {
		name  string
		cfg   Config
		fault func(*pair)
		want  error
		text  string
		state error // of the device afterwards
	}{
		{name: "port down", fault: func(p *pair) { p.machine.Thaw(); p.machine.SetPort(1) },
			want: verbs.ErrPeer, state: verbs.ErrUnreachable},
		{name: "port down and up", fault: func(p *pair) {
			p.machine.SetPort(1)
			p.machine.SetPort(lib.PortActive)
			p.machine.Thaw()
		}, want: verbs.ErrPeer},
		{name: "queue pair fatal", fault: func(p *pair) { p.machine.EventOf(lib.EventQPFatal); p.machine.Thaw() },
			want: verbs.ErrPeer, text: "catastrophic"},
		{name: "device gone, gives nothing back", fault: func(p *pair) { p.machine.Event(lib.EventDeviceFatal, 0) },
			want: verbs.ErrClosed, text: "device sim0 is gone", state: errAny},
		{name: "close without flush", cfg: Config{FlushTimeout: 20 * time.Millisecond},
			fault: func(p *pair) { p.machine.NoFlush.Store(true); go p.conn.Close() }, want: verbs.ErrClosed},
		{name: "stall", cfg: Config{StallTimeout: 50 * time.Millisecond, FlushTimeout: 20 * time.Millisecond},
			fault: func(*pair) {}, want: verbs.ErrPeer, text: "no progress"},
		{name: "peer gone", cfg: Config{FlushTimeout: 20 * time.Millisecond},
			fault: func(p *pair) { go p.accepted.Close() }, want: verbs.ErrPeer},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.cfg.NoWindows = true
			p := newPair(t, libibverbstest.New(), tc.cfg)
			q := p.stuck(t)
			tc.fault(p)
			for i := range 4 {
				done, err := q.Wait(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				// The port's state may reach the device after the device has done the first ones.
				if !errors.Is(done.Err, tc.want) && done.Err != nil {
					t.Errorf("completion %d: %v; want %v", i, done.Err, tc.want)
				}
			}
			<-p.conn.Done()
			if err := p.conn.Err(); !errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.text) {
				t.Errorf("Err() of the connection = %v; want %v with %q", err, tc.want, tc.text)
			}
			p.machine.Thaw()
			checkState(t, p, tc.state)
		})
	}
}

var errAny = errors.New("any error")

// checkState: a device in order makes new connections, one out of order says so.
func checkState(t *testing.T, p *pair, want error) {
	t.Helper()
	err := p.active.Err()
	for end := time.Now().Add(10 * time.Second); (err == nil) != (want == nil) && time.Now().Before(end); err = p.active.Err() {
		time.Sleep(time.Millisecond) // the event comes by itself
	}
	if want == nil {
		if err != nil {
			t.Fatalf("Err() of the device = %v", err)
		}
		// The event may not have reached the other device yet, and end this one's new connection once.
		for end := time.Now().Add(10 * time.Second); ; {
			c, err := p.active.Dial(t.Context(), p.ep, nil)
			if err == nil {
				err = verbs.NewRequester(p.active.Info(), 4).Write(t.Context(), c, p.window, 0, [][]byte{p.local.Bytes()}, false)
			}
			if err == nil {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("new connection: %v", err)
			}
		}
	}
	if err == nil || want != errAny && !errors.Is(err, want) {
		t.Errorf("Err() of the device = %v; want %v", err, want)
	}
	if want == errAny {
		if _, err := p.active.Dial(t.Context(), p.ep, nil); !errors.Is(err, verbs.ErrUnreachable) {
			t.Errorf("Dial on it = %v; want ErrUnreachable", err)
		}
	}
}

// TestDeviceGoneClosesClean: regions, bindings and the device itself can be ended after the device is gone.
func TestDeviceGoneClosesClean(t *testing.T) {
	p := newPair(t, libibverbstest.New(), Config{})
	q := p.stuck(t)
	p.machine.Event(lib.EventDeviceFatal, 0)
	for range 4 {
		if _, err := q.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(p.local.Deregister(), p.remote.Deregister(), p.active.Close(), p.passive.Close()); err != nil {
		t.Error(err)
	}
}

func TestDialRefuses(t *testing.T) {
	p := newPair(t, libibverbstest.New(), Config{NoWindows: true, StartTimeout: 2 * time.Second})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	replies := make(chan []byte, 1)
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write(<-replies)
			_, _ = io.Copy(io.Discard, c)
			_ = c.Close()
		}
	}()
	fake := p.ep
	fake.QPN = uint32(listener.Addr().(*net.TCPAddr).Port)
	reply := sampleFrame()
	reply.kind = kindReply
	for _, tc := range []struct {
		name string
		to   func(*verbs.Endpoint)
		got  []byte
		text string
	}{
		{name: "soft", to: func(e *verbs.Endpoint) { e.LID = verbs.LIDSoft }, text: "not the mark"},
		{name: "port 0", to: func(e *verbs.Endpoint) { e.QPN = 0 }, text: "no TCP port"},
		{name: "multicast", to: func(e *verbs.Endpoint) { e.GID = netip.MustParseAddr("224.0.0.1").As16() }, text: "not the address"},
		{name: "another GID", got: reply.append(nil), text: "peer has queue pairs at 192.0.2.7"},
		{name: "garbage", got: []byte("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"), text: "not a frame"},
		{name: "refusal", got: (&frame{kind: kindRefusal, data: []byte("go\naway")}).append(nil), text: `peer refuses: "go\naway"`},
	} {
		to := fake
		if tc.to != nil {
			tc.to(&to)
		} else {
			replies <- tc.got
		}
		_, err := p.active.Dial(t.Context(), to, nil)
		if !errors.Is(err, verbs.ErrUnreachable) || !strings.Contains(err.Error(), tc.text) {
			t.Errorf("%s: Dial = %v; want ErrUnreachable with %q", tc.name, err, tc.text)
		}
	}
	if got := p.active.Counters(); got.Connections != 1 || got.Live != 1 {
		t.Errorf("counters %+v; want one connection", got)
	}
}

// TestListenRefuses: nothing that a stranger sends makes a connection, or stays.
func TestListenRefuses(t *testing.T) {
	p := newPair(t, libibverbstest.New(), Config{NoWindows: true, StartTimeout: time.Second})
	objects := p.machine.Objects.Load()
	good := sampleFrame()
	good.rc.GID = netip.MustParseAddr("127.0.0.1").As16()
	foreign := sampleFrame()
	for _, tc := range []struct {
		name string
		sent []byte
		text string // what the answer has in it
	}{
		{name: "nothing"},
		{name: "garbage", sent: []byte(strings.Repeat("GET / HTTP/1.1\r\n", 10))},
		{name: "another's address", sent: foreign.append(nil), text: "the GID is 192.0.2.7, but the request came from 127.0.0.1"},
		{name: "not ready", sent: good.append(nil), text: "mrrc"},
		{name: "garbage for ready", sent: append(good.append(nil), strings.Repeat("x", 40)...), text: "mrrc"},
	} {
		c, err := net.Dial("tcp", netip.AddrPortFrom(p.ep.Addr(), uint16(p.ep.QPN)).String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write(tc.sent); err != nil {
			t.Fatal(err)
		}
		got, _ := io.ReadAll(c) // until the listener hangs up
		if !strings.Contains(string(got), tc.text) || tc.text == "" && len(got) > 0 {
			t.Errorf("%s: answer %q; want %q", tc.name, got, tc.text)
		}
		_ = c.Close()
	}
	for end := time.Now().Add(10 * time.Second); p.machine.Objects.Load() != objects || p.passive.Counters().Live != 1; {
		if time.Now().After(end) {
			t.Fatalf("%d objects of the library more than before, %d connections", p.machine.Objects.Load()-objects, p.passive.Counters().Live)
		}
		time.Sleep(time.Millisecond)
	}
}

// TestPrepareRC connects two queue pairs whose addresses the test exchanges.
func TestPrepareRC(t *testing.T) {
	m := libibverbstest.New()
	var dev verbs.RCDevice = openMachine(t, m, Config{MaxConns: 2})
	a, err := dev.PrepareRC(netip.Addr{})
	if err != nil {
		t.Fatal(err)
	}
	b, err := dev.PrepareRC(netip.Addr{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dev.PrepareRC(netip.Addr{}); !errors.Is(err, verbs.ErrLimit) {
		t.Errorf("third PrepareRC of two = %v; want ErrLimit", err)
	}
	if l := a.Local(); l.PSN == 0 || l.PSN >= 1<<24 || l.Port != 1 || l.GID != netip.MustParseAddr("127.0.0.1").As16() {
		t.Errorf("Local() = %+v", l)
	}
	ca, err := a.Connect(t.Context(), b.Local())
	if err != nil {
		t.Fatal(err)
	}
	cb, err := b.Connect(t.Context(), a.Local())
	if err != nil {
		t.Fatal(err)
	}
	r, err := dev.Register(make([]byte, 100))
	if err != nil {
		t.Fatal(err)
	}
	copy(r.Bytes(), "message")
	q := verbs.NewQueue(2)
	for _, wr := range []struct {
		c  verbs.Conn
		wr verbs.WorkRequest
	}{
		{cb, verbs.WorkRequest{Op: verbs.OpRecv, Local: [][]byte{r.Bytes()[50:]}}},
		{ca, verbs.WorkRequest{Op: verbs.OpSend, Local: [][]byte{r.Bytes()[:7]}}},
	} {
		if err := wr.c.Post(&wr.wr, q); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if done, err := q.Wait(t.Context()); err != nil || done.Err != nil {
			t.Fatal(err, done.Err)
		}
	}
	if string(r.Bytes()[50:57]) != "message" {
		t.Error("wrong bytes")
	}
	if _, err := a.Connect(t.Context(), b.Local()); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("second Connect = %v; want ErrClosed", err)
	}
	if err := errors.Join(a.Close(), ca.Close()); err != nil || !errors.Is(ca.Err(), verbs.ErrClosed) {
		t.Errorf("Close = %v, then Err = %v", err, ca.Err())
	}
	if err := dev.Close(); err != nil || m.Objects.Load() != 0 {
		t.Errorf("Close = %v, %d objects left", err, m.Objects.Load())
	}
}

func TestPrepareRCAgain(t *testing.T) {
	m := libibverbstest.New()
	dev := openMachine(t, m, Config{MaxConns: 1})
	c, err := dev.PrepareRC(netip.Addr{})
	if err != nil {
		t.Fatal(err)
	}
	bad := c.Local()
	bad.QPN = 1
	if _, err := c.Connect(t.Context(), bad); !errors.Is(err, verbs.ErrUnreachable) {
		t.Errorf("Connect to queue pair 1 = %v", err)
	}
	if d, err := dev.PrepareRC(netip.Addr{}); err != nil || errors.Join(d.Close(), d.Close()) != nil {
		t.Errorf("PrepareRC after a failed Connect = %v", err)
	}
	if err := dev.Close(); err != nil || m.Objects.Load() != 0 {
		t.Errorf("Close = %v, %d objects left", err, m.Objects.Load())
	}
}

func TestOpenErrors(t *testing.T) {
	m := libibverbstest.New()
	for _, tc := range []struct {
		cfg  Config
		text string
	}{
		{Config{Device: "mlx5_0"}, "mlx5_0"},
		{Config{Device: libibverbstest.DeviceName, Port: 2}, "no port 2"},
		{Config{Address: netip.MustParseAddr("192.0.2.1")}, "192.0.2.1"},
	} {
		if _, err := open(tc.cfg, m.Calls(), m.Fabric); err == nil || !strings.Contains(err.Error(), tc.text) {
			t.Errorf("open(%+v) = %v; want one with %q", tc.cfg, err, tc.text)
		}
	}
	if _, err := lib.Load(); err != nil {
		if !errors.Is(err, ErrNoLibrary) || strings.Contains(err.Error(), "\n") {
			t.Errorf("Load = %q; want one line of ErrNoLibrary", err)
		}
		t.Log(err)
	}
}
