package gateway

import (
	"context"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"github.com/millrace/millrace/s3/sigv4"
	"github.com/millrace/millrace/s3/store"
	"github.com/millrace/millrace/s3/wire"
)

// request is what a handler sees.
type request struct {
	*wire.Request
	identity sigv4.Identity
	body     *bodyReader
	rdma     *rdmaAsk // nil: none is asked for
}

// response is the answer of a handler: headers, and either a document, or a range of an object,
// or nothing more.
type response struct {
	status   int // 0: 200
	header   []field
	document []byte // XML
	object   store.Reader
	span     wire.Span // of object
	length   int64     // Content-Length of an answer to HEAD
}

type field struct{ name, value string }

func (r *response) set(name, value string) { r.header = append(r.header, field{name, value}) }

func (r *response) setUnlessEmpty(name, value string) {
	if value != "" {
		r.set(name, value)
	}
}

func document(b []byte) *response { return &response{document: b} }

// call is one request on its way, from the first byte to the last. It is the io.Writer that an
// object is written to.
type call struct {
	request
	gateway *Gateway
	w       http.ResponseWriter
	control *http.ResponseController
	http    *http.Request
	id      string
	body    bodyReader

	resp     *response
	started  bool // headers are sent
	deadline time.Time
	status   int
	code     wire.Code
	declined string // why RDMA was
	cause    error
	written  int64
	writeErr error // of the connection
}

func newCall(g *Gateway, w http.ResponseWriter, hr *http.Request, now time.Time) *call {
	c := &call{gateway: g, w: w, http: hr, id: newRequestID(), control: http.NewResponseController(w)}
	c.body = bodyReader{body: hr.Body, control: c.control, stall: g.config.Limits.Stall}
	c.request.body = &c.body
	if hr.Header.Get("Expect") != "" {
		c.extend(now) // for the 100 Continue
	}
	return c
}

func newRequestID() string {
	var raw [8]byte
	n := rand.Uint64()
	for i := range raw {
		raw[i] = byte(n >> (8 * i))
	}
	var text [16]byte
	hex.Encode(text[:], raw[:])
	for i, c := range text {
		if c >= 'a' {
			text[i] = c - 'a' + 'A'
		}
	}
	return string(text[:])
}

func (c *call) op() wire.Op {
	if c.request.Request == nil {
		return wire.Unknown
	}
	return c.request.Op
}

// extend gives the client time to take what is written. It costs a timer, so it is not done for
// every write.
func (c *call) extend(now time.Time) {
	stall := c.gateway.config.Limits.Stall
	if stall <= 0 || c.deadline.Sub(now) > stall-stall/4 {
		return
	}
	c.deadline = now.Add(stall)
	_ = c.control.SetWriteDeadline(c.deadline) // not every ResponseWriter has it
}

// finish writes the answer. It returns false if what the client has got is not all of it.
func (c *call) finish(ctx context.Context, resp *response, err error) bool {
	c.extend(time.Now())
	if err != nil {
		c.fail(err)
		return true
	}
	c.resp = resp
	switch {
	case resp.object != nil:
		return c.writeObject(ctx)
	case resp.document != nil:
		c.start(int64(len(resp.document)), "application/xml")
		return c.write(resp.document)
	}
	c.start(resp.length, "")
	return true
}

// writeObject streams the object. Headers are sent with its first bytes, so a store that can't even read
// those is answered with an error.
func (c *call) writeObject(ctx context.Context) bool {
	r, span := c.resp.object, c.resp.span
	err := r.WriteRange(ctx, c, span.Offset, span.Length)
	if closeErr := r.Close(); closeErr != nil {
		c.gateway.log.Error("close object", "error", closeErr, "requestID", c.id)
	}
	if err == nil && c.written != span.Length {
		err = io.ErrShortWrite
	}
	switch {
	case err == nil && !c.started:
		c.start(0, "")
	case err != nil && !c.started:
		c.fail(err)
	case err != nil:
		c.code, c.cause = c.gateway.render(&c.request, err).Code, err
		if c.writeErr != nil && errors.Is(err, c.writeErr) {
			c.code = clientGone
		}
		return false
	}
	return true
}

// Write implements io.Writer for the store.
func (c *call) Write(p []byte) (int, error) {
	if !c.started {
		c.start(c.resp.span.Length, "")
	} else {
		c.extend(time.Now())
	}
	n, err := c.w.Write(p)
	c.written += int64(n)
	c.writeErr = err
	return n, err
}

func (c *call) write(p []byte) bool {
	n, err := c.w.Write(p)
	c.written += int64(n)
	if err != nil && !errors.Is(err, http.ErrBodyNotAllowed) {
		c.code, c.cause = clientGone, err
		return false
	}
	return true
}

// start sends the status and the headers.
func (c *call) start(length int64, contentType string) {
	c.started = true
	c.status = c.resp.status
	if c.status == 0 {
		c.status = http.StatusOK
	}
	h := c.w.Header()
	values := make([]string, 0, len(c.resp.header)+5) // one allocation for all of them
	set := func(name, value string) {
		values = append(values, value)
		h[name] = values[len(values)-1 : len(values) : len(values)]
	}
	set("Server", "Millrace")
	set("X-Amz-Request-Id", c.id)
	set("X-Amz-Id-2", c.gateway.config.HostID)
	if contentType != "" {
		set("Content-Type", contentType)
	}
	if c.status != http.StatusNoContent && c.status != http.StatusNotModified {
		set("Content-Length", strconv.FormatInt(length, 10))
	}
	for _, f := range c.resp.header {
		set(f.name, f.value)
	}
	c.w.WriteHeader(c.status)
}

// fail answers with an error.
func (c *call) fail(err error) {
	e := c.gateway.render(&c.request, err)
	c.code, c.cause = e.Code, err
	c.resp = &response{status: e.HTTPStatus()}
	if e.Code == wire.RDMANotSupported || e.Code == wire.RDMATransferFailed {
		c.denyRDMA(e, err)
	}
	for _, f := range e.Fields {
		switch f.Name {
		case "ActualObjectSize":
			c.resp.set("Content-Range", "bytes */"+f.Value)
		case "ETag", "Last-Modified":
			if e.Code == wire.NotModified {
				c.resp.set(f.Name, f.Value)
			}
		}
	}
	if e.HTTPStatus() == http.StatusServiceUnavailable {
		c.resp.set("Retry-After", "1")
	}
	if c.http.Method == http.MethodHead || e.Code == wire.NotModified {
		c.start(0, "")
		return
	}
	resource := c.http.URL.Path
	if c.request.Request != nil {
		resource = c.request.Resource()
	}
	body := wire.AppendError(nil, e, resource, c.id, c.gateway.config.HostID)
	c.start(int64(len(body)), "application/xml")
	c.write(body)
}

// denyRDMA tells the client to come again without RDMA, or with a fresh token.
func (c *call) denyRDMA(e *wire.Error, err error) {
	var d *Declined
	if errors.As(err, &d) {
		c.declined = d.Reason
	}
	switch c.op() {
	case wire.PrepareRDMA, wire.ReadyRDMA, wire.CancelRDMA:
		if e.Code == wire.RDMANotSupported {
			c.resp.set(headerProtocolStatus, "unsupported")
		}
		return
	}
	if c.rdma == nil || !c.rdma.bare {
		c.resp.set(headerReply, strconv.Itoa(e.HTTPStatus()))
	}
}

// logEvent logs a request: at debug level, and at error level if it is the server's fault.
func (c *call) logEvent(ctx context.Context, e Event) {
	level := slog.LevelDebug
	if e.Code == wire.InternalError {
		level = slog.LevelError
	}
	if !c.gateway.log.Enabled(ctx, level) {
		return
	}
	attributes := []slog.Attr{
		slog.String("requestID", c.id), slog.String("op", e.Op.String()), slog.Int("status", e.Status),
		slog.String("remote", c.http.RemoteAddr), slog.Duration("duration", e.Duration),
		slog.Int64("bytesIn", e.BytesIn), slog.Int64("bytesOut", e.BytesOut),
	}
	if c.request.Request != nil {
		attributes = append(attributes, slog.String("bucket", c.Bucket), slog.String("key", c.Key))
	}
	if c.identity.AccessKey != "" {
		attributes = append(attributes, slog.String("accessKey", c.identity.AccessKey))
	}
	if e.Code != "" {
		attributes = append(attributes, slog.String("code", string(e.Code)))
	}
	if e.Transport != TransportHTTP {
		attributes = append(attributes, slog.String("transport", e.Transport))
	}
	if e.Declined != "" {
		attributes = append(attributes, slog.String("declined", e.Declined))
	}
	if level == slog.LevelError && c.cause != nil {
		attributes = append(attributes, slog.Any("error", c.cause))
	}
	c.gateway.log.LogAttrs(ctx, level, "s3 request", attributes...)
}
