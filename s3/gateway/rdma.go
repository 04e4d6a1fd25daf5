package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/millrace/millrace/s3/sigv4"
	"github.com/millrace/millrace/s3/store"
	"github.com/millrace/millrace/s3/wire"
	"github.com/millrace/millrace/verbs"
	"github.com/millrace/millrace/verbs/token"
)

// TransportRDMA is the Transport of bytes that went into or came out of a window of the client's memory.
const TransportRDMA = "rdma"

// The headers of RDMA, in canonical form. x-rdma-info is a bare token: its answers have no header of their
// own, the HTTP status tells all.
const (
	headerToken       = "X-Amz-Rdma-Token"
	headerBareToken   = "X-Rdma-Info"
	headerReply       = "X-Amz-Rdma-Reply"
	headerTransferred = "X-Amz-Rdma-Bytes-Transferred"
	headerFence       = "X-Millrace-Rdma-Fence" // "client": the client counts the bytes that come
)

// RDMA moves object bytes between buffers of this machine and windows of clients' memory.
type RDMA interface {
	// Open makes ready to move bytes. It returns a *Declined when the request can't have RDMA but may be
	// made again without it, and an error that is store.ErrOverloaded when it may have it later. Nothing
	// has been moved then. ctx bounds the whole transfer.
	Open(ctx context.Context, r RDMARequest) (RDMATransfer, error)
}

// RDMARequest asks for a transfer.
type RDMARequest struct {
	Window verbs.Window
	// SizeBytes is what will be moved, from the start of the window on; never more than the window holds.
	SizeBytes int64
	Peer      netip.Addr // where the HTTP request came from
	AccessKey string     // who signed it
	// ClientFences means that the client can tell by itself when it has all bytes that were written: Write and Flush
	// need not wait for that.
	ClientFences bool
}

// RDMAPairs is an RDMA that also makes reliable connections whose addresses the client tells by requests of its own, as
// hipobj-rc-v2 has it.
type RDMAPairs interface {
	// Pair makes this side's half. Its errors are those of Open, and verbs.ErrTooLarge for too much memory.
	Pair(ctx context.Context, r PairRequest) (Pair, error)
}

// PairRequest asks for half of a connection.
type PairRequest struct {
	GID  [16]byte   // of the client
	Peer netip.Addr // where the HTTP request came from
	// StagingBytes is how much memory the client shall be able to write into; 0 for a GET.
	StagingBytes int64
}

// Pair is a connection for one transfer.
type Pair interface {
	Local() verbs.RCAddress
	// Staging is what the client may write into.
	Staging() verbs.Window
	Connect(ctx context.Context, remote verbs.RCAddress) error
	// Transfer of a GET writes the bytes of the window, and imm with the last one; that of a PUT reads what the client
	// has written when its imm comes.
	Transfer(ctx context.Context, window verbs.Window, imm uint32) (RDMATransfer, error)
	// Close ends the connection and the memory. A second Close does nothing.
	Close()
}

// RDMATransfer moves the bytes of one window, in order. It serves one goroutine.
type RDMATransfer interface {
	// Write puts the next bytes into the window, and returns when p may be reused.
	io.Writer
	// Read gets the next bytes of the window; io.EOF after the last.
	io.Reader
	// Flush returns when the client has all bytes that were written: fenced. It returns at once, and false, if the
	// client is to wait for them itself.
	Flush() (fenced bool, err error)
	// Close ends the transfer. When it has returned, the window is not touched any more, but by bytes that a client
	// which fences itself still waits for.
	Close()
}

// Declined is why a request can't have RDMA.
type Declined struct {
	Reason string // one word, for the metrics
	Err    error  // more of it; may be nil
}

// Error says it in words.
func (d *Declined) Error() string {
	if d.Err == nil {
		return "RDMA declined: " + d.Reason
	}
	return fmt.Sprintf("RDMA declined: %s: %v", d.Reason, d.Err)
}

// Unwrap returns the cause.
func (d *Declined) Unwrap() error { return d.Err }

// Reasons for which the gateway itself declines.
const (
	DeclinedOff   = "off"    // the server has no RDMA
	DeclinedAlien = "header" // the token is in a header that other servers have
	DeclinedPairs = "pairs"  // hipobj-rc-v2 is not to be had
)

// rdmaAsk is what a request asks for, and what became of it.
type rdmaAsk struct {
	window verbs.Window
	bare   bool // the token came as x-rdma-info
	fences bool // the client can tell when it has everything
	left   bool // it must, since the server has not waited for that
	open   func(context.Context, RDMARequest) (RDMATransfer, error)
	opened bool // bytes went this way, if any went
	in     int64
	out    int64
}

// parseRDMA reads the token of a request; without one r.rdma stays nil. A token is never passed over:
// whoever sends one does not send a body.
func (g *Gateway) parseRDMA(r *request) error {
	h := r.HTTP.Header
	full, isFull := h[headerToken]
	bare, isBare := h[headerBareToken]
	if err := strayToken(r); err != nil {
		return err
	}
	if !isFull && !isBare {
		return nil
	}
	values, name := full, "x-amz-rdma-token"
	if isBare {
		values, name = bare, "x-rdma-info"
	}
	switch {
	case isFull && isBare || len(values) != 1:
		return badToken("There must be one RDMA token, in one header.")
	case r.Op != wire.GetObject && r.Op != wire.PutObject && r.Op != wire.UploadPart:
		return badToken("The header " + name + " does not go with " + r.Op.String() +
			": RDMA is for GetObject, PutObject and UploadPart.")
	case !r.identity.SignedHeaders.Has(name):
		// Signature V4 demands it of all x-amz-* headers, but not of x-rdma-info.
		return &wire.Error{
			Code: wire.AccessDenied, Message: "There were headers present in the request which were not signed",
			Fields: []wire.Field{{Name: "HeadersNotSigned", Value: name}},
		}
	}
	t, err := token.Parse(values[0])
	if err != nil {
		return badToken(err.Error())
	}
	fence := h[headerFence]
	r.rdma = &rdmaAsk{
		window: verbs.WindowOf(t), bare: isBare,
		fences: len(fence) == 1 && fence[0] == "client" && r.identity.SignedHeaders.Has("x-millrace-rdma-fence"),
	}
	return nil
}

func badToken(message string) error {
	return &wire.Error{Code: wire.InvalidRDMAToken, Message: message}
}

// strayToken finds a token where this server does not take one. Its sender has left out the body, so
// that storing what came would lose the object.
func strayToken(r *request) error {
	for _, name := range []string{"x-amz-rdma-token", "x-rdma-info"} {
		if r.Query.HasFold(name) {
			return badToken("The RDMA token must be in the header " + name + ", not in the query.")
		}
	}
	if r.Op != wire.PutObject && r.Op != wire.UploadPart || r.HTTP.ContentLength != 0 {
		return nil
	}
	for _, name := range []string{"X-Amz-Meta-Rdma-Token", "X-Cuobj-Rdma-Descr"} {
		if v := r.Header(name); len(v) >= token.Size && strings.Count(v, ":") >= 6 {
			return &Declined{Reason: DeclinedAlien, Err: errors.New("this server takes the token in x-amz-rdma-token")}
		}
	}
	return nil
}

// transfer opens the transfer of n bytes, and calls move with it. Nothing touches the client's window any
// more when it returns. Its error is that of move, or says that the transfer failed.
func (g *Gateway) transfer(ctx context.Context, r *request, n int64,
	move func(ctx context.Context, t RDMATransfer) error) error {
	if n > r.rdma.window.SizeBytes {
		return badToken(fmt.Sprintf("The window of the RDMA token holds %d bytes, the request is for %d.",
			r.rdma.window.SizeBytes, n))
	}
	if g.config.RDMA == nil {
		return &Declined{Reason: DeclinedOff}
	}
	open := r.rdma.open
	if open == nil {
		open = g.config.RDMA.Open
	}
	limit := g.config.Limits.RDMA
	if limit <= 0 {
		limit = DefaultRDMALimit
	}
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	t, err := open(limited, RDMARequest{
		Window: r.rdma.window, SizeBytes: n, Peer: peerAddr(r.HTTP), AccessKey: r.identity.AccessKey,
		ClientFences: r.rdma.fences,
	})
	if err != nil {
		return err
	}
	r.rdma.opened = true
	m := &metered{RDMATransfer: t, ask: r.rdma, limited: limited}
	err = move(limited, m)
	t.Close()
	late := limited.Err() != nil
	switch {
	case err == nil || ctx.Err() != nil: // done, or the client is gone
		return err
	case late && errors.Is(err, limited.Err()) && !m.began:
		return &wire.Error{Code: wire.SlowDown, Cause: err}
	case late && errors.Is(err, limited.Err()):
		return &wire.Error{
			Code: wire.RDMATransferFailed, Cause: err,
			Message: fmt.Sprintf("The RDMA transfer was not done within %v.", limit),
		}
	case m.err != nil && errors.Is(err, m.err):
		return &wire.Error{Code: wire.RDMATransferFailed, Cause: err}
	}
	return err
}

// DefaultRDMALimit is how long a transfer may take unless Limits say otherwise. The clients of the field
// give up after 10 s, and may then use their memory for something else.
const DefaultRDMALimit = 8 * time.Second

// metered counts what a transfer moves, and remembers its error.
type metered struct {
	RDMATransfer
	ask     *rdmaAsk
	limited context.Context
	began   bool // something was tried in time
	err     error
}

// Write implements io.Writer.
func (m *metered) Write(p []byte) (int, error) {
	m.began = m.began || m.limited.Err() == nil
	n, err := m.RDMATransfer.Write(p)
	m.ask.out += int64(n)
	m.err = err
	return n, err
}

// Read implements io.Reader.
func (m *metered) Read(p []byte) (int, error) {
	m.began = m.began || m.limited.Err() == nil
	n, err := m.RDMATransfer.Read(p)
	m.ask.in += int64(n)
	if err != nil && !errors.Is(err, io.EOF) {
		m.err = err
	}
	return n, err
}

// Flush waits for the client to have everything.
func (m *metered) Flush() (bool, error) {
	fenced, err := m.RDMATransfer.Flush()
	m.err = err
	return fenced, err
}

func peerAddr(r *http.Request) netip.Addr {
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	return at.Addr().Unmap().WithZone("")
}

// answer sets the headers of a transfer that was done.
func (a *rdmaAsk) answer(resp *response, moved int64) {
	if a.bare {
		return
	}
	status := resp.status
	if status == 0 {
		status = http.StatusOK
	}
	resp.set(headerReply, strconv.Itoa(status))
	resp.set(headerTransferred, strconv.FormatInt(moved, 10))
	if a.left {
		resp.set(headerFence, "client")
	}
}

// sendWindow writes a range of an object into the client's window.
func (g *Gateway) sendWindow(ctx context.Context, r *request, object store.Reader, resp *response) error {
	n := resp.span.Length
	err := g.transfer(ctx, r, n, func(ctx context.Context, t RDMATransfer) error {
		if err := object.WriteRange(ctx, t, resp.span.Offset, n); err != nil {
			return err
		}
		fenced, err := t.Flush()
		r.rdma.left = !fenced
		return err
	})
	if err == nil && r.rdma.out != n {
		err = io.ErrShortWrite
	}
	if err != nil {
		return err
	}
	r.rdma.answer(resp, n)
	return nil
}

// receive calls put, which is to store the data of u. If the data are in the client's window, they can be
// read from u only meanwhile.
func (g *Gateway) receive(ctx context.Context, r *request, u *upload, put func() error) error {
	if r.rdma == nil {
		return put()
	}
	return g.transfer(ctx, r, u.sizeBytes, func(limited context.Context, t RDMATransfer) error {
		u.source, u.limited = t, limited
		return put()
	})
}

// windowETag is the ETag of what came by RDMA: the CRC64NVME and the size, not an MD5, which would cost
// several times what all the rest does. The part behind the dash says so to clients, as the ETags of
// multipart uploads do.
func windowETag(d store.Digests) string {
	return fmt.Sprintf("%016x%016x-1", d.CRC64NVME, uint64(d.SizeBytes))
}

// checkWindowBody refuses a request with a token that also has a body, or says something of one.
func (r *request) checkWindowBody(in *wire.Integrity) error {
	payload := r.identity.Payload
	switch {
	case r.HTTP.ContentLength != 0:
		return wire.Refuse("A request with an RDMA token must have Content-Length: 0 and no body.")
	case payload.Kind.Streaming() || len(in.Trailers) > 0:
		return wire.Refuse("A request with an RDMA token can't be aws-chunked: it has no body.")
	case in.HasMD5:
		return wire.Refuse("Content-MD5 does not go with an RDMA token: it is about the body, and there is none.")
	case payload.Kind == sigv4.PayloadSHA256 && payload.SHA256 != emptySHA256():
		return wire.Refuse("With an RDMA token x-amz-content-sha256 must be " + sigv4.UnsignedPayload +
			", or that of an empty body.")
	}
	return nil
}
