package gateway

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/millrace/millrace/s3/wire"
	"github.com/millrace/millrace/verbs"
	"github.com/millrace/millrace/verbs/token"
)

// hipobj-rc-v2 gives a client whose network has only reliable connections what x-amz-rdma-token gives others, at the price
// of a queue pair for each transfer. PREPARE names the object and both sides' queue pairs, READY makes the connection, moves
// the bytes, and does what a GetObject, PutObject or UploadPart does; CANCEL gives up. docs/rdma.md has the exchange.
const (
	pairPath     = "/.hipobj-rc/"
	pairProtocol = "hipobj-rc-v2"
	maxPairBytes = 1<<31 - 1 // the protocol's limit of one transfer
)

// The headers of hipobj-rc-v2, in canonical form.
const (
	headerProtocol       = "X-Amz-Rdma-Protocol"
	headerProtocolStatus = "X-Amz-Rdma-Protocol-Status"
	headerPSN            = "X-Amz-Rdma-Psn"
	headerCookie         = "X-Amz-Rdma-Cookie"
	headerPairOp         = "X-Amz-Rdma-Op"
	headerTarget         = "X-Amz-Rdma-Target"
	headerSize           = "X-Amz-Rdma-Size"
	headerOffset         = "X-Amz-Rdma-Offset"
	headerSession        = "X-Amz-Rdma-Session"
	headerQPN            = "X-Amz-Rdma-Qpn"
	headerMemoryAddr     = "X-Amz-Rdma-Mr-Addr"
	headerMemoryRKey     = "X-Amz-Rdma-Mr-Rkey"
	headerPairETag       = "X-Amz-Rdma-Etag"
	headerPairChecksum   = "X-Amz-Rdma-Checksum"
)

// pairOp tells the requests of hipobj-rc-v2 from those of S3: no bucket has such a name.
func pairOp(r *http.Request) wire.Op {
	name, ok := strings.CutPrefix(r.URL.Path, pairPath)
	if !ok || r.Method != http.MethodPost {
		return wire.Unknown
	}
	switch name {
	case "prepare":
		return wire.PrepareRDMA
	case "ready":
		return wire.ReadyRDMA
	case "cancel":
		return wire.CancelRDMA
	}
	return wire.Unknown
}

// doPair takes a request of hipobj-rc-v2 up to its answer.
func (g *Gateway) doPair(ctx context.Context, c *call, op wire.Op) (*response, error) {
	r := &c.request
	r.Request = &wire.Request{Op: op, HTTP: c.http}
	p, err := g.authenticate(ctx, r) // with it, all x-amz-* headers are signed
	if err != nil {
		return nil, err
	}
	pairs, ok := g.config.RDMA.(RDMAPairs)
	if !ok || r.Header(headerProtocol) != pairProtocol {
		return nil, &Declined{Reason: DeclinedPairs, Err: fmt.Errorf("no RDMA by %q here", r.Header(headerProtocol))}
	}
	var resp *response
	switch op {
	case wire.PrepareRDMA:
		resp, err = g.preparePair(ctx, p, r, pairs)
	case wire.ReadyRDMA:
		resp, err = g.readyPair(ctx, p, c)
	default:
		resp, err = g.cancelPair(r)
	}
	if err == nil {
		resp.set(headerProtocol, pairProtocol)
	}
	return resp, err
}

// preparePair is PREPARE.
func (g *Gateway) preparePair(ctx context.Context, p Principal, r *request, pairs RDMAPairs) (*response, error) {
	s, err := g.parsePrepare(r)
	if err != nil {
		return nil, err
	}
	s.accessKey = p.AccessKey
	if err := g.config.Authorise(ctx, p, s.inner); err != nil {
		return nil, err
	}
	ask := PairRequest{GID: s.remote.GID, Peer: peerAddr(r.HTTP)}
	if s.inner.Op == wire.GetObject {
		err = g.checkPairRange(ctx, s)
	} else {
		ask.StagingBytes = s.size
		_, err = g.store.Bucket(ctx, s.inner.Bucket)
	}
	if err != nil {
		return nil, err
	}
	if s.pair, err = pairs.Pair(ctx, ask); errors.Is(err, verbs.ErrTooLarge) {
		err = &wire.Error{Code: wire.RDMATooLarge, Cause: err}
	}
	if err != nil {
		return nil, err
	}
	local, staging := s.pair.Local(), s.pair.Staging()
	own := token.RC{
		Transport: token.TransportRC, QPN: local.QPN, GID: local.GID, Port: local.Port, LID: local.LID,
		RKey: staging.RKey, Addr: staging.Addr, LengthBytes: uint64(staging.SizeBytes),
	}
	if err := g.pairs.add(s); err != nil {
		s.pair.Close()
		return nil, err
	}
	resp := &response{}
	resp.set(headerReply, "200:"+own.String())
	resp.set(headerSession, s.id)
	resp.set(headerPSN, fmt.Sprintf("%06x", local.PSN))
	resp.set(headerQPN, strconv.FormatUint(uint64(local.QPN), 16))
	if staging.SizeBytes > 0 {
		resp.set(headerMemoryAddr, strconv.FormatUint(staging.Addr, 16))
		resp.set(headerMemoryRKey, strconv.FormatUint(uint64(staging.RKey), 16))
	}
	return resp, nil
}

// parsePrepare reads the headers of PREPARE.
func (g *Gateway) parsePrepare(r *request) (*pairSession, error) {
	h := headers{r: r}
	s := &pairSession{cookie: uint32(h.hex(headerCookie, 8, 8)), size: h.decimal(headerSize)}
	s.remote.PSN = uint32(h.hex(headerPSN, 6, 6))
	if r.Header(headerOffset) != "" {
		s.offset = h.decimal(headerOffset)
	}
	method := r.Header(headerPairOp)
	switch {
	case h.err != nil:
		return nil, h.err
	case s.cookie == 0:
		return nil, badHeader(headerCookie, "must not be 0")
	case s.remote.PSN == 0:
		return nil, badHeader(headerPSN, "must not be 0")
	case method != http.MethodGet && method != http.MethodPut:
		return nil, badHeader(headerPairOp, "must be GET or PUT")
	case s.size == 0:
		return nil, badHeader(headerSize, "must not be 0: an object of no bytes needs no RDMA")
	case s.size > maxPairBytes:
		return nil, &wire.Error{Code: wire.RDMATooLarge}
	case method == http.MethodPut && s.offset != 0:
		return nil, badHeader(headerOffset, "does not go with PUT")
	}
	if err := s.parseToken(r); err != nil {
		return nil, err
	}
	return s, s.parseTarget(r, method)
}

// parseToken reads the client's address. All zeros mean that it is on this very host: its GID is that of the request.
func (s *pairSession) parseToken(r *request) error {
	text := r.Header(headerToken)
	t, err := token.ParseRC(text)
	if err != nil {
		return badToken(err.Error())
	}
	if strings.Trim(text, "0") == "" {
		s.remote.GID = peerAddr(r.HTTP).As16()
		return nil
	}
	if t.Transport != token.TransportRC {
		return badToken("The token must be of a reliable connection.")
	}
	s.remote.QPN, s.remote.GID, s.remote.LID, s.remote.Port = t.QPN, t.GID, t.LID, t.Port
	return nil
}

// parseTarget reads which object it is about: a request of its own, which is signed as a header of this one.
func (s *pairSession) parseTarget(r *request, method string) error {
	target := r.Header(headerTarget)
	u, err := url.ParseRequestURI(target)
	if err != nil || !strings.HasPrefix(target, "/") || u.Host != "" {
		return badHeader(headerTarget, "must be /bucket/key, with a query perhaps")
	}
	inner := (&http.Request{
		Method: method, URL: u, Header: http.Header{}, RemoteAddr: r.HTTP.RemoteAddr, Body: http.NoBody,
	}).WithContext(r.HTTP.Context())
	if s.inner, err = wire.Parse(inner, nil); err != nil {
		return err
	}
	switch s.inner.Op {
	case wire.GetObject, wire.PutObject, wire.UploadPart:
		return nil
	}
	return badHeader(headerTarget, "must be an object to get or put, or a part to upload")
}

// checkPairRange makes sure that the object has the bytes that are asked for.
func (g *Gateway) checkPairRange(ctx context.Context, s *pairSession) error {
	o, err := g.store.Stat(ctx, s.inner.Bucket, s.inner.Key)
	if err == nil && s.offset > o.SizeBytes-s.size {
		err = &wire.Error{Code: wire.InvalidRange, Fields: []wire.Field{
			{Name: "ActualObjectSize", Value: strconv.FormatInt(o.SizeBytes, 10)},
		}}
	}
	if err == nil {
		s.whole = s.offset == 0 && s.size == o.SizeBytes
	}
	return err
}

// cancelPair is CANCEL. A session that is not there has ended: that is what was wanted.
func (g *Gateway) cancelPair(r *request) (*response, error) {
	h := headers{r: r}
	cookie := uint32(h.hex(headerCookie, 8, 8))
	if h.err != nil {
		return nil, h.err
	}
	if s := g.pairs.find(r.Header(headerSession)); s != nil {
		if !s.ownedBy(r.identity.AccessKey, cookie) {
			return nil, &wire.Error{Code: wire.AccessDenied}
		}
		g.pairs.cancel(s)
	}
	return &response{status: http.StatusNoContent}, nil
}

// ownedBy compares without telling by its time how much is right.
func (s *pairSession) ownedBy(accessKey string, cookie uint32) bool {
	return subtle.ConstantTimeCompare([]byte(s.accessKey), []byte(accessKey)) == 1 &&
		subtle.ConstantTimeEq(int32(s.cookie), int32(cookie)) == 1
}

// headers reads numbers out of the headers of a request, and keeps the first error.
type headers struct {
	r   *request
	err error
}

// hex reads a number of least to most hexadecimal digits, without 0x.
func (h *headers) hex(name string, least, most int) uint64 {
	text := h.r.Header(name)
	v, err := strconv.ParseUint(text, 16, 64)
	if (err != nil || len(text) < least || len(text) > most || text[0] == '+') && h.err == nil {
		h.err = badHeader(name, fmt.Sprintf("must have %d to %d hexadecimal digits", least, most))
	}
	return v
}

func (h *headers) decimal(name string) int64 {
	text := h.r.Header(name)
	v, err := strconv.ParseInt(text, 10, 64)
	if (err != nil || v < 0 || text[0] == '+') && h.err == nil {
		h.err = badHeader(name, "must be a number")
	}
	return v
}

func badHeader(name, problem string) *wire.Error {
	return &wire.Error{Code: wire.InvalidRequest, Message: "The header " + strings.ToLower(name) + " " + problem + "."}
}

// remoteAt is the peer's address with the queue pair number that READY says.
func (s *pairSession) remoteAt(qpn uint32) (verbs.RCAddress, error) {
	if s.remote.QPN != 0 && s.remote.QPN != qpn {
		return verbs.RCAddress{}, badHeader(headerQPN, "is not that of the token")
	}
	a := s.remote
	a.QPN = qpn
	return a, nil
}
