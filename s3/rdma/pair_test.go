package rdma_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/s3/gateway"
	"github.com/millrace/millrace/verbs"
	"github.com/millrace/millrace/verbs/ibverbs"
	"github.com/millrace/millrace/verbs/iwarp"
	"github.com/millrace/millrace/verbs/token"
)

var (
	rcDevice  = flag.String("rc-device", "", "run the tests of hipobj-rc-v2 over the RDMA device `NAME`")
	rcAddress = flag.String("rc-address", "", "the device's `ADDRESS`")
)

// pairDevice is one with reliable connections whose addresses others exchange: a real one if the flag names it.
func pairDevice(t *testing.T) verbs.RCDevice {
	t.Helper()
	if *rcDevice == "" {
		d := iwarp.Open(iwarp.Config{})
		t.Cleanup(func() { _ = d.Close() })
		return tcpPairs{d}
	}
	d, err := ibverbs.Open(ibverbs.Config{Device: *rcDevice, Address: netip.MustParseAddr(*rcAddress)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// clientAddress is that of the server, as the client sees it.
func clientAddress() netip.Addr {
	addr, _ := netip.ParseAddr(*rcAddress)
	return addr
}

// pairNetworks are where the clients of the tests may be reached besides the address of their requests.
func pairNetworks(t *testing.T) []netip.Prefix {
	if *rcDevice == "" {
		return nil
	}
	addr := netip.MustParseAddr(*rcAddress)
	return []netip.Prefix{netip.PrefixFrom(addr, addr.BitLen())}
}

// tcpPairs makes the reliable connections of hipobj-rc-v2 out of a soft device: the number of a queue pair is the TCP port
// where it listens, and the side with the lower number dials. appliance/dputest has the protocol over real queue pairs.
type tcpPairs struct{ *iwarp.Device }

type tcpSetup struct {
	dev      *iwarp.Device
	listener verbs.Listener
	local    verbs.RCAddress
	accepted chan verbs.Conn
}

func (d tcpPairs) PrepareRC(netip.Addr) (verbs.RCSetup, error) {
	s := &tcpSetup{dev: d.Device, accepted: make(chan verbs.Conn, 1)}
	l, err := d.Listen(netip.MustParseAddrPort("127.0.0.1:0"), func(c verbs.Conn) { s.accepted <- c })
	if err != nil {
		return nil, err
	}
	ep := l.Endpoint()
	s.listener, s.local = l, verbs.RCAddress{QPN: ep.QPN, PSN: 1 + rand.Uint32N(1<<24-1), GID: ep.GID, Port: 1}
	return s, nil
}

func (s *tcpSetup) Local() verbs.RCAddress { return s.local }
func (s *tcpSetup) Close() error           { return s.listener.Close() }

func (s *tcpSetup) Connect(ctx context.Context, remote verbs.RCAddress) (verbs.Conn, error) {
	defer s.listener.Close()
	if s.local.QPN < remote.QPN {
		at := netip.AddrPortFrom(netip.AddrFrom16(remote.GID).Unmap(), uint16(remote.QPN))
		c, err := s.dev.Dial(ctx, verbs.EndpointAt(at), nil)
		return patient{c}, err
	}
	select {
	case c := <-s.accepted:
		return patient{c}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// patient gives the peer time to post its RECV: a queue pair tries again until there is one, and iWARP does not.
type patient struct{ verbs.Conn }

func (p patient) Post(wr *verbs.WorkRequest, q *verbs.Queue) error {
	if wr.Op == verbs.OpWriteImm {
		time.Sleep(grace)
	}
	return p.Conn.Post(wr, q)
}

const grace = 100 * time.Millisecond

// pairClient is a client of hipobj-rc-v2, for one transfer at a time.
type pairClient struct {
	*rig
	dev    verbs.RCDevice
	region verbs.Region
	setup  verbs.RCSetup
	cookie uint32
}

func newPairClient(r *rig, sizeBytes int) *pairClient {
	r.t.Helper()
	p := &pairClient{rig: r, dev: pairDevice(r.t), cookie: rand.Uint32() | 1}
	var err error
	if p.region, err = p.dev.Register(make([]byte, sizeBytes)); err != nil {
		r.t.Fatal(err)
	}
	p.renew()
	return p
}

// renew makes a queue pair for another transfer.
func (p *pairClient) renew() {
	p.t.Helper()
	var err error
	if p.setup, err = p.dev.PrepareRC(clientAddress()); err != nil {
		p.t.Fatal(err)
	}
}

func (p *pairClient) token() string {
	l := p.setup.Local()
	return token.RC{Transport: token.TransportRC, QPN: l.QPN, GID: l.GID, Port: l.Port}.String()
}

const protocolHeader = "x-amz-rdma-protocol: hipobj-rc-v2"

// prepareHeaders are those of a good PREPARE, which more replace by name.
func (p *pairClient) prepareHeaders(op, target string, size int, more ...string) []string {
	list := []string{
		protocolHeader, "x-amz-rdma-token: " + p.token(), fmt.Sprintf("x-amz-rdma-psn: %06x", p.setup.Local().PSN),
		fmt.Sprintf("x-amz-rdma-cookie: %08x", p.cookie), "x-amz-rdma-op: " + op, "x-amz-rdma-target: " + target,
		"x-amz-rdma-size: " + strconv.Itoa(size),
	}
	for _, m := range more {
		name, _, _ := strings.Cut(m, ":")
		for i, h := range list {
			if strings.HasPrefix(h, name+":") {
				list = append(list[:i], list[i+1:]...)
				break
			}
		}
		if !strings.HasSuffix(m, ": -") {
			list = append(list, m)
		}
	}
	return list
}

// prepared is the answer to a PREPARE.
type prepared struct {
	session string
	server  verbs.RCAddress
	staging verbs.Window
}

func (p *pairClient) prepare(op, target string, size int, more ...string) prepared {
	p.t.Helper()
	a := p.do("POST", "/.hipobj-rc/prepare", "", p.prepareHeaders(op, target, size, more...)...)
	text, ok := strings.CutPrefix(a.header.Get("x-amz-rdma-reply"), "200:")
	if a.status != 200 || !ok || a.header.Get("x-amz-rdma-protocol") != "hipobj-rc-v2" {
		p.t.Fatalf("PREPARE of %s %s = %+v", op, target, a)
	}
	t, err := token.ParseRC(text)
	if err != nil {
		p.t.Fatal(err)
	}
	psn, err := strconv.ParseUint(a.header.Get("x-amz-rdma-psn"), 16, 24)
	if err != nil || a.header.Get("x-amz-rdma-qpn") != strconv.FormatUint(uint64(t.QPN), 16) {
		p.t.Fatalf("PREPARE: psn, qpn %q, %q; token %+v", a.header.Get("x-amz-rdma-psn"), a.header.Get("x-amz-rdma-qpn"), t)
	}
	if addr := a.header.Get("x-amz-rdma-mr-addr"); (addr != "") != (op == "PUT") ||
		op == "PUT" && addr != strconv.FormatUint(t.Addr, 16) {
		p.t.Fatalf("PREPARE of %s: mr-addr %q; token %+v", op, addr, t)
	}
	return prepared{
		session: a.header.Get("x-amz-rdma-session"), server: verbs.RCAddress{QPN: t.QPN, PSN: uint32(psn), GID: t.GID},
		staging: verbs.Window{Addr: t.Addr, RKey: t.RKey, SizeBytes: int64(t.LengthBytes)},
	}
}

func (p *pairClient) readyHeaders(session string, w verbs.Window) []string {
	return []string{
		protocolHeader, "x-amz-rdma-session: " + session, fmt.Sprintf("x-amz-rdma-cookie: %08x", p.cookie),
		fmt.Sprintf("x-amz-rdma-qpn: %x", p.setup.Local().QPN), fmt.Sprintf("x-amz-rdma-mr-addr: %x", w.Addr),
		fmt.Sprintf("x-amz-rdma-mr-rkey: %x", w.RKey),
	}
}

// ready sends READY, and meanwhile connects and moves.
func (p *pairClient) ready(s prepared, w verbs.Window, move func(verbs.Conn) error) answer {
	p.t.Helper()
	answered := make(chan answer, 1)
	go func() { answered <- p.do("POST", "/.hipobj-rc/ready", "", p.readyHeaders(s.session, w)...) }()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	conn, err := p.setup.Connect(ctx, s.server)
	if err == nil {
		err = move(conn)
	}
	if err != nil {
		p.t.Error(err)
	}
	a := <-answered
	if err == nil {
		_ = conn.Close()
	}
	p.renew()
	return a
}

// get does a whole GET, and gives the answer with the bytes.
func (p *pairClient) get(target string, size int, more ...string) (answer, []byte) {
	p.t.Helper()
	s := p.prepare("GET", target, size, more...)
	b, err := p.region.Bind(0, int64(size), verbs.RemoteWrite)
	if err != nil {
		p.t.Fatal(err)
	}
	a := p.ready(s, b.Window(verbs.Endpoint{}), func(c verbs.Conn) error {
		q := verbs.NewQueue(1)
		if err := c.Post(&verbs.WorkRequest{Op: verbs.OpRecv}, q); err != nil {
			return err
		}
		done, err := q.Wait(context.Background())
		if err == nil && (done.Err != nil || !done.HasImm || done.Imm != p.cookie) {
			err = fmt.Errorf("end of the GET: %+v; want the cookie", done)
		}
		return err
	})
	_ = b.Close()
	return a, p.region.Bytes()[:size]
}

// put does a whole PUT of the first bytes of the memory, with a value as the end.
func (p *pairClient) put(target string, size int, imm uint32) answer {
	p.t.Helper()
	s := p.prepare("PUT", target, size)
	return p.ready(s, verbs.Window{}, func(c verbs.Conn) error {
		req := verbs.NewRequester(p.dev.Info(), 4)
		// The server ends the connection with the value, perhaps before iWARP's fence is answered: its answer counts.
		_ = req.WriteImm(context.Background(), c, s.staging, 0, [][]byte{p.region.Bytes()[:size]}, imm)
		return nil
	})
}

func TestPairPutAndGet(t *testing.T) {
	r := newRig(t, options{pairs: true})
	p := newPairClient(r, 3<<20)
	for _, size := range []int{1, 4097, 300_000, 3 << 20} {
		data := noise(size, uint64(size))
		copy(p.region.Bytes(), data)
		target := "/bucket/some%20thing" + strconv.Itoa(size)
		a := p.put(target, size, p.cookie)
		if a.status != 200 || a.header.Get("x-amz-rdma-cookie") != fmt.Sprintf("%08x", p.cookie) ||
			a.header.Get("x-amz-rdma-bytes-transferred") != strconv.Itoa(size) || a.header.Get("x-amz-rdma-etag") == "" ||
			len(a.header.Get("x-amz-rdma-checksum")) != len("CRC64NVME ")+12 {
			t.Fatalf("PUT of %d bytes = %+v", size, a)
		}
		if e := r.last(); e.Op.String() != "PutObject" || e.Transport != gateway.TransportRDMA || e.BytesIn != int64(size) {
			t.Errorf("PUT of %d bytes: event %+v", size, e)
		}
		if got := r.must("GET", target, ""); got.body != string(data) {
			t.Errorf("GET of %d bytes by HTTP: other bytes", size)
		}
		clear(p.region.Bytes())
		a, got := p.get(target, size)
		if a.status != 200 || a.header.Get("x-amz-rdma-bytes-transferred") != strconv.Itoa(size) ||
			a.header.Get("x-amz-rdma-etag") == "" || len(a.header.Get("x-amz-rdma-checksum")) != len("CRC64NVME ")+12 {
			t.Fatalf("GET of %d bytes = %+v", size, a)
		}
		same(t, "GET by a pair", got, data)
		if e := r.last(); e.Op.String() != "GetObject" || e.Transport != gateway.TransportRDMA || e.BytesOut != int64(size) {
			t.Errorf("GET of %d bytes: event %+v", size, e)
		}
		if size > 10 {
			_, got = p.get(target, size-10, "x-amz-rdma-offset: 7")
			same(t, "ranged GET by a pair", got, data[7:size-3])
		}
	}
	waitFor(t, "all connections to end", func() bool { return r.pairs.Counters().Live == 0 })
}

func TestPairUploadPart(t *testing.T) {
	r := newRig(t, options{pairs: true})
	p := newPairClient(r, 100)
	copy(p.region.Bytes(), noise(100, 1))
	started := r.must("POST", "/bucket/key?uploads", "")
	_, id, _ := strings.Cut(started.body, "<UploadId>")
	id, _, _ = strings.Cut(id, "<")
	a := p.put("/bucket/key?partNumber=1&uploadId="+id, 100, p.cookie)
	if a.status != 200 {
		t.Fatalf("part = %+v", a)
	}
	r.must("POST", "/bucket/key?uploadId="+id, `<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>`+
		a.header.Get("x-amz-rdma-etag")+`</ETag></Part></CompleteMultipartUpload>`)
	if got := r.must("GET", "/bucket/key", ""); got.body != string(p.region.Bytes()) {
		t.Error("the object has other bytes than its part")
	}
}

func TestPairRefused(t *testing.T) {
	r := newRig(t, options{pairs: true})
	p := newPairClient(r, 100)
	r.must("PUT", "/bucket/o", strings.Repeat("x", 100))
	foreign := token.RC{Transport: token.TransportRC, QPN: 77, GID: netip.MustParseAddr("192.0.2.9").As16(), Port: 1}
	for _, tc := range []struct {
		change string
		size   int
		status int
	}{
		{"x-amz-rdma-protocol: hipobj-rc-v1", 100, 501}, {"x-amz-rdma-protocol: -", 100, 501},
		{"x-amz-rdma-token: " + p.token()[1:], 100, 400}, {"x-amz-rdma-token: " + strings.ToUpper(p.token()), 100, 400},
		{"x-amz-rdma-token: 00" + p.token()[2:], 100, 400}, {"x-amz-rdma-token: -", 100, 400},
		{"x-amz-rdma-token: " + foreign.String(), 100, 501},
		{"x-amz-rdma-psn: 000000", 100, 400}, {"x-amz-rdma-psn: 1", 100, 400}, {"x-amz-rdma-psn: -", 100, 400},
		{"x-amz-rdma-cookie: 00000000", 100, 400}, {"x-amz-rdma-cookie: +1234567", 100, 400},
		{"x-amz-rdma-op: DELETE", 100, 400}, {"x-amz-rdma-op: -", 100, 400},
		{"x-amz-rdma-target: bucket/o", 100, 400}, {"x-amz-rdma-target: /bucket", 100, 400},
		{"x-amz-rdma-target: http://elsewhere/bucket/o", 100, 400}, {"x-amz-rdma-target: //elsewhere/o", 100, 400},
		{"x-amz-rdma-target: /bucket/o?acl", 100, 400}, {"x-amz-rdma-target: /bucket/none", 100, 404},
		{"x-amz-rdma-target: /none/o", 100, 404},
		{"x-amz-rdma-size: 0", 0, 400}, {"x-amz-rdma-size: -1", 0, 400}, {"x-amz-rdma-size: 0x10", 0, 400},
		{"x-amz-rdma-size: 2147483648", 0, 413}, {"x-amz-rdma-size: 101", 0, 416},
		{"x-amz-rdma-offset: 1", 100, 416}, {"x-amz-rdma-offset: 9223372036854775807", 100, 416},
		{"x-amz-rdma-offset: -1", 100, 400},
	} {
		a := p.do("POST", "/.hipobj-rc/prepare", "", p.prepareHeaders("GET", "/bucket/o", tc.size, tc.change)...)
		if a.status != tc.status || (a.header.Get("x-amz-rdma-protocol-status") == "unsupported") != (tc.status == 501) {
			t.Errorf("PREPARE with %s = %+v; want %d", tc.change, a, tc.status)
		}
	}
	if a := p.do("POST", "/.hipobj-rc/prepare", "", p.prepareHeaders("PUT", "/bucket/o", 1<<30)...); a.status != 413 {
		t.Errorf("PREPARE of a PUT of a GiB = %+v; want 413", a)
	}
	req := p.request("POST", "/.hipobj-rc/prepare", "", p.prepareHeaders("GET", "/bucket/o", 100)...)
	req.Header.Set("x-amz-rdma-offset", "0") // not signed
	if a := p.send(req); a.status != 403 {
		t.Errorf("PREPARE with a header that is not signed = %+v; want 403", a)
	}
	if n := r.pairs.Counters().Connections; n != 0 {
		t.Errorf("%d connections were made", n)
	}
}

func TestPairWithoutPairs(t *testing.T) {
	r := newRig(t, options{})
	p := newPairClient(r, 100)
	r.must("PUT", "/bucket/o", strings.Repeat("x", 100))
	a := p.do("POST", "/.hipobj-rc/prepare", "", p.prepareHeaders("GET", "/bucket/o", 100)...)
	if a.status != 501 || a.header.Get("x-amz-rdma-protocol-status") != "unsupported" {
		t.Errorf("PREPARE on a server with the soft provider only = %+v; want 501, unsupported", a)
	}
}

// TestPairSessions: a session is its owner's, and serves once.
func TestPairSessions(t *testing.T) {
	r := newRig(t, options{pairs: true})
	p := newPairClient(r, 100)
	r.must("PUT", "/bucket/o", strings.Repeat("x", 100))
	s := p.prepare("GET", "/bucket/o", 100)
	w := verbs.Window{Addr: 1, RKey: 2}
	other := func(path string, headers ...string) int {
		return p.send(p.requestBy("OTHER", "POST", path, "", headers...)).status
	}
	ready := p.readyHeaders(s.session, w)
	if got := other("/.hipobj-rc/ready", ready...); got != 403 {
		t.Errorf("READY by another key = %d; want 403", got)
	}
	if got := other("/.hipobj-rc/cancel", ready[:3]...); got != 403 {
		t.Errorf("CANCEL by another key = %d; want 403", got)
	}
	wrong := p.cookie
	p.cookie ^= 2
	for _, path := range []string{"/.hipobj-rc/ready", "/.hipobj-rc/cancel"} {
		if a := p.do("POST", path, "", p.readyHeaders(s.session, w)...); a.status != 403 {
			t.Errorf("%s with another cookie = %+v; want 403", path, a)
		}
	}
	p.cookie = wrong
	if a := p.do("POST", "/.hipobj-rc/ready", "", p.readyHeaders(strings.Repeat("0", 32), w)...); a.status != 404 {
		t.Errorf("READY of no session = %+v; want 404", a)
	}
	if a := p.do("POST", "/.hipobj-rc/ready", "", p.readyHeaders(s.session, verbs.Window{})...); a.status != 400 {
		t.Errorf("READY of a GET without memory = %+v; want 400", a)
	}
	for range 2 { // the second finds nothing
		if a := p.do("POST", "/.hipobj-rc/cancel", "", ready[:3]...); a.status != 204 {
			t.Errorf("CANCEL = %+v; want 204", a)
		}
	}
	if a := p.do("POST", "/.hipobj-rc/ready", "", ready...); a.status != 404 {
		t.Errorf("READY after CANCEL = %+v; want 404", a)
	}
	for i := range 65 {
		a := p.do("POST", "/.hipobj-rc/prepare", "", p.prepareHeaders("GET", "/bucket/o", 100)...)
		if want := 200; a.status != want && i < 64 || i == 64 && a.status != 503 {
			t.Fatalf("PREPARE number %d = %+v", i+1, a)
		}
	}
}

// TestPairFails: what goes wrong while bytes move ends the session, stores nothing, and leaves nothing.
func TestPairFails(t *testing.T) {
	short := func(c *gateway.Config) { c.Limits.RDMA = 2 * time.Second }
	r := newRig(t, options{pairs: true, gateway: short})
	p := newPairClient(r, 1<<20)
	if a := p.put("/bucket/o", 1<<20, p.cookie+1); a.status != 500 {
		t.Errorf("PUT that ends with another value than the cookie = %+v; want 500", a)
	}
	s := p.prepare("PUT", "/bucket/o", 1<<20)
	if a := p.ready(s, verbs.Window{}, func(verbs.Conn) error { return nil }); a.status != 408 {
		t.Errorf("PUT of which nothing comes = %+v; want 408", a)
	}
	s = p.prepare("PUT", "/bucket/o", 1<<20)
	a := p.ready(s, verbs.Window{}, func(c verbs.Conn) error { return c.Close() })
	if a.status != 500 && a.status != 408 { // a queue pair is not told that its peer is gone
		t.Errorf("PUT whose client goes = %+v; want 500 or 408", a)
	}
	s = p.prepare("PUT", "/bucket/o", 1<<20)
	a = p.ready(s, verbs.Window{}, func(verbs.Conn) error {
		time.Sleep(grace) // the READY above may not be there yet
		twice := p.do("POST", "/.hipobj-rc/ready", "", p.readyHeaders(s.session, verbs.Window{})...)
		if twice.status != 409 {
			t.Errorf("READY of a session that is in use = %+v; want 409", twice)
		}
		gone := p.do("POST", "/.hipobj-rc/cancel", "", p.readyHeaders(s.session, verbs.Window{})[:3]...)
		if gone.status != 204 {
			t.Errorf("CANCEL in the middle = %+v; want 204", gone)
		}
		if n := r.pairs.Counters().Live; n != 0 {
			t.Errorf("%d connections outlive CANCEL", n)
		}
		return nil
	})
	if a.status < 400 {
		t.Errorf("PUT that is cancelled = %+v", a)
	}
	if a := r.do("GET", "/bucket/o", ""); a.status != 404 {
		t.Errorf("GET after PUTs that failed = %+v; want 404", a)
	}
	waitFor(t, "all connections to end", func() bool { return r.pairs.Counters().Live == 0 })
}
