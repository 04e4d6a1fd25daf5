package fabric_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/millrace/millrace/verbs/fabric"
	"github.com/millrace/millrace/verbs/fabric/fabrictest"
)

func TestGIDFor(t *testing.T) {
	const types = "class/infiniband/mlx5_0/ports/1/gid_attrs/types/"
	tests := []struct {
		name   string
		addr   string
		change func(fabrictest.Sys) fabrictest.Sys
		want   int
		reason string // if not "", there is none
	}{
		{"IPv4", "192.168.7.1", nil, 3, ""},
		{"IPv4-mapped", "::ffff:192.168.7.1", nil, 3, ""},
		{"IPv6", "2001:db8:7::1", nil, 5, ""},
		{"of the link", "fe80::e42:a1ff:fed2:9b28", nil, 1, ""},
		{"of the link, with its zone", "fe80::e42:a1ff:fed2:9b28%p0", nil, 1, ""},
		{"of the link, with another zone", "fe80::e42:a1ff:fed2:9b28%p1", nil, 0, "not in the GID table"},
		{"of another port", "192.168.8.1", nil, 0, "not in the GID table"},
		{"RoCE v1 only", "192.168.7.1", func(s fabrictest.Sys) fabrictest.Sys { return s.With(types+"3", "IB/RoCE v1\n") }, 0, "RoCE v1 only"},
		{"v2 before v1", "192.168.7.1", func(s fabrictest.Sys) fabrictest.Sys {
			return s.With(types+"3", "IB/RoCE v1\n").With(types+"2", "RoCE v2\n")
		}, 2, ""},
		{"interface moved away", "192.168.7.1", func(s fabrictest.Sys) fabrictest.Sys { return s.Without("class/net/p0") }, 0, "another network namespace"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			sys, k := fabrictest.MLX5()
			if tt.change != nil {
				sys = tt.change(sys)
			}
			got, err := read(t, sys, k).Devices[0].Ports[0].GIDFor(netip.MustParseAddr(tt.addr))
			checkGID(t, got, err, tt.want, tt.reason)
		})
	}
}

func checkGID(t *testing.T, got fabric.GID, err error, want int, reason string) {
	t.Helper()
	if reason == "" {
		if err != nil || got.Index != want {
			t.Errorf("index %d, %v; want %d", got.Index, err, want)
		}
		return
	}
	var gidErr *fabric.GIDError
	if !errors.As(err, &gidErr) || !errors.Is(err, fabric.ErrNoGID) || !strings.Contains(gidErr.Reason, reason) {
		t.Errorf("index %d, %v; want a GIDError with %q", got.Index, err, reason)
	}
}

func TestGIDOf(t *testing.T) {
	tests := []struct {
		netdev string
		family fabric.Family
		want   int
		reason string
	}{
		{"p0", fabric.IPv4, 3, ""},
		{"p0", fabric.IPv6, 5, ""}, // routable before the one of the link, which has index 1
		{"", fabric.IPv4, 3, ""},
		{"p1", fabric.IPv4, 0, "no entry of RoCE v2"},
	}
	sys, k := fabrictest.MLX5()
	f := read(t, sys, k)
	for _, tt := range tests {
		got, err := f.Devices[0].Ports[0].GIDOf(tt.netdev, tt.family)
		checkGID(t, got, err, tt.want, tt.reason)
	}
	// The second function has only the address of the link for IPv6.
	got, err := f.Devices[1].Ports[0].GIDOf("p1", fabric.IPv6)
	checkGID(t, got, err, 1, "")
}

func TestGIDsThatAreNotRoCE(t *testing.T) {
	ib := read(t, first(fabrictest.IB()), second(fabrictest.IB())).Devices[0].Ports[0]
	got, err := ib.GIDFor(netip.MustParseAddr("fe80::c42:a103:d2:9b28"))
	checkGID(t, got, err, 0, "")
	_, err = ib.GIDOf("", fabric.IPv6)
	checkGID(t, fabric.GID{}, err, 0, "no entry of RoCE v2")

	siw := read(t, first(fabrictest.SIW()), second(fabrictest.SIW())).Devices[0].Ports[0]
	_, err = siw.GIDFor(netip.MustParseAddr("5254:12:3456::"))
	checkGID(t, fabric.GID{}, err, 0, "RoCE v1 only")
}

func TestPlaceOf(t *testing.T) {
	const state = "class/infiniband/mlx5_0/ports/1/state"
	tests := []struct {
		name   string
		addr   string
		change func(*fabrictest.Sys, *fabrictest.Kernel)
		want   string // device, or "" with err
		index  int
		err    error
		reason string
	}{
		{name: "first port", addr: "192.168.7.1", want: "mlx5_0", index: 3},
		{name: "second port", addr: "192.168.8.1", want: "mlx5_1", index: 3},
		{name: "a port that lists it for RoCE v1 is named, not the last", addr: "192.168.7.1", err: fabric.ErrNoGID, reason: "RoCE v1 only",
			change: func(s *fabrictest.Sys, _ *fabrictest.Kernel) {
				*s = s.With("class/infiniband/mlx5_0/ports/1/gid_attrs/types/3", "IB/RoCE v1\n")
			}},
		{name: "no port", addr: "192.168.9.1", err: fabric.ErrNoGID},
		{name: "a port that is down", addr: "192.168.7.1", want: "mlx5_0", index: 3,
			change: func(s *fabrictest.Sys, _ *fabrictest.Kernel) { *s = s.With(state, "1: DOWN\n") }},
		{name: "the same address twice, the first is down", addr: "192.168.8.1", want: "mlx5_1", index: 3,
			change: func(s *fabrictest.Sys, _ *fabrictest.Kernel) {
				*s = s.With(state, "1: DOWN\n").With("class/infiniband/mlx5_0/ports/1/gids/3", "::ffff:192.168.8.1\n")
			}},
		{name: "device of another namespace", addr: "192.168.7.1", err: fabric.ErrNoGID,
			change: func(_ *fabrictest.Sys, k *fabrictest.Kernel) { k.Names, k.Mode = []string{"mlx5_1"}, "exclusive" }},
		{name: "all devices in other namespaces", addr: "192.168.7.1", err: fabric.ErrNoDevice,
			change: func(_ *fabrictest.Sys, k *fabrictest.Kernel) { k.Names, k.Mode = nil, "exclusive" }},
		{name: "netlink can't tell", addr: "192.168.7.1", want: "mlx5_0", index: 3,
			change: func(_ *fabrictest.Sys, k *fabrictest.Kernel) { k.Names, k.NamesErr = nil, errors.New("refused") }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			sys, k := fabrictest.MLX5()
			if tt.change != nil {
				tt.change(&sys, &k)
			}
			got, err := read(t, sys, k).PlaceOf(netip.MustParseAddr(tt.addr))
			if !errors.Is(err, tt.err) {
				t.Fatalf("error %v; want %v", err, tt.err)
			}
			if err != nil && !strings.Contains(err.Error(), tt.reason) {
				t.Errorf("error %v; want %q in it", err, tt.reason)
			}
			if tt.err == nil && (got.Device.Name != tt.want || got.GID.Index != tt.index || got.Port.Device != tt.want) {
				t.Errorf("%s port %d index %d; want %s index %d", got.Device.Name, got.Port.Number, got.GID.Index, tt.want, tt.index)
			}
		})
	}
}

func TestAny(t *testing.T) {
	sys, k := fabrictest.MLX5()
	got, err := read(t, sys.With("class/infiniband/mlx5_0/ports/1/state", "1: DOWN\n"), k).Any(fabric.IPv4)
	if err != nil || got.Device.Name != "mlx5_1" || got.GID.Index != 3 {
		t.Errorf("Any(IPv4) = %+v, %v; want the port that carries traffic", got.GID, err)
	}
	if _, err := read(t, first(fabrictest.RXE()), second(fabrictest.RXE())).Any(fabric.IPv6); err != nil {
		t.Errorf("Any(IPv6) on rxe: %v; want the address of the link", err)
	}
}
