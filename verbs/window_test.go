package verbs_test

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/millrace/millrace/verbs"
)

// TestAddrPort: AddrPort undoes EndpointAt, except for what can't be dialled.
func TestAddrPort(t *testing.T) {
	for _, tc := range []struct {
		at string
		ok bool
	}{
		{"192.0.2.1:18515", true},
		{"[2001:db8::1]:65535", true},
		{"[fe80::1]:1", true},
		{"192.0.2.1:0", false},
		{"0.0.0.0:18515", false},
		{"[::]:18515", false},
		{"224.0.0.1:18515", false},
		{"[ff02::1]:18515", false},
		{"255.255.255.255:18515", false},
	} {
		want := netip.MustParseAddrPort(tc.at)
		got, err := verbs.EndpointAt(want).AddrPort()
		if tc.ok && (err != nil || got != want) || !tc.ok && !errors.Is(err, verbs.ErrUnreachable) {
			t.Errorf("AddrPort(EndpointAt(%s)) = %v, %v; want it: %v", tc.at, got, err, tc.ok)
		}
	}
	ep := verbs.EndpointAt(netip.MustParseAddrPort("192.0.2.1:18515"))
	for _, change := range []func(*verbs.Endpoint){
		func(e *verbs.Endpoint) { e.QPN = 1 << 16 },
		func(e *verbs.Endpoint) { e.Session = true },
	} {
		e := ep
		change(&e)
		if got, err := e.AddrPort(); !errors.Is(err, verbs.ErrUnreachable) {
			t.Errorf("AddrPort(%+v) = %v, %v; want %v", e, got, err, verbs.ErrUnreachable)
		}
	}
}
