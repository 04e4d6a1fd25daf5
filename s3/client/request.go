package client

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const (
	retryFirst = 50 * time.Millisecond
	retryLast  = 5 * time.Second
	// maxXMLBytes limits an XML answer: a page of 1,000 keys of 1,024 escaped bytes fits.
	maxXMLBytes = 16 << 20
)

// call is one S3 request before it is signed.
type call struct {
	op          string // for errors
	method      string
	bucket, key string
	query       url.Values
	header      http.Header // may be nil; not changed
	// body yields a fresh reader of size bytes for each try; nil for none.
	body func() io.Reader
	size int64
	// accept judges an answer by RDMA, in which the reply is right and not more was moved than the window holds; it may
	// be nil.
	accept func(*reply) error
	// once: the call is not repeated after an answer was perhaps lost.
	once bool
}

func (r *call) resource() string {
	if r.key == "" {
		return r.bucket
	}
	return r.bucket + "/" + r.key
}

// do sends the call and returns the successful answer (2xx); its body is the caller's to close.
// Answers that say "later" and broken connections are tried again.
func (c *Client) do(ctx context.Context, r call) (*http.Response, error) {
	for try := 0; ; try++ {
		resp, err := c.send(ctx, &r)
		if err == nil {
			return resp, nil
		}
		if try >= c.retries || !repeatable(ctx, &r, err) {
			return nil, err
		}
		if err := pause(ctx, backoff(try)); err != nil {
			return nil, err
		}
	}
}

// send makes one try.
func (c *Client) send(ctx context.Context, r *call) (*http.Response, error) {
	req := c.request(ctx, r)
	if err := c.sign(req, ""); err != nil {
		return nil, err
	}
	// Not http.Client: a redirect would carry a signature that is wrong for its target.
	resp, err := c.transport.RoundTrip(req)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", r.op, r.resource(), err)
	}
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	return nil, errorOf(r.op, r.resource(), resp)
}

// request makes a request that is not signed.
func (c *Client) request(ctx context.Context, r *call) *http.Request {
	u := c.base
	u.Path = "/" + r.bucket
	if r.key != "" {
		u.Path += "/" + r.key
	}
	u.RawPath = escapePath(u.Path)
	u.RawQuery = strings.ReplaceAll(r.query.Encode(), "+", "%20")
	req := (&http.Request{
		Method: r.method, URL: &u, Host: c.host, Header: make(http.Header, len(r.header)+4),
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}).WithContext(ctx)
	for name, values := range r.header {
		req.Header[name] = values
	}
	if r.body != nil {
		req.ContentLength = r.size
		req.Body = http.NoBody
		if r.size > 0 {
			req.Body = io.NopCloser(r.body())
			req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(r.body()), nil }
		}
	}
	return req
}

// escapePath encodes every byte but the unreserved ones and "/", as Signature V4 wants it.
func escapePath(path string) string {
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	b.Grow(len(path) + 16)
	for i := range len(path) {
		ch := path[i]
		switch {
		case 'a' <= ch && ch <= 'z', 'A' <= ch && ch <= 'Z', '0' <= ch && ch <= '9',
			ch == '-', ch == '.', ch == '_', ch == '~', ch == '/':
			b.WriteByte(ch)
		default:
			b.WriteByte('%')
			b.WriteByte(hex[ch>>4])
			b.WriteByte(hex[ch&15])
		}
	}
	return b.String()
}

// repeatable tells whether another try of r may help, and does no harm.
func repeatable(ctx context.Context, r *call, err error) bool {
	if ctx.Err() != nil {
		return false
	}
	var e *Error
	if !errors.As(err, &e) {
		return !r.once // a broken connection
	}
	switch e.StatusCode {
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
		return true
	case http.StatusInternalServerError, http.StatusBadGateway, http.StatusGatewayTimeout:
		return !r.once
	}
	return e.Code == "RequestTimeout" && !r.once
}

// backoff is the pause after the try-th failure: doubling, with half of it left to chance.
func backoff(try int) time.Duration {
	d := min(retryFirst<<min(try, 10), retryLast)
	return d/2 + rand.N(d/2+1)
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// discard sends a call whose answer has no body that matters, and returns its header.
func (c *Client) discard(ctx context.Context, r call) (http.Header, error) {
	resp, err := c.do(ctx, r)
	if err != nil {
		return nil, err
	}
	_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, maxErrorBytes))
	resp.Body.Close()
	return resp.Header, err
}

// document sends a call whose answer is XML, and returns that.
func (c *Client) document(ctx context.Context, r call) ([]byte, error) {
	resp, err := c.do(ctx, r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := readAll(resp)
	if err != nil {
		return nil, fmt.Errorf("%s %s: read answer: %w", r.op, r.resource(), err)
	}
	return body, nil
}

// readAll reads a body of at most maxXMLBytes into a buffer that has its size at once, if it is known.
func readAll(resp *http.Response) ([]byte, error) {
	var b bytes.Buffer
	if n := resp.ContentLength; n > 0 && n <= maxXMLBytes {
		b.Grow(int(n) + bytes.MinRead)
	}
	_, err := b.ReadFrom(io.LimitReader(resp.Body, maxXMLBytes))
	return b.Bytes(), err
}

// decode sends a call whose answer is the XML of to.
func (c *Client) decode(ctx context.Context, r call, to any) error {
	body, err := c.document(ctx, r)
	if err != nil {
		return err
	}
	// CompleteMultipartUpload may fail after a status of 200 was sent.
	var failed errorXML
	if xml.Unmarshal(body, &failed) == nil && failed.Code != "" {
		return &Error{Op: r.op, StatusCode: http.StatusInternalServerError, Code: failed.Code,
			Message: failed.Message, Resource: r.resource(), RequestID: failed.RequestID}
	}
	if err := xml.Unmarshal(body, to); err != nil {
		return fmt.Errorf("%s %s: malformed answer: %w", r.op, r.resource(), err)
	}
	return nil
}

func decimal(n int64) string { return strconv.FormatInt(n, 10) }
