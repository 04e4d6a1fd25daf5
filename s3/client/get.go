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
// is resumed where it broke. After an error w may hold a part of the bytes.
func (c *Client) Get(ctx context.Context, bucket, key string, w io.Writer, o GetOptions) (GetResult, error) {
	result := GetResult{Transfer: c.transfer}
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
		n, err := c.copyBody(w, sum, resp.Body)
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

// copyBody copies src to w and sum (which may be nil) through a buffer of the client's.
func (c *Client) copyBody(w io.Writer, sum hash.Hash, src io.Reader) (int64, error) {
	buf := c.buffers.Get().(*[]byte)
	defer c.buffers.Put(buf)
	var total int64
	for {
		n, err := src.Read(*buf)
		if n > 0 {
			if sum != nil {
				sum.Write((*buf)[:n])
			}
			if _, err := w.Write((*buf)[:n]); err != nil {
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
