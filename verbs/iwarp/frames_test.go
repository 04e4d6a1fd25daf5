package iwarp

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/verbs"
)

// TestParseTerminate reads the layout of RFC 5040 §4.8, and that of siw.
func TestParseTerminate(t *testing.T) {
	for _, tc := range []struct {
		name string
		in   []byte
		want fault
		ok   bool
	}{
		{"as the RFC has it", []byte{0x01, 0x02, 0xe0, 0}, faultRights, true},
		{"no header behind", []byte{0x20, 0x02, 0, 0}, faultCRC, true},
		{"siw, RDMAP", []byte{0x10, 0x01, 0x07, 0}, faultBounds, true},
		{"siw, DDP", []byte{0x21, 0x02, 0x03, 0}, faultNoBuffer, true},
		{"too short", []byte{0x10, 0x01, 0x07}, 0, false},
		{"too long", make([]byte, terminateMax+1), 0, false},
	} {
		if got, ok := parseTerminate(tc.in); got != tc.want || ok != tc.ok {
			t.Errorf("%s: parseTerminate() = %#04x, %v; want %#04x, %v", tc.name, uint16(got), ok, uint16(tc.want), tc.ok)
		}
	}
}

// TestReply: what a peer is answered about limits and about the message that makes it ready (RFC 6581 §9).
func TestReply(t *testing.T) {
	v := newVictim(t, Config{NoCRC: true, InboundReads: 7, OutboundReads: 5})
	for _, tc := range []struct {
		name      string
		ask, want startFrame
	}{
		{"revision 1", startFrame{revision: 1}, startFrame{revision: 1}},
		{"revision 1 with CRC", startFrame{revision: 1, crc: true}, startFrame{revision: 1, crc: true}},
		{"client and server", startFrame{revision: 2, enhanced: true, ird: 3, ord: 4},
			startFrame{revision: 2, enhanced: true, ird: 7, ord: 3}},
		{"WRITE", startFrame{revision: 2, enhanced: true, peer: true, write: true, ird: 9, ord: 4},
			startFrame{revision: 2, enhanced: true, peer: true, write: true, ird: 7, ord: 5}},
		{"READ", startFrame{revision: 2, enhanced: true, peer: true, read: true, ird: 1, ord: 1},
			startFrame{revision: 2, enhanced: true, peer: true, read: true, ird: 7, ord: 1}},
		{"either", startFrame{revision: 2, enhanced: true, peer: true, write: true, read: true, ird: 1, ord: 1},
			startFrame{revision: 2, enhanced: true, peer: true, write: true, ird: 7, ord: 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, err := net.Dial("tcp", v.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(20 * time.Second))
			_, _ = c.Write(tc.ask.append(nil))
			got, err := readStart(c, true)
			tc.want.reply, tc.want.private = true, []byte{}
			if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(startFrame{})); err != nil || diff != "" {
				t.Errorf("%v; -want +got\n%s", err, diff)
			}
		})
	}
}

// TestFirstMessage: a peer may send as soon as it has the reply, when the owner of the connection has posted no RECV yet.
func TestFirstMessage(t *testing.T) {
	dev := Open(Config{NoCRC: true})
	defer dev.Close()
	r, err := dev.Register(make([]byte, 16))
	if err != nil {
		t.Fatal(err)
	}
	q := verbs.NewQueue(1)
	l, err := dev.Listen(netip.MustParseAddrPort("127.0.0.1:0"), func(c verbs.Conn) {
		time.Sleep(20 * time.Millisecond) // the message is there before
		if err := c.Post(&verbs.WorkRequest{Op: verbs.OpRecv, Local: [][]byte{r.Bytes()}}, q); err != nil {
			t.Error(err)
			q.Complete(verbs.Completion{Err: err})
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	peer, err := net.Dial("tcp", netip.AddrPortFrom(l.Endpoint().Addr(), uint16(l.Endpoint().QPN)).String())
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	attack{peer, t}.shake()
	if _, err := peer.Write(untagged(opSend, queueSend, 1, 0, []byte("four"))); err != nil {
		t.Fatal(err)
	}
	c, err := q.Wait(t.Context())
	if err != nil || c.Err != nil || string(r.Bytes()[:c.Bytes]) != "four" {
		t.Errorf("%+v, %v; want the message", c, err)
	}
}
