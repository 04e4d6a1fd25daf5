package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"

	"github.com/millrace/millrace/s3/checksum"
)

// copyBytes is the size of the buffers between the connection and the writer.
const copyBytes = 256 << 10

// GetOptions say which bytes, and how they are checked. The zero value is the whole object.
type GetOptions struct {
	Offset int64
	Length int64 // 0 means to the end
	// IfMatch is the ETag that the object must have, or "".
	IfMatch string
	// NoVerify leaves out the comparison with the checksum of the whole object.
	NoVerify bool
}

func (o GetOptions) whole() bool { return o.Offset == 0 && o.Length == 0 }

func (o GetOptions) header() http.Header {
	h := http.Header{}
	switch {
	case o.Length > 0:
		h.Set("Range", "bytes="+decimal(o.Offset)+"-"+decimal(o.Offset+o.Length-1))
	case o.Offset > 0:
		h.Set("Range", "bytes="+decimal(o.Offset)+"-")
	}
	if o.IfMatch != "" {
		h.Set("If-Match", `"`+o.IfMatch+`"`)
	}
	if o.whole() && !o.NoVerify {
		h.Set("X-Amz-Checksum-Mode", "ENABLED")
	}
	return h
}

// GetResult is what a GET gave.
type GetResult struct {
	Transfer
	Info     Info
	Bytes    int64 // that were written
	Verified bool  // against the server's checksum of the whole object
}

// Get writes the object, or a range of it, to w in order. A connection that breaks in the middle
// is resumed where it broke. After an error w may hold a part of the bytes. By RDMA the bytes come in
// pieces of DefaultPartBytes through the pool of the device.
func (c *Client) Get(ctx context.Context, bucket, key string, w io.Writer, o GetOptions) (GetResult, error) {
	d, without, err := c.path.ready()
	switch {
	case err != nil:
		return GetResult{}, err
	case d != nil:
		return c.getPieces(ctx, d, bucket, key, w, o)
	}
	return c.getBody(ctx, bucket, key, o, &copier{client: c, w: w}, without)
}

// taker takes the body of an answer. Once it has returned the error of a reader it may be called again, with
// the bytes that follow.
type taker interface {
	// take reads src, of which length bytes are expected (-1: unknown), and writes the bytes to sum too, unless
	// that is nil. An error of src is a readError.
	take(src io.Reader, length int64, sum hash.Hash) (int64, error)
}

// getBody gets an object, or a range, in the body of an answer.
func (c *Client) getBody(
	ctx context.Context, bucket, key string, o GetOptions, to taker, transfer Transfer,
) (GetResult, error) {
	c.path.counts.fell(transfer)
	result := GetResult{Transfer: transfer}
	var sum hash.Hash
	rest, expected := o, int64(-1)
	for try := 0; ; try++ {
		resp, err := c.do(ctx, call{op: "GetObject", method: http.MethodGet, bucket: bucket, key: key, header: rest.header()})
		if err != nil {
			return result, err
		}
		if expected < 0 {
			result.Info, expected = infoOf(resp.Header), resp.ContentLength
			if o.whole() && !o.NoVerify && result.Info.Checksum != checksum.None {
				sum = checksum.New(result.Info.Checksum)
			}
			rest.IfMatch = result.Info.ETag
		} else if rest.Offset > 0 && resp.StatusCode != http.StatusPartialContent {
			resp.Body.Close()
			return result, fmt.Errorf("GetObject %s/%s: the server does not resume", bucket, key)
		}
		n, err := to.take(resp.Body, resp.ContentLength, sum)
		resp.Body.Close()
		result.Bytes += n
		rest.Offset += n
		if rest.Length > 0 {
			rest.Length -= n
		}
		if err == nil {
			break
		}
		var broken *readError
		if !errors.As(err, &broken) || try >= c.retries || ctx.Err() != nil {
			return result, fmt.Errorf("GetObject %s/%s: %w", bucket, key, err)
		}
		if err := pause(ctx, backoff(try)); err != nil {
			return result, err
		}
	}
	return result, finishGet(&result, sum, expected, bucket+"/"+key)
}

// finishGet compares length and checksum of what came.
func finishGet(result *GetResult, sum hash.Hash, expected int64, resource string) error {
	if expected >= 0 && result.Bytes != expected {
		return fmt.Errorf("GetObject %s: %d bytes came, not %d", resource, result.Bytes, expected)
	}
	if sum == nil {
		return nil
	}
	if !bytes.Equal(sum.Sum(nil), result.Info.ChecksumValue) {
		return fmt.Errorf("GetObject %s: %w", resource, ErrChecksum)
	}
	result.Verified = true
	return nil
}

// readError marks an error of the connection, as against one of the writer.
type readError struct{ err error }

func (e *readError) Error() string { return e.err.Error() }
func (e *readError) Unwrap() error { return e.err }

// copier takes a body to a writer, through a buffer of the client's.
type copier struct {
	client *Client
	w      io.Writer
}

func (t *copier) take(src io.Reader, _ int64, sum hash.Hash) (int64, error) {
	buf := t.client.buffers.Get().(*[]byte)
	defer t.client.buffers.Put(buf)
	var total int64
	for {
		n, err := src.Read(*buf)
		if n > 0 {
			if sum != nil {
				sum.Write((*buf)[:n])
			}
			if _, err := t.w.Write((*buf)[:n]); err != nil {
				return total, err
			}
			total += int64(n)
		}
		if err == io.EOF {
			return total, nil
		}
		if err != nil {
			return total, &readError{err}
		}
	}
}

// filler takes a body to memory, with no buffer in between.
type filler struct{ rest []byte }

func (t *filler) take(src io.Reader, length int64, sum hash.Hash) (int64, error) {
	if length > int64(len(t.rest)) {
		return 0, fmt.Errorf("%d bytes into %d: %w", length, len(t.rest), ErrTooSmall)
	}
	var total int64
	for {
		if len(t.rest) == 0 {
			return total, t.end(src)
		}
		n, err := src.Read(t.rest)
		if sum != nil {
			sum.Write(t.rest[:n])
		}
		t.rest = t.rest[n:]
		total += int64(n)
		if err == io.EOF {
			return total, nil
		}
		if err != nil {
			return total, &readError{err}
		}
	}
}

// end wants nothing more.
func (t *filler) end(src io.Reader) error {
	var more [1]byte
	switch n, err := io.ReadFull(src, more[:]); {
	case n > 0:
		return ErrTooSmall
	case err == io.EOF:
		return nil
	default:
		return &readError{err}
	}
}
