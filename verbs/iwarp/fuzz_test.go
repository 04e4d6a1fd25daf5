package iwarp

import (
	"bytes"
	"net"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func FuzzStart(f *testing.F) {
	f.Add(startFrame{revision: 1, crc: true}.append(nil), false)
	f.Add(startFrame{revision: 2, reply: true, enhanced: true, peer: true, write: true, ird: 3, ord: 4, private: []byte("x")}.append(nil), true)
	f.Fuzz(func(t *testing.T, b []byte, reply bool) {
		got, err := readStart(bytes.NewReader(b), reply)
		if err != nil {
			return
		}
		again, err := readStart(bytes.NewReader(got.append(nil)), reply)
		if diff := cmp.Diff(got, again, cmp.AllowUnexported(startFrame{})); err != nil || diff != "" {
			t.Fatalf("read, written and read again: %v\n%s", err, diff)
		}
	})
}

func FuzzHeader(f *testing.F) {
	f.Add(appendTagged(nil, opWrite, true, 1, 2, 3))
	f.Add(appendUntagged(nil, opSend, true, 1, 2, 3, 4))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < 3 || len(b) < headerSize(b) {
			return
		}
		h := parseHeader(b)
		if h.ddp != ddpVersion || h.rdmap != rdmapVersion>>6 || h.payload() < 0 {
			return
		}
		if n := h.fpduBytes(); n%4 != 0 || n < 20 || n > 1<<16+8 {
			t.Fatalf("fpduBytes(%+v) = %d", h, n)
		}
		var again []byte
		if h.tagged {
			again = appendTagged(nil, h.op, h.last, h.stag, h.to, h.payload())
		} else {
			again = appendUntagged(nil, h.op, h.last, h.qn, h.msn, h.mo, h.payload())
		}
		again = append(again, make([]byte, 4)...)
		again[2], again[3] = b[2], b[3] // reserved bits
		copy(again[4:8], b[4:8])        // the key to invalidate, unused in others
		if got := parseHeader(again); got != h {
			t.Fatalf("%+v; written and read again %+v", h, got)
		}
	})
}

func FuzzTerminate(f *testing.F) {
	f.Add(appendTerminate(nil, faultTaggedBounds, appendTagged(nil, opWrite, true, 1, 2, 3)))
	f.Fuzz(func(t *testing.T, b []byte) {
		if why, ok := parseTerminate(b); ok {
			_ = (&remoteError{fault: why}).Error()
		}
	})
}

// FuzzStream gives any bytes to a connection. Whatever they are, nothing outside of the window changes, and
// the connection ends when they do.
func FuzzStream(f *testing.F) {
	v := newVictim(f, Config{NoCRC: true, IdleTimeout: 1e9})
	f.Add([]byte{})
	for _, h := range hostiles(v.win) {
		f.Add(h.send)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		// Keys of the seeds are those of another process: put in the right ones.
		b = bytes.ReplaceAll(b, []byte("KEY!"), tagged(opWrite, true, v.win.RKey, v.win.Addr, nil)[4:16])
		a := v.attack(t)
		a.shake()
		_, _ = a.Write(b)
		_ = a.Conn.(*net.TCPConn).CloseWrite()
		_ = a.ends()
		mem := v.region.Bytes()
		if bytes.Count(mem[:4096], []byte{0xee}) != 4096 || bytes.Count(mem[4096+8192:], []byte{0xee}) != 1<<16-4096-8192 {
			t.Fatal("memory outside of the window was changed")
		}
	})
}
