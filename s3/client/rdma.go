package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/millrace/millrace/s3/sigv4"
	"github.com/millrace/millrace/verbs"
)

// The headers of S3 over RDMA: a token of the window in the request; the status once more and the bytes moved in the
// answer.
const (
	headerRDMAToken = "X-Amz-Rdma-Token"
	headerRDMAReply = "X-Amz-Rdma-Reply"
	headerRDMABytes = "X-Amz-Rdma-Bytes-Transferred"
	// headerRDMAFence with "client" says that this side can tell when it has all bytes: the server need not ask.
	headerRDMAFence = "X-Millrace-Rdma-Fence"
)

const (
	// rdmaAttempts is how often bytes are tried to be moved by RDMA, each time through a fresh window.
	rdmaAttempts = 2
	// A server that declined is not asked again for so long, in ModeAuto; one that does not know RDMA for
	// longer.
	holdDeclined = 5 * time.Second
	holdUnknown  = time.Minute
)

// path is a client's way to RDMA.
type path struct {
	mode    Mode
	connect string // of a session; "" where the server dials

	config DeviceConfig

	mu     sync.Mutex
	device *Device
	own    bool // opened, and so closed, by the client

	local  atomic.Pointer[netip.Addr] // of this host, on the way to the endpoint
	spare  atomic.Pointer[net.Conn]   // a connection that was made to learn it
	known  atomic.Bool                // the server has answered to a token
	hold   atomic.Pointer[hold]
	counts counts
}

// hold says why, and until when, RDMA isn't tried.
type hold struct {
	until  time.Time
	reason string
}

// declined is the error of a transfer that the server, or something on this side, can't do by RDMA.
type declined struct {
	reason string
	code   string // of the server's answer, or ""
	hold   time.Duration
}

func (d *declined) Error() string { return d.reason }

// broken is the error of a transfer by RDMA that may succeed when it is tried again.
type broken struct{ err error }

func (b *broken) Error() string { return b.err.Error() }
func (b *broken) Unwrap() error { return b.err }

// open returns the device, and opens one if the client was given none.
func (p *path) open() (*Device, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.device != nil {
		return p.device, nil
	}
	d, err := OpenDevice(p.config)
	if err == nil {
		p.device, p.own = d, true
	}
	return d, err
}

func (p *path) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if spare := p.spare.Swap(nil); spare != nil {
		_ = (*spare).Close()
	}
	if p.device == nil || !p.own {
		return nil
	}
	return p.device.Close()
}

// ready returns the device for a call whose bytes should go through registered memory, or else the Transfer that
// says why not.
func (p *path) ready() (*Device, Transfer, error) {
	without := Transfer{Transport: TransportHTTP}
	if p.mode == ModeOff {
		return nil, without, nil
	}
	if without.Reason = p.held(); without.Reason != "" {
		return nil, without, nil
	}
	d, err := p.open()
	if err == nil {
		return d, Transfer{}, nil
	}
	without.Reason, err = p.fallBack(&declined{reason: err.Error(), hold: holdUnknown})
	return nil, without, err
}

// held is the reason why RDMA is not tried now; "" if it is.
func (p *path) held() string {
	h := p.hold.Load()
	if h == nil || p.mode == ModeRequire {
		return ""
	}
	if time.Now().After(h.until) {
		p.hold.CompareAndSwap(h, nil)
		return ""
	}
	return h.reason
}

// Register makes mem of the caller usable for transfers by RDMA; see Device.Register. It does nothing in ModeOff.
func (c *Client) Register(mem []byte) (*Memory, error) {
	if c.path.mode == ModeOff {
		return &Memory{mem: mem}, nil
	}
	d, err := c.path.open()
	switch {
	case err == nil:
		return d.Register(mem)
	case c.path.mode == ModeAuto: // calls with mem say why they don't use RDMA
		return &Memory{mem: mem}, nil
	}
	return nil, fmt.Errorf("%w: %w", ErrNoRDMA, err)
}

// Witness returns what this client has moved by RDMA so far.
func (c *Client) Witness() Witness {
	n := &c.path.counts
	w := Witness{WriteOps: n.writeOps.Load(), WriteBytes: n.writeBytes.Load(), ReadOps: n.readOps.Load(),
		ReadBytes: n.readBytes.Load(), Fallbacks: n.fallbacks.Load()}
	c.path.mu.Lock()
	defer c.path.mu.Unlock()
	if d := c.path.device; d != nil {
		w.Provider = d.provider
	}
	return w
}

// Device returns the RDMA device that the client uses, or nil as long as it has used none.
func (c *Client) Device() *Device {
	c.path.mu.Lock()
	defer c.path.mu.Unlock()
	return c.path.device
}

// dial makes connections to the endpoint. Unless RDMA is off they all come from one address: the one that
// tokens name, since servers reach into no other host than the one that asks.
func (c *Client) dial(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}
	if c.path.mode == ModeOff {
		return dialer.DialContext(ctx, network, address)
	}
	if spare := c.path.spare.Swap(nil); spare != nil {
		return *spare, nil
	}
	if local := c.path.local.Load(); local != nil {
		dialer.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(*local, 0))
		conn, err := dialer.DialContext(ctx, network, address)
		if !errors.Is(err, syscall.EADDRNOTAVAIL) {
			return conn, err
		}
		dialer.LocalAddr = nil // the host has lost the address
	}
	conn, err := dialer.DialContext(ctx, network, address)
	if err == nil {
		local := conn.LocalAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
		c.path.local.Store(&local)
	}
	return conn, err
}

// port returns the endpoint that tokens name now. leave is called when the transfer is over.
func (c *Client) port(ctx context.Context, d *Device) (ep verbs.Endpoint, leave func(), err error) {
	if c.path.connect != "" {
		s, err := d.session(ctx, c.path.connect)
		if err == nil {
			err = s.enter(ctx)
		}
		if err != nil {
			return ep, nil, err
		}
		return s.id.Endpoint(), s.leave, nil
	}
	local := c.path.local.Load()
	if local == nil {
		conn, err := c.dial(ctx, "tcp", c.address())
		if err != nil {
			return ep, nil, err
		}
		if old := c.path.spare.Swap(&conn); old != nil {
			_ = (*old).Close()
		}
		local = c.path.local.Load()
	}
	ep, err = d.listen(*local)
	return ep, func() {}, err
}

// reply is the answer to a request whose bytes went by RDMA.
type reply struct {
	header http.Header
	status int
	bytes  int64
}

// byRDMA sends the call with the token of a window on mem, if that is to be. Without an error, a Transfer whose
// Transport is not RDMA says that HTTP must carry it. When it returns the server can't reach mem any more.
func (c *Client) byRDMA(ctx context.Context, r *call, mem []byte, access verbs.Access) (reply, Transfer, error) {
	p := &c.path
	d, without, err := p.ready()
	if d == nil || err != nil {
		return reply{}, without, err
	}
	got, err := c.exchange(ctx, d, r, mem, access)
	if err == nil {
		p.counts.add(access, got.bytes)
		return got, Transfer{Transport: TransportRDMA, Provider: d.provider, RDMABytes: got.bytes}, nil
	}
	if ctx.Err() != nil {
		return reply{}, Transfer{}, err
	}
	reason, err := p.fallBack(err)
	return reply{}, Transfer{Transport: TransportHTTP, Reason: reason}, err
}

// fallBack returns the reason why HTTP must do after the error, or the error of the call.
func (p *path) fallBack(err error) (string, error) {
	var no *declined
	var failed *broken
	switch {
	case errors.As(err, &no):
		if p.mode == ModeAuto && no.hold > 0 {
			p.hold.Store(&hold{until: time.Now().Add(no.hold), reason: no.reason})
		}
	case !errors.As(err, &failed):
		return "", err // an answer that HTTP would give too
	}
	if p.mode == ModeRequire {
		return "", fmt.Errorf("%w: %w", ErrNoRDMA, err)
	}
	return err.Error(), nil
}

// counts is what Witness tells.
type counts struct{ writeOps, writeBytes, readOps, readBytes, fallbacks atomic.Int64 }

func (n *counts) add(access verbs.Access, moved int64) {
	if access == verbs.RemoteWrite {
		n.writeOps.Add(1)
		n.writeBytes.Add(moved)
	} else {
		n.readOps.Add(1)
		n.readBytes.Add(moved)
	}
}

// fell counts a request that HTTP carries instead of RDMA.
func (n *counts) fell(t Transfer) {
	if t.Reason != "" {
		n.fallbacks.Add(1)
	}
}

// exchange sends the call, again with a fresh window where that may help.
func (c *Client) exchange(ctx context.Context, d *Device, r *call, mem []byte, access verbs.Access) (reply, error) {
	memory, off := d.find(mem)
	switch {
	case memory == nil:
		return reply{}, &declined{reason: "the memory is not registered"}
	case len(mem) > verbs.MaxTokenBytes:
		return reply{}, &declined{reason: "a window is smaller than 4 GiB"}
	}
	if access == verbs.RemoteRead && !c.path.known.Load() {
		if err := c.probe(ctx, r); err != nil {
			return reply{}, err
		}
	}
	attempts := 1
	for try := 0; ; try++ {
		got, err := c.exchangeOnce(ctx, d, r, memory, off, int64(len(mem)), access)
		if err == nil || ctx.Err() != nil {
			return got, err
		}
		var failed *broken
		var answer *Error
		switch {
		case errors.As(err, &failed):
			if attempts++; attempts > rdmaAttempts {
				return reply{}, err
			}
		case errors.As(err, &answer) && answer.StatusCode == http.StatusServiceUnavailable && try < c.retries:
		default:
			return reply{}, err
		}
		if e := pause(ctx, backoff(try)); e != nil {
			return reply{}, err
		}
	}
}

// exchangeOnce opens a window, sends the call with its token, and closes the window before it returns.
func (c *Client) exchangeOnce(
	ctx context.Context, d *Device, r *call, memory *Memory, off, n int64, access verbs.Access,
) (reply, error) {
	ep, leave, err := c.port(ctx, d)
	if err != nil {
		return reply{}, &broken{err}
	}
	defer leave()
	if access == verbs.RemoteWrite {
		access |= verbs.Scratch
	}
	binding, err := memory.region.Bind(off, n, access)
	if err != nil {
		return reply{}, &broken{err}
	}
	defer binding.Close()
	token, err := binding.Window(ep).Token()
	if err != nil {
		return reply{}, err
	}
	counts, ok := binding.(counting)
	if !ok || access&verbs.RemoteWrite == 0 {
		return c.control(ctx, r, token.String(), n, false)
	}
	got, err := c.control(ctx, r, token.String(), n, true)
	if err == nil && got.header.Get(headerRDMAFence) == "client" {
		err = placed(ctx, counts, got.bytes)
	}
	return got, err
}

// counting is a binding whose device counts the bytes that peers write there.
type counting interface {
	Placed(ctx context.Context, n int64) error
}

// placedLimit is how long bytes may be on their way after the server has sent them all.
const placedLimit = 5 * time.Second

// placed waits for the n bytes that the server says to have written.
func placed(ctx context.Context, b counting, n int64) error {
	limited, cancel := context.WithTimeout(ctx, placedLimit)
	defer cancel()
	err := b.Placed(limited, n)
	if err != nil && ctx.Err() == nil {
		return &broken{err}
	}
	return err
}

// control sends a call with a token, and judges the answer. counts says that this side can tell when it has all bytes.
func (c *Client) control(ctx context.Context, r *call, token string, window int64, counts bool) (reply, error) {
	req := c.request(ctx, r)
	req.Header[headerRDMAToken] = []string{token}
	if counts {
		req.Header[headerRDMAFence] = []string{"client"}
	}
	if err := c.sign(req, sigv4.UnsignedPayload); err != nil {
		return reply{}, err
	}
	resp, err := c.roundTrip(req)
	if err != nil {
		return reply{}, &broken{fmt.Errorf("%s %s: %w", r.op, r.resource(), err)}
	}
	said, there := resp.Header[headerRDMAReply]
	if there {
		c.path.known.Store(true)
	}
	if resp.StatusCode/100 != 2 {
		return reply{}, judge(errorOf(r.op, r.resource(), resp), there)
	}
	n, err := io.Copy(io.Discard, io.LimitReader(resp.Body, 1))
	resp.Body.Close()
	switch {
	case !there:
		return reply{}, &declined{reason: "the server did not answer to x-amz-rdma-token", hold: holdUnknown}
	case said[0] == "501":
		return reply{}, &declined{reason: "the server declined RDMA", hold: holdDeclined}
	case said[0] != strconv.Itoa(resp.StatusCode):
		return reply{}, breach(r, "status %d, but x-amz-rdma-reply %q", resp.StatusCode, said[0])
	case n > 0 || err != nil:
		return reply{}, breach(r, "the answer has a body")
	}
	moved, err := strconv.ParseInt(resp.Header.Get(headerRDMABytes), 10, 64)
	if err != nil || moved < 0 || moved > window {
		return reply{}, breach(r, "x-amz-rdma-bytes-transferred %q for a window of %d",
			resp.Header.Get(headerRDMABytes), window)
	}
	got := reply{header: resp.Header, status: resp.StatusCode, bytes: moved}
	if r.accept != nil {
		if err := r.accept(&got); err != nil {
			return reply{}, breach(r, "%v", err)
		}
	}
	return got, nil
}

// breach is the error of an answer that is not as the protocol has it.
func breach(r *call, format string, args ...any) error {
	return &broken{fmt.Errorf("%s %s: RDMA answer: %s", r.op, r.resource(), fmt.Sprintf(format, args...))}
}

// The codes of errors that only requests by RDMA get.
const (
	codeNotSupported   = "RDMANotSupported"
	codeInvalidToken   = "InvalidRDMAToken"
	codeTransferFailed = "RDMATransferFailed"
)

// judge tells errors of RDMA from those that HTTP would give too.
func judge(e *Error, replied bool) error {
	switch {
	case e.Code == codeTransferFailed || e.StatusCode == http.StatusInternalServerError:
		return &broken{e}
	case e.Code == codeNotSupported || e.StatusCode == http.StatusNotImplemented:
		return declinedBy(e, holdDeclined)
	case e.Code == codeInvalidToken || replied && e.StatusCode == http.StatusForbidden:
		return declinedBy(e, holdUnknown)
	}
	return e
}

func declinedBy(e *Error, hold time.Duration) error {
	reason := strings.TrimSuffix("the server declined RDMA: "+e.Code+": "+e.Message, ": ")
	return &declined{reason: reason, code: e.Code, hold: hold}
}

// probe finds out whether the server knows tokens, before one is sent with a PUT: a server that doesn't would store an
// empty object. The request is one that fails everywhere: a part of no upload, with no token but the header of one.
func (c *Client) probe(ctx context.Context, r *call) error {
	ask := call{op: r.op, method: http.MethodPut, bucket: r.bucket, key: r.key,
		query: url.Values{"partNumber": {"1"}, "uploadId": {"rdma-probe"}}}
	_, err := c.control(ctx, &ask, "?", 0, false)
	var answer *Error
	var no *declined
	switch {
	case errors.As(err, &no) && no.code == codeInvalidToken:
		c.path.known.Store(true)
		return nil
	case errors.As(err, &answer) && answer.Code == "NoSuchUpload":
		return &declined{reason: "the server did not answer to x-amz-rdma-token", hold: holdUnknown}
	case errors.As(err, &answer): // HTTP will tell whether that is the answer to the call too
		return &declined{reason: "asked for RDMA: " + answer.Error()}
	case err == nil:
		return &declined{reason: "the server took what is no token", hold: holdUnknown}
	}
	return err
}
