package client

import (
	"context"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/millrace/millrace/s3/checksum"
	"github.com/millrace/millrace/verbs"
)

// ErrTooSmall is returned for an object, or a range, that does not fit into the memory it should go to.
var ErrTooSmall = errors.New("the memory is too small for the object")

// GetBuffer fills dst from its start with the object, or a range of it, by one request. By RDMA the server writes
// straight into dst, which must be registered (Register) for that; an object of 4 GiB or more goes by
// DownloadBuffer or in ranges. After an error the content of dst is undefined, and as by io.Reader all of dst may be
// used as scratch space meanwhile.
func (c *Client) GetBuffer(ctx context.Context, bucket, key string, dst []byte, o GetOptions) (GetResult, error) {
	if o.Length > int64(len(dst)) {
		return GetResult{}, fmt.Errorf("GetObject %s/%s: %w", bucket, key, ErrTooSmall)
	}
	window := dst
	if o.Length > 0 {
		window = dst[:o.Length]
	} else if len(dst) > verbs.MaxTokenBytes {
		window = dst[:verbs.MaxTokenBytes]
	}
	var info Info
	r := call{op: "GetObject", method: http.MethodGet, bucket: bucket, key: key, header: o.header(),
		accept: func(got *reply) error {
			info = infoOf(got.header)
			return checkSpan(got, o, &info)
		}}
	got, transfer, err := c.byRDMA(ctx, &r, window, verbs.RemoteWrite)
	if err != nil {
		return GetResult{}, err
	}
	if transfer.Transport != TransportRDMA {
		return c.getBody(ctx, bucket, key, o, &filler{window}, transfer)
	}
	result := GetResult{Transfer: transfer, Bytes: got.bytes, Info: info}
	if !o.whole() || o.NoVerify || result.Info.Checksum == checksum.None {
		return result, nil
	}
	sum := checksum.New(result.Info.Checksum)
	sum.Write(dst[:got.bytes])
	return result, finishGet(&result, sum, got.bytes, bucket+"/"+key)
}

// checkSpan compares what was moved with what was asked for, and sets the size of the object.
func checkSpan(got *reply, o GetOptions, info *Info) error {
	if o.whole() {
		if got.status != http.StatusOK {
			return fmt.Errorf("status %d for the whole object", got.status)
		}
		info.SizeBytes = got.bytes
		return nil
	}
	first, last, total, ok := parseContentRange(got.header.Get("Content-Range"))
	if got.status != http.StatusPartialContent || !ok {
		return fmt.Errorf("status %d for a range, Content-Range %q", got.status, got.header.Get("Content-Range"))
	}
	end := total
	if o.Length > 0 {
		end = min(end, o.Offset+o.Length)
	}
	if first != o.Offset || last+1 != end || got.bytes != end-first {
		return fmt.Errorf("%d bytes moved, of range %d-%d/%d", got.bytes, first, last, total)
	}
	info.SizeBytes = total
	return nil
}

func parseContentRange(text string) (first, last, total int64, ok bool) {
	text, ok = strings.CutPrefix(text, "bytes ")
	span, size, ok1 := strings.Cut(text, "/")
	from, to, ok2 := strings.Cut(span, "-")
	var err1, err2, err3 error
	first, err1 = strconv.ParseInt(from, 10, 64)
	last, err2 = strconv.ParseInt(to, 10, 64)
	total, err3 = strconv.ParseInt(size, 10, 64)
	ok = ok && ok1 && ok2 && errors.Join(err1, err2, err3) == nil && 0 <= first && first <= last && last < total
	return first, last, total, ok
}

// getPieces gets an object, or a range, piece by piece through buffers of the pool: while one is written to w
// the next is on its way.
func (c *Client) getPieces(
	ctx context.Context, d *Device, bucket, key string, w io.Writer, o GetOptions,
) (GetResult, error) {
	info, err := c.Head(ctx, bucket, key)
	if Code(err) != "" { // the answer to a HEAD has no words for it
		return c.GetBuffer(ctx, bucket, key, nil, o)
	}
	if err != nil {
		return GetResult{}, err
	}
	off, end := o.Offset, info.SizeBytes
	if o.Length > 0 {
		end = min(end, off+o.Length)
	}
	if off >= end { // nothing, or an error that the server has words for
		return c.GetBuffer(ctx, bucket, key, nil, o)
	}
	if o.IfMatch == "" {
		o.IfMatch = info.ETag
	}
	result := GetResult{Info: info}
	var sum hash.Hash
	if o.whole() && !o.NoVerify && info.Checksum != checksum.None {
		sum = checksum.New(info.Checksum)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var via carried
	for p := range c.pieces(ctx, d, bucket, key, off, end, o.IfMatch) {
		if err == nil {
			err = p.err
		}
		if err == nil {
			via.add(p.transfer)
			if sum != nil {
				sum.Write(p.buf)
			}
			_, err = w.Write(p.buf)
		}
		if err == nil {
			result.Bytes += int64(len(p.buf))
		} else {
			cancel()
		}
		if p.buf != nil {
			d.pool.give(p.buf)
		}
	}
	result.Transfer = via.total()
	if err != nil {
		return result, err
	}
	return result, finishGet(&result, sum, end-off, bucket+"/"+key)
}

// piece is a part of an object in a buffer of the pool, or an error.
type piece struct {
	buf      []byte
	transfer Transfer
	err      error
}

// pieces gets the bytes [off, end) in order, one piece ahead of the receiver. The channel must be read until it is
// closed, which is after the first error or soon after ctx has ended.
func (c *Client) pieces(ctx context.Context, d *Device, bucket, key string, off, end int64, etag string) <-chan piece {
	out := make(chan piece)
	go func() {
		defer close(out)
		for off < end {
			var p piece
			if p.buf, p.err = d.pool.take(ctx, int(min(end-off, DefaultPartBytes, d.pool.sizeBytes()/2))); p.err == nil {
				p.transfer, p.err = c.getPart(ctx, bucket, key, p.buf, off, etag)
			}
			off += int64(len(p.buf))
			out <- p
			if p.err != nil {
				return
			}
		}
	}()
	return out
}

// getPart fills buf with the bytes of an object from off on.
func (c *Client) getPart(ctx context.Context, bucket, key string, buf []byte, off int64, etag string) (Transfer, error) {
	n := int64(len(buf))
	o := GetOptions{Offset: off, Length: n, IfMatch: etag, NoVerify: true}
	result, err := c.GetBuffer(ctx, bucket, key, buf, o)
	if err == nil && result.Bytes != n {
		err = fmt.Errorf("GetObject %s/%s: %d bytes came, not %d", bucket, key, result.Bytes, n)
	}
	return result.Transfer, err
}
