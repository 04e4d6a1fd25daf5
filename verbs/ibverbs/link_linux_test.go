package ibverbs_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/millrace/millrace/verbs"
	"github.com/millrace/millrace/verbs/fabric"
	"github.com/millrace/millrace/verbs/ibverbs"
)

var netdev = flag.String("netdev", "", "network interface below the soft-RoCE device; TestLink takes it down, TestRemoval takes the device away")

// load keeps WRITEs under way until one fails, and tells why.
func load(c verbs.Conn, w verbs.Window, info verbs.DeviceInfo, local []byte) <-chan error {
	ended := make(chan error, 1)
	go func() {
		req := verbs.NewRequester(info, 8)
		for {
			if err := req.Write(context.Background(), c, w, 0, [][]byte{local}, false); err != nil {
				ended <- err
				return
			}
		}
	}()
	return ended
}

// linkPair is a connection of a device to itself, with a window.
func linkPair(t testing.TB, d *ibverbs.Device, addr netip.Addr, r verbs.Region) (verbs.Conn, verbs.Window) {
	t.Helper()
	l, err := d.Listen(netip.AddrPortFrom(addr, 0), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	b, err := r.Bind(0, int64(len(r.Bytes())/2), verbs.RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	c, err := d.Dial(context.Background(), l.Endpoint(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return c, b.Window(l.Endpoint())
}

func waitEnd(t *testing.T, c verbs.Conn, ended <-chan error, want ...error) {
	t.Helper()
	select {
	case err := <-ended:
		if !anyOf(err, want) || !anyOf(c.Err(), want) {
			t.Errorf("load ended with %v, connection with %v; want one of %v", err, c.Err(), want)
		}
	case <-time.After(time.Minute):
		t.Fatal("the load does not end")
	}
	select {
	case <-c.Done():
	case <-time.After(time.Minute):
		t.Fatal("the connection does not end")
	}
}

func anyOf(err error, want []error) bool {
	for _, w := range want {
		if errors.Is(err, w) {
			return true
		}
	}
	return false
}

// TestLinkLocal connects the device to itself by the address of its link: the GID tells the interface.
func TestLinkLocal(t *testing.T) {
	d, _ := openHardware(t, ibverbs.Config{})
	devices, err := ibverbs.Devices()
	if err != nil {
		t.Fatal(err)
	}
	for _, dev := range devices {
		for _, g := range dev.Ports[0].GIDs {
			if dev.Name != d.Info().Name || !g.Addr().Is6() || !g.Addr().IsLinkLocalUnicast() || g.Type != fabric.GIDRoCEv2 {
				continue
			}
			r := registerHardware(t, d, 20_000)
			pattern(r.Bytes(), 3)
			addr := g.Addr().WithZone(g.Netdev)
			waitAddress(t, addr)
			c, w := linkPair(t, d, addr, r)
			if err := verbs.NewRequester(d.Info(), 2).Write(context.Background(), c, w, 0, [][]byte{r.Bytes()[10_000:]}, false); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(r.Bytes()[:10_000], r.Bytes()[10_000:]) {
				t.Error("wrong bytes")
			}
			return
		}
	}
	t.Skip("the port has no address of its link")
}

// waitAddress waits until the kernel has made sure that no one else has the address (RFC 4862 §5.4).
func waitAddress(t *testing.T, addr netip.Addr) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)))
		if err == nil {
			_ = l.Close()
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// TestLink takes the link down under load and brings it up again.
func TestLink(t *testing.T) {
	if *netdev == "" {
		t.Skip("needs -netdev, and the right to take it down")
	}
	d, addr := openHardware(t, ibverbs.Config{})
	link, err := netlink.LinkByName(*netdev)
	if err != nil {
		t.Fatal(err)
	}
	r := registerHardware(t, d, 2<<20)
	pattern(r.Bytes(), 7)
	for range 3 {
		c, w := linkPair(t, d, addr, r)
		ended := load(c, w, d.Info(), r.Bytes()[1<<20:])
		time.Sleep(50 * time.Millisecond)
		if err := netlink.LinkSetDown(link); err != nil {
			t.Fatal(err)
		}
		waitEnd(t, c, ended, verbs.ErrPeer)
		if err := d.Err(); !errors.Is(err, verbs.ErrUnreachable) {
			t.Errorf("Err() with the link down = %v", err)
		}
		if err := netlink.LinkSetUp(link); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(time.Minute); d.Err() != nil; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("Err() with the link up again = %v", d.Err())
			}
		}
	}
	c, w := linkPair(t, d, addr, r)
	req := verbs.NewRequester(d.Info(), 8)
	pattern(r.Bytes(), 8)
	if err := req.Write(context.Background(), c, w, 0, [][]byte{r.Bytes()[1<<20:]}, false); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(r.Bytes()[:1<<20], r.Bytes()[1<<20:]) {
		t.Error("after the link came up: wrong bytes")
	}
	if got := d.Counters(); got.Live > 2 || got.Connections != 8 {
		t.Errorf("counters %+v; want two connections alive of eight", got)
	}
}

// TestRemoval takes the device away under load, makes it anew, and opens it again.
func TestRemoval(t *testing.T) {
	if *netdev == "" {
		t.Skip("needs -netdev, and the right to delete the device")
	}
	name, addr := hardware(t)
	d, err := ibverbs.Open(ibverbs.Config{Device: name})
	if err != nil {
		t.Fatal(err)
	}
	r := registerHardware(t, d, 2<<20)
	c, w := linkPair(t, d, addr, r)
	ended := load(c, w, d.Info(), r.Bytes()[1<<20:])
	time.Sleep(50 * time.Millisecond)
	removed := make(chan error, 1)
	go func() { removed <- netlink.RdmaLinkDel(name) }()
	gone := false
	select {
	case err := <-removed: // the kernel has cut us off
		if gone = true; err != nil {
			t.Fatal(err)
		}
		waitEnd(t, c, ended, verbs.ErrClosed, verbs.ErrPeer)
		if d.Err() == nil {
			t.Error("Err() of a device that is gone is nil")
		}
		if _, err := d.Dial(context.Background(), w.Endpoint, nil); !errors.Is(err, verbs.ErrUnreachable) {
			t.Errorf("Dial on a device that is gone = %v", err)
		}
	case <-time.After(5 * time.Second):
		t.Log("the kernel waits until the device is closed")
	}
	if err := d.Close(); err != nil {
		t.Errorf("Close = %v", err)
	}
	if !gone {
		if err := <-removed; err != nil {
			t.Fatal(err)
		}
		if err := <-ended; !anyOf(err, []error{verbs.ErrClosed, verbs.ErrPeer}) {
			t.Errorf("load ended with %v", err)
		}
	}
	if err := netlink.RdmaLinkAdd(name, "rxe", *netdev); err != nil {
		t.Fatal(err)
	}
	d, addr = openHardware(t, ibverbs.Config{})
	r = registerHardware(t, d, 2<<20)
	pattern(r.Bytes(), 9)
	c, w = linkPair(t, d, addr, r)
	if err := verbs.NewRequester(d.Info(), 8).Write(context.Background(), c, w, 0, [][]byte{r.Bytes()[1<<20:]}, false); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(r.Bytes()[:1<<20], r.Bytes()[1<<20:]) {
		t.Error("after the device came back: wrong bytes")
	}
}
