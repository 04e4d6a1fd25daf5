package dcb

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// attr is an attribute as the kernel writes it.
func attr(kind uint16, value ...byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(value)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, value...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

func pfc(enabled byte) []byte {
	v := make([]byte, ieeePFCBytes)
	v[0], v[1] = 8, enabled
	return attr(ieeePFC, v...)
}

func app(selector, priority byte, protocol uint16) []byte {
	return attr(ieeeApp, binary.NativeEndian.AppendUint16([]byte{selector, priority}, protocol)...)
}

func join(parts ...[]byte) []byte {
	var out []byte
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}

func answer(attrs ...[]byte) []byte { return append([]byte{0, cmdIEEEGet, 0, 0}, join(attrs...)...) }

const nested = 0x8000

func TestParse(t *testing.T) {
	ets := attr(1, make([]byte, 59)...) // padded by one
	tests := []struct {
		name string
		msg  []byte
		want State
		err  error
	}{
		{"RoCE as it is usually set", answer(attr(attrIfname, 'p', '0', 0), attr(attrIEEE|nested, join(ets, pfc(1<<3),
			attr(ieeeAppTable|nested, join(app(5, 3, 26), app(5, 6, 48), app(1, 4, 0x8906))...))...), attr(attrDCBX, 9)),
			State{PFC: 8, PFCKnown: true, MaxPFC: 8, Apps: []App{{26, 3}, {48, 6}}, AppsKnown: true, DCBX: 9}, nil},
		{"flags without nesting", answer(attr(attrIEEE, pfc(0)...)), State{PFCKnown: true, MaxPFC: 8}, nil},
		{"empty table", answer(attr(attrIEEE, attr(ieeeAppTable)...)), State{AppsKnown: true}, nil},
		{"nothing", answer(), State{}, nil},
		{"empty", nil, State{}, ErrFormat},
		{"another command", []byte{0, 20, 0, 0}, State{}, ErrFormat},
		{"PFC is short", answer(attr(attrIEEE, attr(ieeePFC, 8, 8)...)), State{}, ErrFormat},
		{"entry is short", answer(attr(attrIEEE, attr(ieeeAppTable, attr(ieeeApp, 5, 3)...)...)), State{}, ErrFormat},
		{"DSCP of 7 bits", answer(attr(attrIEEE, attr(ieeeAppTable, app(5, 3, 64)...)...)), State{}, ErrFormat},
		{"priority 8", answer(attr(attrIEEE, attr(ieeeAppTable, app(5, 8, 26)...)...)), State{}, ErrFormat},
		{"attribute of 3 bytes", answer([]byte{3, 0, 1, 0}), State{}, ErrFormat},
		{"attribute is longer than the message", answer([]byte{200, 0, 1, 0}), State{}, ErrFormat},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Parse(tt.msg)
			if !errors.Is(err, tt.err) {
				t.Fatalf("error %v; want %v", err, tt.err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("state (-want +got):\n%s", diff)
			}
		})
	}
}

func TestState(t *testing.T) {
	s := State{PFC: 1<<3 | 1<<4, PFCKnown: true, Apps: []App{{26, 3}, {26, 4}, {48, 6}}, AppsKnown: true}
	if !s.TrustDSCP() || s.PriorityOf(26) != 4 || s.PriorityOf(48) != 6 || s.PriorityOf(10) != 0 {
		t.Errorf("trust %v, priorities %d %d %d; want true, 4 6 0", s.TrustDSCP(), s.PriorityOf(26), s.PriorityOf(48), s.PriorityOf(10))
	}
	if !s.Paused(3) || s.Paused(0) || s.Paused(200) || s.PFCText() != "0,0,0,1,1,0,0,0" {
		t.Errorf("paused %s", s.PFCText())
	}
	if (&State{}).TrustDSCP() {
		t.Error("an empty table trusts DSCPs")
	}
}

func TestRequest(t *testing.T) {
	got, err := request("p0")
	want := answer(attr(attrIfname, 'p', '0', 0))
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("request: %v (-want +got):\n%s", err, diff)
	}
	for _, bad := range []string{"", "a/b", "a\x00", "sixteen-letters!"} {
		if _, err := request(bad); !errors.Is(err, ErrFormat) {
			t.Errorf("request(%q): %v; want ErrFormat", bad, err)
		}
	}
}

// TestGetLoopback asks the kernel of this machine. The loopback interface has no DCB on any.
func TestGetLoopback(t *testing.T) {
	if s, err := Get("lo"); !errors.Is(err, ErrUnsupported) {
		t.Errorf("Get(lo) = %+v, %v; want ErrUnsupported", s, err)
	}
	if _, err := Get("no-such-netdev"); err == nil || errors.Is(err, ErrFormat) {
		t.Errorf("Get of no interface: %v; want what the kernel says", err)
	}
	if _, err := Get("a/b"); !errors.Is(err, ErrFormat) {
		t.Errorf("Get(a/b): %v; want ErrFormat", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(answer(attr(attrIfname, 'p', '0', 0), attr(attrIEEE|nested, join(pfc(1<<3),
		attr(ieeeAppTable|nested, join(app(5, 3, 26), app(5, 6, 48))...))...)))
	f.Add(answer([]byte{200, 0, 1, 0}))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, msg []byte) {
		s, err := Parse(msg)
		if err != nil && !errors.Is(err, ErrFormat) {
			t.Errorf("error %v; want ErrFormat", err)
		}
		for _, a := range s.Apps {
			if a.DSCP > 63 || a.Priority >= Priorities {
				t.Errorf("entry %+v out of range", a)
			}
		}
		if (s.PFC != 0 && !s.PFCKnown) || (len(s.Apps) > 0 && !s.AppsKnown) {
			t.Errorf("state %+v holds what is not known", s)
		}
	})
}
