package preflight

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"net/netip"

	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/verbs"
	"github.com/millrace/millrace/verbs/fabric/fabrictest"
	"github.com/millrace/millrace/verbs/iwarp"
	"github.com/millrace/millrace/verbs/nullverbs"
)

func loopback() netip.AddrPort { return netip.MustParseAddrPort("127.0.0.1:0") }

func TestLoopSoft(t *testing.T) {
	dev := iwarp.Open(iwarp.Config{})
	defer dev.Close()
	const size = 8 << 20
	r, err := Loop(t.Context(), dev, loopback(), size)
	if err != nil {
		t.Fatalf("Loop: %v", err)
	}
	if r.Provider != "soft" || r.Bytes != size || r.WriteMiBps <= 0 || r.ReadMiBps <= 0 || r.WriteMicros <= 0 || r.ReadMicros <= 0 {
		t.Errorf("result %+v; want figures", r)
	}
	// The counters of the device are the witness that the bytes went through it.
	want := uint64(size + smallRounds*smallBytes)
	if c := dev.Counters(); c.Initiated.WriteBytes != want || c.Initiated.ReadBytes != want {
		t.Errorf("wrote %d, read %d; want %d each", c.Initiated.WriteBytes, c.Initiated.ReadBytes, want)
	}
}

func TestLoopRefusesNull(t *testing.T) {
	dev := nullverbs.Open()
	defer dev.Close()
	if _, err := Loop(t.Context(), dev, loopback(), 1<<20); err == nil || !strings.Contains(err.Error(), "moves no bytes") {
		t.Errorf("Loop over null: %v; want a refusal", err)
	}
}

// liar says that it moves bytes.
type liar struct{ *nullverbs.Device }

func (l liar) Info() verbs.DeviceInfo {
	info := l.Device.Info()
	info.Moves = true
	return info
}

func TestLoopComparesBytes(t *testing.T) {
	dev := liar{nullverbs.Open()}
	defer dev.Close()
	findings := LoopFindings(t.Context(), System{Sys: fabrictest.Sys{}.FS()}, dev, loopback(), 1<<20)
	if len(findings) != 1 || findings[0].Verdict != Problem || !strings.Contains(findings[0].Found, "bytes differ") {
		t.Errorf("findings %v; want a problem with the bytes", findings)
	}
}

// growing counts an error while the device is in use.
type growing struct {
	verbs.Device
	sys fabrictest.Sys
}

const outOfSequence = "class/infiniband/mlx5_0/ports/1/hw_counters/out_of_sequence"

func (g growing) Dial(ctx context.Context, to verbs.Endpoint, private []byte) (verbs.Conn, error) {
	g.sys[outOfSequence] = "12\n"
	return g.Device.Dial(ctx, to, private)
}

func TestLoopFindingsErrorsGrow(t *testing.T) {
	dev := iwarp.Open(iwarp.Config{})
	defer dev.Close()
	sys := fabrictest.Sys{outOfSequence: "5\n"}
	system := System{Sys: live{sys}}
	port := PortID{"mlx5_0", 1}
	findings := LoopFindings(t.Context(), system, dev, loopback(), 1<<20, port)
	if len(findings) != 2 || len(bad(findings)) != 0 || findings[0].Loop.Bytes != 1<<20 {
		t.Errorf("findings %v; want two that are OK", findings)
	}
	findings = LoopFindings(t.Context(), system, growing{dev, sys}, loopback(), 1<<20, port)
	if diff := cmp.Diff([]string{"PROBLEM errors mlx5_0/1"}, bad(findings)); diff != "" {
		t.Errorf("findings (-want +got):\n%s", diff)
	}
	if got := findings[1].Found; !strings.Contains(got, "out_of_sequence 7") {
		t.Errorf("found %q; want the growth of 7", got)
	}
}

// live is a tree that changes while it is in use.
type live struct{ sys fabrictest.Sys }

func (l live) Open(name string) (f fs.File, err error) { return l.sys.FS().Open(name) }

func TestPeerFindings(t *testing.T) {
	dev := iwarp.Open(iwarp.Config{StartTimeout: time.Second})
	defer dev.Close()
	listener, err := dev.Listen(loopback(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	at := netip.AddrPortFrom(listener.Endpoint().Addr(), uint16(listener.Endpoint().QPN))
	// answers is how large a packet may be that is answered.
	answers := func(most int, no error) func(context.Context, netip.Addr, int) error {
		return func(_ context.Context, _ netip.Addr, n int) error {
			if n > most {
				return no
			}
			return nil
		}
	}
	silent := errors.New("no answer")
	tests := []struct {
		name string
		at   netip.AddrPort
		echo func(context.Context, netip.Addr, int) error
		want []string
	}{
		{"reached", at, answers(9000, silent), nil},
		{"MTU of 1500 on the way", at, answers(1500, silent), []string{"WARN path 127.0.0.1"}},
		{"no echo", at, answers(0, silent), []string{"WARN path 127.0.0.1"}},
		{"no probe", at, answers(0, ErrNoProbe), []string{"WARN path 127.0.0.1"}},
		{"nobody listens", netip.MustParseAddrPort("127.0.0.1:1"), answers(9000, silent), []string{"PROBLEM peer 127.0.0.1:1"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, bad(PeerFindings(t.Context(), dev, tt.at, tt.echo))); diff != "" {
				t.Errorf("findings (-want +got):\n%s", diff)
			}
		})
	}
}

func TestEchoLoopback(t *testing.T) {
	for _, addr := range []string{"127.0.0.1", "::1"} {
		if l, err := net.Listen("tcp", net.JoinHostPort(addr, "0")); err != nil {
			t.Logf("this machine has no %s", addr)
			continue
		} else if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		err := Echo(t.Context(), netip.MustParseAddr(addr), jumboBytes)
		if errors.Is(err, ErrNoProbe) {
			t.Skipf("Echo: %v", err)
		}
		if err != nil {
			t.Errorf("Echo(%s): %v", addr, err)
		}
	}
	if err := Echo(t.Context(), netip.MustParseAddr("127.0.0.1"), 70000); err == nil {
		t.Error("a packet larger than any MTU was answered")
	}
}
