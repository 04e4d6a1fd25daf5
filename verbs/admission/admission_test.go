package admission_test

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/millrace/millrace/verbs"
	"github.com/millrace/millrace/verbs/admission"
)

// conn is a provider's connection.
type conn struct {
	verbs.Conn
	tcp     *net.TCPConn
	dismiss func()
}

func newTable(l admission.Limits) (*admission.Table[*conn], *verbs.Meter) {
	var meter verbs.Meter
	l.StartTimeout = time.Minute
	return admission.NewTable[*conn](l, &meter), &meter
}

// TestTable: reservations and connections count together, and Stop is heeded by both Reserve and Enter.
func TestTable(t *testing.T) {
	table, meter := newTable(admission.Limits{Conns: 2, PerAddr: 1, Handshakes: 1})
	c, gone := &conn{}, errors.New("gone")
	steps := []struct {
		name      string
		do        func() error
		want      error
		all, live int
	}{
		{"reserve", table.Reserve, nil, 0, 0},
		{"enter", func() error { return table.Enter(c) }, nil, 1, 1},
		{"reserve a second", table.Reserve, nil, 1, 1},
		{"reserve a third", table.Reserve, verbs.ErrLimit, 1, 1},
		{"cancel", func() error { table.Cancel(); return nil }, nil, 1, 1},
		{"reserve again", table.Reserve, nil, 1, 1},
		{"stop", func() error { table.Stop(gone); return nil }, nil, 1, 1},
		{"enter when stopped", func() error { return table.Enter(&conn{}) }, gone, 1, 1},
		{"reserve when stopped", table.Reserve, gone, 1, 1},
		{"leave", func() error { table.Leave(c); return nil }, nil, 0, 0},
		{"close", func() error { table.Close(); table.Stop(gone); return nil }, nil, 0, 0},
		{"reserve when closed", table.Reserve, verbs.ErrClosed, 0, 0},
	}
	for _, s := range steps {
		if got := s.do(); !errors.Is(got, s.want) {
			t.Errorf("%s = %v; want %v", s.name, got, s.want)
		}
		if all, live := len(table.All()), int(meter.Live.Load()); all != s.all || live != s.live {
			t.Errorf("%s: %d connections, %d in the counter; want %d and %d", s.name, all, live, s.all, s.live)
		}
	}
	if table.Close() {
		t.Error("a second Close is not the first")
	}
	if got := meter.Connections.Load(); got != 1 {
		t.Errorf("%d connections counted; want 1", got)
	}
}

// guest is a listener whose handshakes each take a byte of the peer.
type guest struct {
	table    *admission.Table[*conn]
	at       string
	begun    chan struct{}
	admitted chan *conn
}

func newGuest(t *testing.T, l admission.Limits) *guest {
	table, _ := newTable(l)
	g := &guest{table: table, begun: make(chan struct{}, 16), admitted: make(chan *conn, 16)}
	listener, err := table.Listen(netip.MustParseAddrPort("127.0.0.1:0"), g.shake, func(c verbs.Conn) { g.admitted <- c.(*conn) })
	if err != nil {
		t.Fatal(err)
	}
	g.at = listener.Addr().String()
	t.Cleanup(func() {
		table.Close()
		table.Wait()
		for _, c := range table.All() {
			_ = c.tcp.Close()
		}
	})
	return g
}

func (g *guest) shake(tcp *net.TCPConn, dismiss func()) (*conn, error) {
	g.begun <- struct{}{}
	if _, err := io.ReadFull(tcp, make([]byte, 1)); err != nil {
		g.table.Cancel()
		return nil, err
	}
	c := &conn{tcp: tcp, dismiss: dismiss}
	return c, g.table.Enter(c)
}

func (g *guest) dial(t *testing.T) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", g.at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// shakes connects and waits until the handshake has begun.
func (g *guest) shakes(t *testing.T) net.Conn {
	t.Helper()
	c := g.dial(t)
	<-g.begun
	return c
}

func (g *guest) enters(t *testing.T) *conn {
	t.Helper()
	if _, err := g.shakes(t).Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	return <-g.admitted
}

// refused tells that a peer's connection is closed without a handshake.
func (g *guest) refused(t *testing.T) {
	t.Helper()
	if _, err := g.dial(t).Read(make([]byte, 1)); err == nil {
		t.Error("a byte from a connection that must be refused")
	}
	select {
	case <-g.begun:
		t.Error("a handshake of a connection that must be refused")
	default:
	}
}

// TestLimits: each limit alone refuses the connection beyond it, and what ends makes room.
func TestLimits(t *testing.T) {
	t.Run("handshakes", func(t *testing.T) {
		g := newGuest(t, admission.Limits{Conns: 9, PerAddr: 9, Handshakes: 1})
		c := g.shakes(t)
		g.refused(t)
		if _, err := c.Write([]byte{1}); err != nil {
			t.Fatal(err)
		}
		<-g.admitted
		g.enters(t)
	})
	t.Run("per address", func(t *testing.T) {
		g := newGuest(t, admission.Limits{Conns: 9, PerAddr: 1, Handshakes: 9})
		c := g.enters(t)
		g.refused(t)
		g.table.Leave(c)
		c.dismiss()
		g.enters(t)
	})
	t.Run("connections", func(t *testing.T) {
		g := newGuest(t, admission.Limits{Conns: 1, PerAddr: 9, Handshakes: 9})
		c := g.enters(t)
		g.refused(t)
		g.table.Leave(c)
		c.dismiss()
		g.enters(t)
	})
}

// TestCloseBreaksOff: Close does not wait for peers that say nothing, and what was booked for them is given back.
func TestCloseBreaksOff(t *testing.T) {
	g := newGuest(t, admission.Limits{Conns: 9, PerAddr: 9, Handshakes: 9})
	c := g.shakes(t)
	if !g.table.Close() {
		t.Error("the first Close is not the first")
	}
	g.table.Wait()
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("the connection is still open")
	}
	if _, err := g.table.Listen(netip.MustParseAddrPort("127.0.0.1:0"), g.shake, nil); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("Listen after Close = %v; want %v", err, verbs.ErrClosed)
	}
}
