package ibverbs

import (
	"context"
	"errors"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/verbs"
	lib "github.com/millrace/millrace/verbs/ibverbs/libibverbs"
	"github.com/millrace/millrace/verbs/ibverbs/libibverbstest"
	"github.com/millrace/millrace/verbs/verbstest"
)

// TestConformanceSimulated runs the suite on a device in memory: one with windows that hold, one with such that don't, one
// without.
func TestConformanceSimulated(t *testing.T) {
	for _, tc := range []struct {
		name      string
		addr      string
		change    func(*libibverbstest.Machine)
		cfg       Config
		registers bool
	}{
		{name: "windows", addr: "127.0.0.1"},
		{name: "v6", addr: "::1"},
		{name: "leaky windows", addr: "127.0.0.1", registers: true,
			change: func(m *libibverbstest.Machine) { m.LeakyWindows = true }},
		{name: "no windows", addr: "127.0.0.1", registers: true,
			change: func(m *libibverbstest.Machine) { m.Device.Capabilities = 0 }},
		{name: "small", addr: "127.0.0.1", cfg: Config{MaxSegments: 2, SendDepth: 16, RecvDepth: 9, OutstandingReads: 1}},
	} {
		if testing.Short() && tc.name != "windows" && tc.name != "no windows" {
			continue
		}
		t.Run(tc.name, func(t *testing.T) {
			m := libibverbstest.New()
			if tc.change != nil {
				tc.change(m)
			}
			verbstest.Suite{
				Listen: netip.AddrPortFrom(netip.MustParseAddr(tc.addr), 0),
				Open: func(t testing.TB, o verbstest.Options) verbs.Device {
					tc.cfg.MaxMessageBytes, tc.cfg.StallTimeout = o.MaxMessageBytes, o.StallTimeout
					d := openMachine(t, m, tc.cfg)
					if d.Info().Registers != tc.registers {
						t.Fatalf("Info().Registers = %v; want %v", d.Info().Registers, tc.registers)
					}
					return d
				},
			}.Run(t)
			if n := m.Objects.Load(); n != 0 {
				t.Errorf("%d objects of the library are left", n)
			}
		})
	}
}

func openMachine(t testing.TB, m *libibverbstest.Machine, cfg Config) *Device {
	t.Helper()
	d, err := open(cfg, m.Calls(), m.Fabric)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// pair is two devices of a machine, connected, and memory of each.
type pair struct {
	machine         *libibverbstest.Machine
	active, passive *Device
	conn            verbs.Conn // of the active device
	accepted        verbs.Conn // the same, of the passive one
	local, remote   verbs.Region
	window          verbs.Window
	ep              verbs.Endpoint
}

const pairBytes = 1 << 20

func newPair(t *testing.T, m *libibverbstest.Machine, cfg Config) *pair {
	t.Helper()
	p := &pair{machine: m, active: openMachine(t, m, cfg), passive: openMachine(t, m, cfg)}
	t.Cleanup(func() {
		m.Thaw()
		if err := errors.Join(p.active.Close(), p.passive.Close()); err != nil {
			t.Error(err)
		}
		if n := m.Objects.Load(); n != 0 {
			t.Errorf("%d objects of the library are left", n)
		}
	})
	accepted := make(chan verbs.Conn, 1)
	l, err := p.passive.Listen(netip.MustParseAddrPort("127.0.0.1:0"), func(c verbs.Conn) { accepted <- c })
	if err != nil {
		t.Fatal(err)
	}
	p.ep = l.Endpoint()
	if p.conn, err = p.active.Dial(t.Context(), p.ep, nil); err != nil {
		t.Fatal(err)
	}
	p.accepted = <-accepted
	for _, r := range []struct {
		d  *Device
		to *verbs.Region
	}{{p.active, &p.local}, {p.passive, &p.remote}} {
		if *r.to, err = r.d.Register(make([]byte, pairBytes)); err != nil {
			t.Fatal(err)
		}
	}
	b, err := p.remote.Bind(0, pairBytes, verbs.RemoteRead|verbs.RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	p.window = b.Window(p.ep)
	return p
}

func (p *pair) write(n int) *verbs.WorkRequest {
	return &verbs.WorkRequest{
		Op: verbs.OpWrite, Local: [][]byte{p.local.Bytes()[:n]}, Addr: p.window.Addr, RKey: p.window.RKey,
	}
}

// take waits for n completions and returns their errors.
func take(t *testing.T, q *verbs.Queue, n int) []error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var errs []error
	for i := range n {
		done, err := q.Wait(ctx)
		if err != nil {
			t.Fatalf("completion %d: %v", i, err)
		}
		if done.ID != uint64(i) {
			t.Errorf("completion %d is of work request %d", i, done.ID)
		}
		errs = append(errs, done.Err)
	}
	return errs
}

// TestChains: work requests of a run go to the device at once, and only the last is signalled.
func TestChains(t *testing.T) {
	type chain struct{ WRs, Signaled int }
	var chains []chain
	m := libibverbstest.New()
	m.Posted = func(wrs []lib.SendWR) (int, error) {
		c := chain{WRs: len(wrs)}
		for i, w := range wrs {
			if w.SendFlags&lib.SendSignaled != 0 {
				if c.Signaled++; i != len(wrs)-1 {
					t.Errorf("work request %d of %d is signalled", i, len(wrs))
				}
			}
		}
		chains = append(chains, c)
		return len(wrs), nil
	}
	p := newPair(t, m, Config{NoWindows: true})
	q := verbs.NewQueue(64)
	for i := range 21 {
		wr := p.write(100)
		wr.ID, wr.More = uint64(i), i != 2 && i != 20
		if err := p.conn.Post(wr, q); err != nil {
			t.Fatal(err)
		}
	}
	for _, err := range take(t, q, 21) {
		if err != nil {
			t.Error(err)
		}
	}
	if diff := cmp.Diff([]chain{{3, 1}, {16, 1}, {2, 1}}, chains); diff != "" {
		t.Errorf("chains (-want +got):\n%s", diff)
	}
	// A run that can't go on is handed over as far as it is there.
	wr := p.write(100)
	wr.More, wr.ID = true, 0
	if err := p.conn.Post(wr, q); err != nil {
		t.Fatal(err)
	}
	wr.Local = [][]byte{make([]byte, 10)}
	if err := p.conn.Post(wr, q); !errors.Is(err, verbs.ErrNotRegistered) {
		t.Errorf("Post of foreign memory = %v", err)
	}
	if errs := take(t, q, 1); errs[0] != nil {
		t.Error(errs[0])
	}
	// The transfers of package verbs make runs.
	chains = nil
	var pieces [][]byte
	for i := range 64 {
		pieces = append(pieces, p.local.Bytes()[i*100:][:100])
	}
	req := verbs.NewRequester(verbs.DeviceInfo{MaxMessageBytes: 100, MaxSegments: 1, SendDepth: 128}, 32)
	if err := req.Write(t.Context(), p.conn, p.window, 0, pieces, false); err != nil {
		t.Fatal(err)
	}
	// A wait may end in the middle of a chain's completions, so later ones can be shorter.
	if len(chains) > 32 || chains[0] != (chain{8, 1}) {
		t.Errorf("a transfer of 64 work requests made the chains %v; want few, and 8 in the first", chains)
	}
}

// TestPostFails: the device takes a part of a chain and refuses the rest.
func TestPostFails(t *testing.T) {
	for _, took := range []int{0, 1, 3} {
		m := libibverbstest.New()
		refuse := false
		m.Posted = func(wrs []lib.SendWR) (int, error) {
			if refuse {
				return took, &lib.Error{Call: "ibv_post_send", Errno: syscall.EINVAL}
			}
			return len(wrs), nil
		}
		p := newPair(t, m, Config{NoWindows: true})
		q := verbs.NewQueue(8)
		refuse = true
		for i := range 4 {
			wr := p.write(100)
			wr.ID, wr.More = uint64(i), i < 3
			if err := p.conn.Post(wr, q); err != nil {
				t.Fatalf("Post = %v; it has been taken", err)
			}
		}
		for i, err := range take(t, q, 4) {
			if !errors.Is(err, verbs.ErrPeer) || !errors.Is(err, syscall.EINVAL) {
				t.Errorf("work request %d of a chain refused from the %d. on: %v", i, took, err)
			}
		}
		<-p.conn.Done()
		refuse = false
	}
}

func TestDeviceLimits(t *testing.T) {
	m := libibverbstest.New()
	m.Device.MaxSGE, m.Device.MaxSGERead, m.Device.MaxQPWR = 8, 4, 32
	m.Port.MaxMsgSize = 8 << 20
	d := openMachine(t, m, Config{})
	want := verbs.DeviceInfo{
		Provider: "ibverbs", Name: libibverbstest.DeviceName, Dials: verbs.KindRC, LID: verbs.LIDRC, Moves: true,
		MaxMessageBytes: 8 << 20, MaxSegments: 4,
		SendDepth: 32, RecvDepth: 32,
	}
	if diff := cmp.Diff(want, d.Info()); diff != "" {
		t.Errorf("Info (-want +got):\n%s", diff)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// TestWindows: binding makes nothing of the kernel, and a key is not used again soon.
func TestWindows(t *testing.T) {
	p := newPair(t, libibverbstest.New(), Config{})
	registrations := p.machine.Registrations.Load()
	keys := map[uint32]int{}
	for i := range 3 * spareWindows {
		b, err := p.remote.Bind(int64(i), 1000, verbs.RemoteWrite)
		if err != nil {
			t.Fatal(err)
		}
		key := b.Window(p.ep).RKey
		if at, ok := keys[key]; ok {
			t.Fatalf("binding %d has the key of binding %d", i, at)
		}
		keys[key] = i
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if n := p.machine.Registrations.Load() - registrations; n != 0 {
		t.Errorf("%d registrations; want none", n)
	}
	// Each device has tried one window, and the passive one has one bound.
	if n := p.machine.Windows.Load(); n > spareWindows+3 {
		t.Errorf("%d windows made", n)
	}
}

// TestNoAllocations: neither a transfer of many work requests nor its completions allocate.
func TestNoAllocations(t *testing.T) {
	p := newPair(t, libibverbstest.New(), Config{NoWindows: true})
	info := p.active.Info()
	info.MaxMessageBytes = 1000
	req := verbs.NewRequester(info, 16)
	local := [][]byte{p.local.Bytes()[:20_000], p.local.Bytes()[30_000:40_000]}
	ctx := context.Background()
	transfer := func() {
		if err := req.Write(ctx, p.conn, p.window, 0, local, false); err != nil {
			t.Fatal(err)
		}
	}
	transfer()
	if n := testing.AllocsPerRun(100, transfer); n >= 1 {
		t.Errorf("%v allocations in a transfer of 30 work requests; want none", n)
	}
}
