package iwarp

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/millrace/millrace/verbs"
	"github.com/millrace/millrace/verbs/iwarp/crc32c"
)

// victim is a device with a window of which a peer knows the token, and bytes around it.
type victim struct {
	dev    *Device
	addr   string
	region verbs.Region
	win    verbs.Window
}

func newVictim(t testing.TB, cfg Config) *victim {
	t.Helper()
	v := &victim{dev: Open(cfg)}
	t.Cleanup(func() { _ = v.dev.Close() })
	l, err := v.dev.Listen(netip.MustParseAddrPort("127.0.0.1:0"), nil)
	if err != nil {
		t.Fatal(err)
	}
	v.addr = netip.AddrPortFrom(l.Endpoint().Addr(), uint16(l.Endpoint().QPN)).String()
	v.region, err = v.dev.Register(bytes.Repeat([]byte{0xee}, 1<<16))
	if err != nil {
		t.Fatal(err)
	}
	b, err := v.region.Bind(4096, 8192, verbs.RemoteRead|verbs.RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	v.win = b.Window(l.Endpoint())
	return v
}

// attack is a TCP connection of somebody who need not keep to any protocol.
type attack struct {
	net.Conn
	t testing.TB
}

func (v *victim) attack(t testing.TB) attack {
	t.Helper()
	c, err := net.Dial("tcp", v.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	return attack{c, t}
}

// shake makes a connection in the right way.
func (a attack) shake() {
	a.t.Helper()
	if _, err := a.Write(startFrame{revision: 1}.append(nil)); err != nil {
		a.t.Fatal(err)
	}
	if _, err := readStart(a, true); err != nil {
		a.t.Fatal(err)
	}
}

// ends reads all that comes until the connection ends, and returns the fault of a Terminate message in it.
func (a attack) ends() fault {
	a.t.Helper()
	got, err := io.ReadAll(a)
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		a.t.Error("the connection was not ended")
	}
	for len(got) >= headerBytes {
		h := parseHeader(append(bytes.Clone(got), make([]byte, 20)...))
		if h.op == opTerminate && !h.tagged && len(got) >= h.fpduBytes() {
			f, _ := parseTerminate(got[h.hdrBytes : h.hdrBytes+h.payload()])
			return f
		}
		got = got[min(len(got), h.fpduBytes()):]
	}
	return noFault
}

func tagged(op opcode, last bool, stag uint32, to uint64, payload []byte) []byte {
	return sealed(append(appendTagged(nil, op, last, stag, to, len(payload)), payload...), false)
}

func untagged(op opcode, qn, msn, mo uint32, payload []byte) []byte {
	return sealed(append(appendUntagged(nil, op, true, qn, msn, mo, len(payload)), payload...), false)
}

func reading(r readRequest) []byte { return r.append(nil) }

// changed returns frame with one byte set.
func changed(frame []byte, at int, to byte) []byte {
	frame = bytes.Clone(frame)
	frame[at] = to
	return frame
}

type hostile struct {
	name string
	send []byte
	want fault
}

func hostiles(w verbs.Window) []hostile {
	four := []byte{1, 2, 3, 4}
	good := tagged(opWrite, true, w.RKey, w.Addr, four)
	ask := readRequest{sinkSTag: 1, size: 4096, srcSTag: w.RKey, srcTO: w.Addr}
	with := func(change func(*readRequest)) []byte {
		r := ask
		change(&r)
		return untagged(opReadRequest, queueRead, 1, 0, reading(r))
	}
	return []hostile{
		{"unknown key", tagged(opWrite, true, w.RKey+1, w.Addr, four), faultTaggedSTag},
		{"before", tagged(opWrite, true, w.RKey, w.Addr-1, four), faultTaggedBounds},
		{"behind", tagged(opWrite, true, w.RKey, w.Addr+8189, four), faultTaggedBounds},
		{"far", tagged(opWrite, true, w.RKey, 0, four), faultTaggedBounds},
		{"wrap", tagged(opWrite, true, w.RKey, 1<<64-2, four), faultTaggedWrap},
		{"DDP version", changed(good, 2, 0xc0), faultTaggedVersion},
		{"DDP version, untagged", changed(untagged(opSend, 0, 1, 0, four), 2, 0x42), faultVersion},
		{"RDMAP version", changed(good, 3, 0x80), faultRDMAPVersion},
		{"opcode", changed(good, 3, 0x4f), faultOpcode},
		{"atomic", changed(untagged(opSend, 0, 1, 0, four), 3, 0x4a), faultOpcode},
		{"tagged SEND", changed(good, 3, 0x43), faultOpcode},
		{"untagged WRITE", changed(untagged(opSend, 0, 1, 0, four), 3, 0x40), faultOpcode},
		{"empty", append([]byte{0, 0}, make([]byte, 30)...), faultLength},
		{"shorter than its header", append([]byte{0, 13, 0xc1, 0x40}, make([]byte, 30)...), faultLength},
		{"answer to nothing", tagged(opReadResponse, true, 1, 0, four), faultOpcode},
		{"SEND without RECV", untagged(opSend, queueSend, 1, 0, four), faultNoBuffer},
		{"SEND to queue 1", untagged(opSend, queueRead, 1, 0, four), faultQueue},
		{"SEND to queue 77", untagged(opSend, 77, 1, 0, four), faultQueue},
		{"SEND out of order", untagged(opSend, queueSend, 2, 0, four), faultMSN},
		{"SEND with offset", untagged(opSend, queueSend, 1, 4, four), faultMO},
		{"immediate without RECV", untagged(opImmediate, queueSend, 1, 0, make([]byte, 8)), faultNoBuffer},
		{"immediate too long", untagged(opImmediate, queueSend, 1, 0, make([]byte, 9)), faultLength},
		{"READ of an unknown key", with(func(r *readRequest) { r.srcSTag++ }), faultSTag},
		{"READ before", with(func(r *readRequest) { r.srcTO-- }), faultBounds},
		{"READ of too much", with(func(r *readRequest) { r.size = 1<<32 - 1 }), faultBounds},
		{"READ wrap", with(func(r *readRequest) { r.srcTO = 1<<64 - 1 }), faultWrap},
		{"READ request too short", untagged(opReadRequest, queueRead, 1, 0, reading(ask)[1:]), faultLength},
		{"READ request out of order", untagged(opReadRequest, queueRead, 7, 0, reading(ask)), faultMSN},
		{"READ request on queue 0", untagged(opReadRequest, queueSend, 1, 0, reading(ask)), faultQueue},
		{"Terminate", untagged(opTerminate, queueTerminate, 1, 0, []byte{0x11, 0, 0, 0}), noFault},
		{"Terminate too short", untagged(opTerminate, queueTerminate, 1, 0, []byte{0x11}), noFault},
		{"Terminate too long", untagged(opTerminate, queueTerminate, 1, 0, make([]byte, 2000)), faultLength},
		{"noise", bytes.Repeat([]byte("GET / HTTP/1.1\r\n"), 100), faultVersion},
		{"end in mid-frame", good[:12], noFault},
	}
}

// TestHostile: each of these ends its connection with the right fault, changes nothing, and harms nobody else.
func TestHostile(t *testing.T) {
	v := newVictim(t, Config{NoCRC: true})
	friend := Open(Config{NoCRC: true})
	t.Cleanup(func() { _ = friend.Close() })
	fc, err := friend.Dial(context.Background(), v.win.Endpoint, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range hostiles(v.win) {
		t.Run(tc.name, func(t *testing.T) {
			a := v.attack(t)
			a.shake()
			if _, err := a.Write(tc.send); err != nil {
				t.Fatal(err)
			}
			if tc.want == noFault {
				_ = a.Conn.(*net.TCPConn).CloseWrite()
			}
			if got := a.ends(); got != tc.want {
				t.Errorf("fault %#04x (%s); want %#04x (%s)", uint16(got), got, uint16(tc.want), tc.want)
			}
			if bytes.Count(v.region.Bytes(), []byte{0xee}) != 1<<16 {
				t.Error("memory was changed")
			}
		})
	}
	if err := verbs.NewRequester(friend.Info(), 1).Read(context.Background(), fc, v.win, 0, nil); err != nil {
		t.Errorf("another connection: %v", err)
	}
}

// TestHostileStart: whatever comes instead of a request for a connection.
func TestHostileStart(t *testing.T) {
	v := newVictim(t, Config{NoCRC: true, StartTimeout: 300 * time.Millisecond})
	good := startFrame{revision: 1}.append(nil)
	for _, tc := range []struct {
		name string
		send []byte
	}{
		{"noise", bytes.Repeat([]byte("GET / HTTP/1.1\r\n"), 100)},
		{"reply", startFrame{revision: 1, reply: true}.append(nil)},
		{"revision 0", changed(good, 17, 0)},
		{"revision 3", changed(good, 17, 3)},
		{"private data too long", changed(good, 18, 2|1)},
		{"no IRD", changed(changed(good, 16, mpaEnhanced), 17, 2)},
		{"markers", startFrame{revision: 1, markers: true}.append(nil)},
		{"too slow", good[:10]},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := v.attack(t)
			_, _ = a.Write(tc.send)
			got, _ := io.ReadAll(a)
			if len(got) > 0 && tc.name != "markers" {
				t.Errorf("answer %q; want none", got)
			}
			if tc.name == "markers" {
				if f, err := readStart(bytes.NewReader(got), true); err != nil || !f.reject {
					t.Errorf("reply %+v, %v; want a rejection", f, err)
				}
			}
		})
	}
	if n := v.dev.Counters().Live; n != 0 {
		t.Errorf("%d connections live; want 0", n)
	}
}

// TestTooManyReads: more READs than allowed end the connection; those that are allowed are answered.
func TestTooManyReads(t *testing.T) {
	v := newVictim(t, Config{NoCRC: true, InboundReads: 4, SendBufferBytes: 4096})
	a := v.attack(t)
	_ = a.Conn.(*net.TCPConn).SetReadBuffer(4096)
	a.shake()
	var all []byte
	for i := range uint32(2000) {
		r := readRequest{sinkSTag: 1, size: 8192, srcSTag: v.win.RKey, srcTO: v.win.Addr}
		all = append(all, untagged(opReadRequest, queueRead, 1+i, 0, reading(r))...)
	}
	_, _ = a.Write(all)
	if got := a.ends(); got != faultNoBuffer && got != noFault {
		t.Errorf("fault %s; want %s", got, faultNoBuffer)
	}
	if v.dev.Counters().Refused != 1 {
		t.Errorf("Refused = %d; want 1", v.dev.Counters().Refused)
	}
}

// TestSlow: peers that stop in the middle of something lose their connection, in the time of a stall.
func TestSlow(t *testing.T) {
	stall := 300 * time.Millisecond
	v := newVictim(t, Config{NoCRC: true, StallTimeout: stall, IdleTimeout: 10 * time.Second, SendBufferBytes: 4096})
	good := tagged(opWrite, true, v.win.RKey, v.win.Addr, make([]byte, 4096))
	t.Run("in a header", func(t *testing.T) {
		a := v.attack(t)
		a.shake()
		_, _ = a.Write(good[:5])
		_ = a.ends()
	})
	t.Run("in the payload, drop by drop", func(t *testing.T) {
		a := v.attack(t)
		a.shake()
		for i := 0; i < 4000; i++ {
			if _, err := a.Write(good[i : i+1]); err != nil {
				return
			}
			time.Sleep(stall / 100)
		}
		t.Error("the connection was not ended")
	})
	t.Run("not taking the answer", func(t *testing.T) {
		a := v.attack(t)
		_ = a.Conn.(*net.TCPConn).SetReadBuffer(4096)
		a.shake()
		before := v.dev.Counters().Live
		for i := range uint32(20) {
			r := readRequest{sinkSTag: 1, size: 8192, srcSTag: v.win.RKey, srcTO: v.win.Addr}
			_, _ = a.Write(untagged(opReadRequest, queueRead, 1+i, 0, reading(r)))
		}
		for deadline := time.Now().Add(10 * time.Second); v.dev.Counters().Live == before; {
			if time.Now().After(deadline) {
				t.Fatal("the connection was not ended")
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
}

func TestIdle(t *testing.T) {
	v := newVictim(t, Config{NoCRC: true, IdleTimeout: 100 * time.Millisecond})
	a := v.attack(t)
	a.shake()
	if got := a.ends(); got != noFault {
		t.Errorf("fault %s", got)
	}
}

func TestConnectionLimits(t *testing.T) {
	v := newVictim(t, Config{MaxConnsPerAddr: 2})
	a, b := v.attack(t), v.attack(t)
	a.shake()
	b.shake()
	live := func(want uint64) {
		for uint64(v.dev.Counters().Live) != want {
			time.Sleep(time.Millisecond)
		}
	}
	live(2)
	third := v.attack(t)
	_, _ = third.Write(startFrame{revision: 1}.append(nil))
	if got, _ := io.ReadAll(third); len(got) > 0 {
		t.Errorf("third connection of an address got an answer: %q", got)
	}
	_ = a.Close()
	live(1)
	v.attack(t).shake()
}

// TestWrongCRC changes one bit of a frame that would be right.
func TestWrongCRC(t *testing.T) {
	v := newVictim(t, Config{})
	for _, frame := range [][]byte{
		appendTagged(nil, opWrite, true, v.win.RKey, v.win.Addr, 0),
		readRequest{srcSTag: v.win.RKey, srcTO: v.win.Addr}.append(appendUntagged(nil, opReadRequest, true, queueRead, 1, 0, 28)),
	} {
		a := v.attack(t)
		a.shake()
		frame = sealed(frame, true)
		_, _ = a.Write(changed(frame, len(frame)-1, frame[len(frame)-1]^0x10))
		if got := a.ends(); got != faultCRC {
			t.Errorf("fault %s; want %s", got, faultCRC)
		}
	}
	// The check value of CRC32C, in the order of the wire (RFC 3720, B.4).
	if sum := crc32c.Update(0, make([]byte, 32)); binary.LittleEndian.AppendUint32(nil, sum)[0] != 0xaa || sum != 0x8a9136aa {
		t.Errorf("CRC32C of 32 zeros = %#x; want 0x8a9136aa", sum)
	}
}
