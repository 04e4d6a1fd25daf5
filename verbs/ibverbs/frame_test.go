package ibverbs

import (
	"bytes"
	"errors"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/verbs"
)

func sampleFrame() frame {
	return frame{
		kind: kindRequest, mtu: 3, inits: 16, reads: 8, data: []byte("private"),
		rc: verbs.RCAddress{
			QPN: 0x010203, PSN: 0xfffefd, GID: netip.MustParseAddr("192.0.2.7").As16(), Port: 1, LID: 0x0a0b,
		},
	}
}

func TestFrame(t *testing.T) {
	want := sampleFrame()
	b := want.append(nil)
	if len(b) != frameBytes+len(want.data) || string(b[:8]) != "mrrc\x01\x01\x00\x07" {
		t.Errorf("append = %x", b)
	}
	got, err := readFrame(bytes.NewReader(b), kindRequest)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(frame{})); diff != "" {
		t.Errorf("readFrame(append) (-want +got):\n%s", diff)
	}
}

func TestFrameRefused(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func([]byte) []byte
		want   error
	}{
		{"magic", func(b []byte) []byte { b[0]++; return b }, errFrame},
		{"version", func(b []byte) []byte { b[4] = 2; return b }, errFrame},
		{"kind", func(b []byte) []byte { b[5] = byte(kindReply); return b }, errFrame},
		{"too much data", func(b []byte) []byte { b[6], b[7] = 0, verbs.MaxPrivateBytes+1; return append(b, make([]byte, 300)...) }, errFrame},
		{"short", func(b []byte) []byte { return b[:frameBytes-1] }, nil},
		{"short data", func(b []byte) []byte { return b[:len(b)-1] }, nil},
		{"MTU 0", func(b []byte) []byte { b[35] = 0; return b }, errFrame},
		{"MTU 6", func(b []byte) []byte { b[35] = 6; return b }, errFrame},
		{"inits 0", func(b []byte) []byte { b[36] = 0; return b }, errFrame},
		{"reads 0", func(b []byte) []byte { b[37] = 0; return b }, errFrame},
		{"QPN 1", func(b []byte) []byte { copy(b[8:], []byte{0, 0, 0, 1}); return b }, verbs.ErrUnreachable},
		{"QPN of 25 bits", func(b []byte) []byte { b[8] = 1; return b }, verbs.ErrUnreachable},
		{"PSN of 25 bits", func(b []byte) []byte { b[12] = 1; return b }, verbs.ErrUnreachable},
		{"GID unspecified", func(b []byte) []byte { clear(b[16:32]); return b }, verbs.ErrUnreachable},
		{"GID multicast", func(b []byte) []byte { b[28] = 224; return b }, verbs.ErrUnreachable},
	} {
		f := sampleFrame()
		_, err := readFrame(bytes.NewReader(tc.change(f.append(nil))), kindRequest)
		if err == nil || tc.want != nil && !errors.Is(err, tc.want) {
			t.Errorf("%s: readFrame = %v; want %v", tc.name, err, tc.want)
		}
	}
	refusal := frame{kind: kindRefusal, data: []byte("no")}
	if _, err := readFrame(bytes.NewReader(refusal.append(nil)), kindReply); err == nil || err.Error() != `peer refuses: "no"` {
		t.Errorf("readFrame of a refusal = %v", err)
	}
}

// FuzzFrame: any bytes are a frame that is written as it was read, or an error.
func FuzzFrame(f *testing.F) {
	for _, kind := range []frameKind{kindRequest, kindReply, kindReady, kindRefusal} {
		s := sampleFrame()
		s.kind = kind
		f.Add(s.append(nil), byte(kind))
	}
	f.Fuzz(func(t *testing.T, b []byte, due byte) {
		got, err := readFrame(bytes.NewReader(b), frameKind(due))
		if err != nil {
			return
		}
		out := got.append(nil)
		copy(out[38:40], b[38:40]) // not looked at
		if !bytes.Equal(out, b[:len(out)]) {
			t.Errorf("%x is written as %x", b, out)
		}
	})
}
