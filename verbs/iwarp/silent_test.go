package iwarp

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/millrace/millrace/verbs"
)

// silentPeer accepts one connection, then does as told.
func silentPeer(t *testing.T, then func(net.Conn)) verbs.Endpoint {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		t.Cleanup(func() { _ = c.Close() })
		if _, err := readStart(c, false); err == nil {
			_, _ = c.Write(startFrame{reply: true, revision: 1}.append(nil))
		}
		then(c)
	}()
	return verbs.EndpointAt(l.Addr().(*net.TCPAddr).AddrPort())
}

// TestSilentPeer: one that takes everything and answers nothing, and one that takes nothing, fail the work
// request in the time of a stall.
func TestSilentPeer(t *testing.T) {
	for _, tc := range []struct {
		name string
		then func(net.Conn)
	}{
		{"takes all", func(c net.Conn) { _, _ = c.(*net.TCPConn).WriteTo(discard{}) }},
		{"takes nothing", func(net.Conn) {}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dev := Open(Config{NoCRC: true, StallTimeout: 200 * time.Millisecond})
			defer dev.Close()
			c, err := dev.Dial(context.Background(), silentPeer(t, tc.then), nil)
			if err != nil {
				t.Fatal(err)
			}
			r, err := dev.Register(make([]byte, 16<<20))
			if err != nil {
				t.Fatal(err)
			}
			w := verbs.Window{SizeBytes: 16 << 20}
			err = verbs.NewRequester(dev.Info(), 1).Write(context.Background(), c, w, 0, [][]byte{r.Bytes()}, false)
			if !errors.Is(err, verbs.ErrPeer) {
				t.Errorf("Write = %v; want ErrPeer", err)
			}
			if err := r.Deregister(); err != nil {
				t.Error(err)
			}
		})
	}
}

type discard struct{}

func (discard) Write(b []byte) (int, error) { return len(b), nil }

// TestSilentStart: a peer that accepts and says nothing, and one that is not there.
func TestSilentStart(t *testing.T) {
	dev := Open(Config{StartTimeout: 100 * time.Millisecond})
	defer dev.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ep := verbs.EndpointAt(l.Addr().(*net.TCPAddr).AddrPort())
	if _, err := dev.Dial(context.Background(), ep, nil); !errors.Is(err, verbs.ErrUnreachable) {
		t.Errorf("Dial of a silent peer = %v; want ErrUnreachable", err)
	}
	_ = l.Close()
	if _, err := dev.Dial(context.Background(), ep, nil); !errors.Is(err, verbs.ErrUnreachable) {
		t.Errorf("Dial of nobody = %v; want ErrUnreachable", err)
	}
	for _, bad := range []verbs.Endpoint{
		{}, {GID: ep.GID}, {GID: ep.GID, QPN: 1 << 16}, {QPN: 80}, {GID: [16]byte{0: 0xff, 1: 2, 15: 1}, QPN: 80},
	} {
		if _, err := dev.Dial(context.Background(), bad, nil); !errors.Is(err, verbs.ErrUnreachable) {
			t.Errorf("Dial(%s) = %v; want ErrUnreachable", bad, err)
		}
	}
}

// TestNoReads: with a peer that allows no READs there can be no fence, so nothing is taken.
func TestNoReads(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		if c, err := l.Accept(); err == nil {
			if _, err := readStart(c, false); err == nil {
				_, _ = c.Write(startFrame{reply: true, revision: 2, enhanced: true}.append(nil))
			}
		}
	}()
	dev := Open(Config{})
	defer dev.Close()
	c, err := dev.Dial(context.Background(), verbs.EndpointAt(l.Addr().(*net.TCPAddr).AddrPort()), nil)
	if err != nil {
		t.Fatal(err)
	}
	err = c.Post(&verbs.WorkRequest{Op: verbs.OpWrite}, verbs.NewQueue(1))
	if !errors.Is(err, verbs.ErrPeer) {
		t.Errorf("Post = %v; want ErrPeer", err)
	}
}

// TestUnknownLimit: a peer of revision 1 doesn't say how many READs it takes at once, and gets one at a time.
func TestUnknownLimit(t *testing.T) {
	requests := make(chan readRequest)
	ep := silentPeer(t, func(c net.Conn) {
		defer close(requests)
		frame := make([]byte, lengthBytes+untaggedBytes+readRequestBytes+crcBytes)
		if _, err := io.ReadFull(c, frame[:headerBytes+crcBytes]); err != nil { // the ready message
			return
		}
		for {
			if _, err := io.ReadFull(c, frame); err != nil {
				return
			}
			requests <- parseReadRequest(frame[lengthBytes+untaggedBytes:])
			_ = c.SetReadDeadline(time.Now().Add(200 * time.Millisecond)) // to see whether more come
		}
	})
	dev := Open(Config{NoCRC: true})
	defer dev.Close()
	c, err := dev.Dial(context.Background(), ep, nil)
	if err != nil {
		t.Fatal(err)
	}
	r, err := dev.Register(make([]byte, 16))
	if err != nil {
		t.Fatal(err)
	}
	q := verbs.NewQueue(4)
	for i := range uint64(4) {
		if err := c.Post(&verbs.WorkRequest{Op: verbs.OpRead, ID: i, Local: [][]byte{r.Bytes()[4*i:][:4]}}, q); err != nil {
			t.Fatal(err)
		}
	}
	n := 0
	for range requests {
		n++
	}
	if n != 1 {
		t.Errorf("%d READs under way; want 1", n)
	}
}
