package gateway

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/millrace/millrace/s3/wire"
	"github.com/millrace/millrace/verbs"
)

// Limits of the sessions of hipobj-rc-v2.
const (
	maxPairSessions = 64
	// pairWait is how long a session waits for its READY.
	pairWait = 10 * time.Second
)

// pairSession is a transfer between its PREPARE and its end.
type pairSession struct {
	id           string // 32 hexadecimal digits, random
	accessKey    string
	cookie       uint32
	inner        *wire.Request // what is to be done
	offset, size int64
	whole        bool            // the range is all of the object
	remote       verbs.RCAddress // of the client; its QPN is 0 if the token did not tell
	pair         Pair

	expire *time.Timer
	used   bool               // READY has come
	stop   context.CancelFunc // of the transfer; nil until then
	ended  chan struct{}      // closed when nothing is left of it
}

// pairSessions are the sessions there are.
type pairSessions struct {
	mu   sync.Mutex
	byID map[string]*pairSession
}

// add takes in a session, and gives it an ID. It expires by itself.
func (t *pairSessions) add(s *pairSession) error {
	var id [16]byte
	if _, err := rand.Read(id[:]); err != nil {
		return err
	}
	s.id, s.ended = hex.EncodeToString(id[:]), make(chan struct{})
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.byID) >= maxPairSessions {
		return &wire.Error{Code: wire.SlowDown}
	}
	if t.byID == nil {
		t.byID = map[string]*pairSession{}
	}
	t.byID[s.id] = s
	s.expire = time.AfterFunc(pairWait, func() { t.cancel(s) })
	return nil
}

func (t *pairSessions) find(id string) *pairSession {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byID[id]
}

// begin makes the session that of a READY; false if it is already that of another, or has ended.
func (t *pairSessions) begin(s *pairSession, stop context.CancelFunc) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s.used || t.byID[s.id] != s {
		return false
	}
	s.used, s.stop = true, stop
	s.expire.Stop()
	return true
}

// end closes the session.
func (t *pairSessions) end(s *pairSession) {
	s.pair.Close()
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.byID, s.id)
	close(s.ended)
}

// cancel ends a session, and returns when nothing is left of it: neither side's bytes move any more.
func (t *pairSessions) cancel(s *pairSession) {
	t.mu.Lock()
	waiting := !s.used && t.byID[s.id] == s
	s.used = true
	stop := s.stop
	t.mu.Unlock()
	switch {
	case waiting:
		s.expire.Stop()
		t.end(s)
	case stop != nil:
		stop()
		fallthrough
	default:
		<-s.ended
	}
}

// readyPair is READY: it does what a request with a token does, over a connection of its own.
func (g *Gateway) readyPair(ctx context.Context, p Principal, c *call) (*response, error) {
	h := headers{r: &c.request}
	cookie, qpn := uint32(h.hex(headerCookie, 8, 8)), uint32(h.hex(headerQPN, 1, 8))
	window := verbs.Window{}
	if c.Header(headerMemoryAddr) != "" || c.Header(headerMemoryRKey) != "" {
		window.Addr, window.RKey = h.hex(headerMemoryAddr, 1, 16), uint32(h.hex(headerMemoryRKey, 1, 8))
	}
	if h.err != nil {
		return nil, h.err
	}
	s := g.pairs.find(c.Header(headerSession))
	switch {
	case s == nil:
		return nil, &wire.Error{Code: wire.NoSuchRDMASession}
	case !s.ownedBy(p.AccessKey, cookie):
		return nil, &wire.Error{Code: wire.AccessDenied}
	case s.inner.Op == wire.GetObject && window.RKey == 0:
		return nil, badHeader(headerMemoryRKey, "must name the memory of a GET")
	}
	remote, err := s.remoteAt(qpn)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	if !g.pairs.begin(s, stop) {
		return nil, &wire.Error{Code: wire.RDMASessionBusy}
	}
	defer g.pairs.end(s)
	if err := g.config.Authorise(ctx, p, s.inner); err != nil {
		return nil, err
	}
	window.SizeBytes = s.size
	if err := s.pair.Connect(ctx, remote); err != nil {
		return nil, &wire.Error{Code: wire.RDMATransferFailed, Cause: err}
	}
	return g.movePair(ctx, p, c, s, window)
}

// movePair runs the operation that a session is for.
func (g *Gateway) movePair(ctx context.Context, p Principal, c *call, s *pairSession, window verbs.Window) (*response, error) {
	session := c.Header(headerSession)
	inner := &request{Request: s.inner, identity: c.identity, rdma: &rdmaAsk{window: window}}
	inner.rdma.open = func(ctx context.Context, r RDMARequest) (RDMATransfer, error) {
		window.SizeBytes = r.SizeBytes
		return s.pair.Transfer(ctx, window, s.cookie)
	}
	if s.inner.Op == wire.GetObject && !s.whole {
		inner.HTTP.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", s.offset, s.offset+s.size-1))
	}
	inner.HTTP.Header.Set("X-Amz-Checksum-Mode", "ENABLED")
	c.Request, c.rdma = s.inner, inner.rdma // it is that operation which is observed
	done, err := handlers[s.inner.Op](g, ctx, p, inner)
	var e *wire.Error
	if errors.As(err, &e) && e.Code == wire.RDMATransferFailed && errors.Is(err, context.DeadlineExceeded) {
		return nil, &wire.Error{Code: wire.RDMATransferTimeout, Cause: err}
	}
	if err != nil {
		return nil, err
	}
	resp := &response{}
	resp.set(headerSession, session)
	resp.set(headerCookie, fmt.Sprintf("%08x", s.cookie))
	resp.set(headerTransferred, strconv.FormatInt(inner.rdma.in+inner.rdma.out, 10))
	for _, f := range done.header {
		switch f.name {
		case "ETag":
			resp.set(headerPairETag, f.value)
		case "X-Amz-Checksum-Crc64nvme":
			resp.set(headerPairChecksum, "CRC64NVME "+f.value)
		}
	}
	return resp, nil
}
