package ibverbs

import (
	"errors"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/millrace/millrace/verbs"
	"github.com/millrace/millrace/verbs/fabric"
	"github.com/millrace/millrace/verbs/fabric/fabrictest"
	lib "github.com/millrace/millrace/verbs/ibverbs/libibverbs"
	"github.com/millrace/millrace/verbs/mlx5dc"
	"github.com/millrace/millrace/verbs/mlx5dc/libmlx5"
)

// dcMachine answers every call with success and keeps what DC was told.
type dcMachine struct {
	mu      sync.Mutex
	handles []lib.AHAttr
	posted  []libmlx5.Work
	cqes    []lib.WC
	live    int
	refuse  error // of DCIs
	fd      func() int
	wake    func()
}

func newDCMachine(t *testing.T) *dcMachine {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = r.Close(), w.Close() })
	m := &dcMachine{fd: func() int { return int(r.Fd()) }, wake: func() { _, _ = w.Write([]byte{1}) }}
	return m
}

func (m *dcMachine) calls(t *testing.T) *lib.Calls {
	quiet, other, err := os.Pipe() // of asynchronous events: there are none
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = quiet.Close(), other.Close() })
	fd := m.fd()
	return &lib.Calls{
		OpenDevice:  func(string) (lib.Context, int, error) { return 1, int(quiet.Fd()), nil },
		CloseDevice: func(lib.Context) error { return nil },
		QueryDevice: func(_ lib.Context, a *lib.DeviceAttr) error { a.MaxQPInitRDAtom = 16; return nil },
		QueryPort: func(_ lib.Context, _ uint8, a *lib.PortAttr) error {
			a.State, a.ActiveMTU, a.MaxMsgSize = lib.PortActive, 5, 1<<30
			return nil
		},
		GetAsyncEvent: func(lib.Context, *lib.AsyncEvent) error { return syscall.EAGAIN },
		AllocPD:       func(lib.Context) (lib.PD, error) { return 2, nil }, DeallocPD: func(lib.PD) error { return nil },
		RegMR: func(lib.PD, uintptr, int, uint32) (lib.MR, lib.Keys, error) {
			return 3, lib.Keys{Local: 0x55, Remote: 0x66}, nil
		},
		DeregMR:            func(lib.MR) error { return nil },
		CreateCompChannel:  func(lib.Context) (lib.Channel, int, error) { return 4, fd, nil },
		DestroyCompChannel: func(lib.Channel) error { return nil },
		CreateCQ:           func(lib.Context, int, lib.Channel) (lib.CQ, error) { return 5, nil },
		DestroyCQ:          func(lib.CQ) error { return nil },
		ReqNotifyCQ:        func(lib.CQ) error { return nil }, AckCQEvents: func(lib.CQ, uint32) {},
		PollCQ: func(_ lib.CQ, wcs []lib.WC) (int, error) {
			m.mu.Lock()
			defer m.mu.Unlock()
			n := copy(wcs, m.cqes)
			m.cqes = m.cqes[n:]
			return n, nil
		},
		GetCQEvent: func(lib.Channel, *lib.CQEvent) error {
			_, err := syscall.Read(fd, make([]byte, 1))
			return err
		},
		ModifyQP:  func(lib.QP, *lib.QPAttr, uint32) error { return nil },
		DestroyQP: func(lib.QP) error { m.count(-1); return nil },
	}
}

func (m *dcMachine) count(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.live += n
}

func (m *dcMachine) mlx5() (*libmlx5.Calls, error) {
	return &libmlx5.Calls{
		Supported: func(lib.Context) bool { return true },
		CreateDCI: func(lib.Context, lib.PD, lib.CQ, lib.QPCap) (libmlx5.DCI, error) {
			if m.refuse != nil {
				return libmlx5.DCI{}, m.refuse
			}
			m.count(1)
			return libmlx5.DCI{QP: 7}, nil
		},
		CreateAH: func(_ lib.PD, a *lib.AHAttr) (libmlx5.AH, error) {
			m.count(1)
			m.handles = append(m.handles, *a)
			return libmlx5.AH(len(m.handles)), nil
		},
		DestroyAH: func(libmlx5.AH) error { m.count(-1); return nil },
		Post: func(_ *libmlx5.DCI, w *libmlx5.Work) error {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.posted = append(m.posted, *w)
			m.cqes = append(m.cqes, lib.WC{WRID: w.ID})
			m.wake()
			return nil
		},
	}, nil
}

func (m *dcMachine) open(t *testing.T, tree func() (fabrictest.Sys, fabrictest.Kernel), dc *mlx5dc.Config) *Device {
	t.Helper()
	read := func() (*fabric.Fabric, error) {
		sys, k := tree()
		return fabric.Read(sys.FS(), k)
	}
	d, err := openWith(Config{DC: dc, Transport: Transport{TrafficClass: 104}}, m.calls(t), m.mlx5, read)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

func dcEndpoint(addr string) verbs.Endpoint {
	return verbs.Endpoint{GID: netip.MustParseAddr(addr).As16(), QPN: 0xabc}
}

// TestDC reaches a DC target: by the GID of its family, with the device's memory, counted by the device.
func TestDC(t *testing.T) {
	m := newDCMachine(t)
	d := m.open(t, fabrictest.MLX5, &mlx5dc.Config{DCIs: 3, SendDepth: 8})
	if d.Notice() != mlx5dc.Notice || d.Info().SendDepth != 8 || d.Info().Dials != verbs.KindRC|verbs.KindHardware {
		t.Errorf("Notice() = %q, Info() = %+v; want the notice, a depth of 8, and both kinds", d.Notice(), d.Info())
	}
	if got := d.ActiveMTUBytes(); got != 4096 {
		t.Errorf("ActiveMTUBytes() = %d; want 4096 (enum 5)", got)
	}
	r, err := d.Register(make([]byte, 100))
	if err != nil {
		t.Fatal(err)
	}
	for _, addr := range []string{"192.168.7.99", "2001:db8:7::99"} {
		c, err := d.Dial(t.Context(), dcEndpoint(addr), nil)
		if err != nil {
			t.Fatal(err)
		}
		w := verbs.Window{Addr: 0x7000, RKey: 0x99, SizeBytes: 100}
		if err := verbs.NewRequester(d.Info(), 1).Write(t.Context(), c, w, 4, [][]byte{r.Bytes()[:10]}, false); err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
	}
	for i, want := range []uint8{3, 5} { // of the port on p0: RoCE v2 for IPv4, and for the routable IPv6 address
		if got := m.handles[i].GRH; got.SGIDIndex != want || got.TrafficClass != 104 || got.HopLimit != 64 {
			t.Errorf("address handle %d has GID %d and class %d; want %d and 104", i, got.SGIDIndex, got.TrafficClass, want)
		}
		p := m.posted[i]
		if p.Read || p.Addr != 0x7004 || p.RKey != 0x99 || p.DCTN != 0xabc || p.DCKey != mlx5dc.DefaultDCKey || len(p.SGEs) != 1 ||
			p.SGEs[0].LKey != 0x55 || p.SGEs[0].Length != 10 {
			t.Errorf("work request %+v", p)
		}
	}
	if got := d.Counters(); got.Initiated.WriteBytes != 20 || got.Live != 0 || got.Connections != 2 {
		t.Errorf("Counters() = %+v; want 20 bytes written over 2 connections", got)
	}
	if _, err := d.Dial(t.Context(), dcEndpoint("192.168.7.99"), []byte("x")); !errors.Is(err, verbs.ErrUnreachable) {
		t.Errorf("Dial with private data: %v; want ErrUnreachable", err)
	}
	if err := d.Close(); err != nil || m.live != 0 {
		t.Errorf("Close: %v, and %d objects are left", err, m.live)
	}
}

// TestDCFails: without DC the device is still good for the rest, and says what is missing.
func TestDCFails(t *testing.T) {
	m := newDCMachine(t)
	m.refuse = &lib.Error{Call: "mlx5dv_create_qp", Errno: syscall.EOPNOTSUPP}
	d := m.open(t, fabrictest.MLX5, &mlx5dc.Config{})
	if !errors.Is(d.DC(), syscall.EOPNOTSUPP) || !strings.Contains(d.Notice(), "mlx5dv_create_qp") || d.Info().Dials != verbs.KindRC {
		t.Errorf("DC() = %v, Notice() = %q, Info() = %+v; want why there is none", d.DC(), d.Notice(), d.Info())
	}
	if _, err := d.Dial(t.Context(), dcEndpoint("192.168.7.99"), nil); !errors.Is(err, verbs.ErrUnreachable) {
		t.Errorf("Dial: %v; want ErrUnreachable", err)
	}
}

// TestDCLeftOut: no DC where nobody asked for it, nor on other devices.
func TestDCLeftOut(t *testing.T) {
	for _, tt := range []struct {
		name string
		tree func() (fabrictest.Sys, fabrictest.Kernel)
		dc   *mlx5dc.Config
	}{{"not asked for", fabrictest.MLX5, nil}, {"rxe", fabrictest.RXE, &mlx5dc.Config{}}} {
		m := newDCMachine(t)
		d := m.open(t, tt.tree, tt.dc)
		if _, err := d.Dial(t.Context(), dcEndpoint("192.168.7.99"), nil); !errors.Is(err, verbs.ErrUnreachable) || d.Notice() != "" ||
			!errors.Is(d.DC(), mlx5dc.ErrUnsupported) {
			t.Errorf("%s: Dial: %v, notice %q; want ErrUnreachable and none", tt.name, err, d.Notice())
		}
	}
}
