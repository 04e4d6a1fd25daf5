package client

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/millrace/millrace/s3/checksum"
)

const (
	maxParts     = 10_000
	minPartBytes = 5 << 20
	maxPartBytes = 5 << 30
	// abortTimeout is for the clean-up after a failed upload.
	abortTimeout = 15 * time.Second
)

// UploadOptions say how a body is cut. The zero value is fine.
type UploadOptions struct {
	PutOptions
	PartBytes int64 // 0 is DefaultPartBytes; raised where SizeBytes would need too many parts
	Parallel  int   // parts in flight; 0 is DefaultParallel
	// SizeBytes is the size of the body where it is known; 0 is unknown.
	SizeBytes int64
	// Progress is called with the number of bytes that were stored, from many goroutines; it may be nil.
	Progress func(n int64)
}

func (o UploadOptions) workers() int {
	if o.Parallel <= 0 {
		return DefaultParallel
	}
	return min(o.Parallel, MaxParallel)
}

func (o UploadOptions) partBytes() int64 {
	part := o.PartBytes
	if part <= 0 {
		part = DefaultPartBytes
	}
	const align = 1 << 20
	least := (o.SizeBytes + maxParts - 1) / maxParts
	least = (least + align - 1) / align * align
	return min(max(part, least, minPartBytes), maxPartBytes)
}

// Upload stores body under the key: by one PUT where it fits in one part, else by a multipart
// upload with several parts in flight. It holds Parallel+1 parts in memory. An upload that fails
// is aborted. A body of unknown size may have up to 10,000 parts of PartBytes. By RDMA the parts go through the pool
// of the device, if at least one has room there.
func (c *Client) Upload(ctx context.Context, bucket, key string, body io.Reader, o UploadOptions) (PutResult, error) {
	stock := &stock{size: int(o.partBytes()), most: o.workers() + 1}
	device, _, err := c.path.ready()
	if err != nil {
		return PutResult{}, err
	}
	if device != nil && stock.size <= device.pool.size {
		stock.device = device
		defer stock.close()
	}
	first, err := stock.first(ctx)
	if err != nil {
		return PutResult{}, err
	}
	n, err := io.ReadFull(body, first)
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return c.putOnly(ctx, bucket, key, first[:n], o)
	case err != nil:
		return PutResult{}, fmt.Errorf("read body: %w", err)
	}
	u := &upload{client: c, bucket: bucket, key: key, o: o}
	return u.run(ctx, func(ctx context.Context) error { return u.putAll(ctx, first, body, stock) })
}

// UploadBuffer stores data, of any size, as Upload does. By RDMA the server reads data itself, which must be registered
// (Register) for that.
func (c *Client) UploadBuffer(ctx context.Context, bucket, key string, data []byte, o UploadOptions) (PutResult, error) {
	o.SizeBytes = int64(len(data))
	part := min(o.partBytes(), maxWindowBytes)
	if o.SizeBytes <= part {
		return c.putOnly(ctx, bucket, key, data, o)
	}
	u := &upload{client: c, bucket: bucket, key: key, o: o}
	return u.run(ctx, func(ctx context.Context) error {
		return parallel(ctx, o.workers(), int((o.SizeBytes+part-1)/part), func(ctx context.Context, i int) error {
			off := int64(i) * part
			return u.put(ctx, i+1, data[off:min(off+part, o.SizeBytes)])
		})
	})
}

// putOnly stores an upload of one part.
func (c *Client) putOnly(ctx context.Context, bucket, key string, data []byte, o UploadOptions) (PutResult, error) {
	result, err := c.Put(ctx, bucket, key, data, o.PutOptions)
	if err == nil && o.Progress != nil {
		o.Progress(result.SizeBytes)
	}
	return result, err
}

// stock makes the buffers of an upload: in the pool of the device, or in ordinary memory without one.
type stock struct {
	device *Device
	size   int
	most   int
	bufs   [][]byte // those that were made
}

// first returns the first buffer, for which it waits.
func (s *stock) first(ctx context.Context) ([]byte, error) {
	if s.device == nil {
		return s.next(), nil
	}
	buf, err := s.device.pool.take(ctx, s.size)
	if err == nil {
		s.bufs = append(s.bufs, buf)
	}
	return buf, err
}

// next returns a further buffer, or nil where there may or can be none.
func (s *stock) next() []byte {
	if len(s.bufs) == s.most {
		return nil
	}
	var buf []byte
	if s.device == nil {
		buf = make([]byte, s.size)
	} else if buf = s.device.pool.try(s.size); buf == nil {
		return nil
	}
	s.bufs = append(s.bufs, buf)
	return buf
}

func (s *stock) close() {
	for _, buf := range s.bufs {
		s.device.pool.give(buf)
	}
}

// upload is one multipart upload in progress.
type upload struct {
	client      *Client
	bucket, key string
	id          string
	o           UploadOptions

	via carried

	mu    sync.Mutex
	parts []uploadedPart // index is the number - 1
}

// run does the upload around putting its parts.
func (u *upload) run(ctx context.Context, putParts func(context.Context) error) (PutResult, error) {
	if err := u.create(ctx); err != nil {
		return PutResult{}, err
	}
	if err := putParts(ctx); err != nil {
		u.abort(ctx)
		return PutResult{}, err
	}
	result, err := u.complete(ctx)
	if err != nil {
		u.abort(ctx)
	}
	return result, err
}

type uploadedPart struct {
	etag string
	size int64
	crc  []byte // nil with NoChecksum
}

func (u *upload) create(ctx context.Context) error {
	header := u.o.header()
	header.Del("If-None-Match") // judged at the end
	if !u.o.NoChecksum {
		header.Set("X-Amz-Checksum-Algorithm", checksum.CRC64NVME.String())
		header.Set("X-Amz-Checksum-Type", checksum.FullObject.String())
	}
	var result struct {
		UploadID string `xml:"UploadId"`
	}
	err := u.client.decode(ctx, call{op: "CreateMultipartUpload", method: http.MethodPost, bucket: u.bucket,
		key: u.key, query: url.Values{"uploads": {""}}, header: header, once: true}, &result)
	if err == nil && result.UploadID == "" {
		return fmt.Errorf("CreateMultipartUpload %s/%s: the answer has no UploadId", u.bucket, u.key)
	}
	u.id = result.UploadID
	return err
}

// putAll reads the body part by part and has several parts stored at the same time.
func (u *upload) putAll(ctx context.Context, first []byte, body io.Reader, stock *stock) error {
	workers := u.o.workers()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	type part struct {
		number int
		data   []byte
	}
	parts := make(chan part)
	free := make(chan []byte, workers+1) // buffers to use again
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			for p := range parts {
				if err := u.put(ctx, p.number, p.data); err != nil {
					cancel(err)
				}
				free <- p.data[:stock.size]
			}
		})
	}
	data := first
	for number := 1; len(data) > 0; number++ {
		if number > maxParts {
			cancel(fmt.Errorf("body longer than %d parts of %d bytes", maxParts, stock.size))
			break
		}
		select {
		case parts <- part{number, data}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
		next := stock.next()
		if next == nil {
			next = <-free
		}
		n, err := io.ReadFull(body, next)
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			cancel(fmt.Errorf("read body: %w", err))
			break
		}
		data = next[:n]
	}
	close(parts)
	group.Wait()
	return context.Cause(ctx)
}

func (u *upload) put(ctx context.Context, number int, data []byte) error {
	header, text := http.Header{}, ""
	var crc []byte
	if !u.o.NoChecksum {
		h := checksum.New(checksum.CRC64NVME)
		h.Write(data)
		crc = h.Sum(nil)
		text = checksum.Encode(crc)
		header.Set(checksum.CRC64NVME.HeaderKey(), text)
	}
	answer, transfer, err := u.client.store(ctx, &call{op: "UploadPart", method: http.MethodPut, bucket: u.bucket,
		key: u.key, query: url.Values{"partNumber": {strconv.Itoa(number)}, "uploadId": {u.id}}, header: header}, data)
	if err != nil {
		return err
	}
	u.via.add(transfer)
	if _, err := echoed(text, answer.Get(checksum.CRC64NVME.HeaderKey())); err != nil {
		return fmt.Errorf("UploadPart %s/%s: %w", u.bucket, u.key, err)
	}
	u.mu.Lock()
	for len(u.parts) < number {
		u.parts = append(u.parts, uploadedPart{})
	}
	u.parts[number-1] = uploadedPart{etag: answer.Get("Etag"), size: int64(len(data)), crc: crc}
	u.mu.Unlock()
	if u.o.Progress != nil {
		u.o.Progress(int64(len(data)))
	}
	return nil
}

func (u *upload) complete(ctx context.Context) (PutResult, error) {
	type part struct {
		PartNumber int
		ETag       string
		CRC        string `xml:"ChecksumCRC64NVME,omitempty"`
	}
	body := struct {
		XMLName xml.Name `xml:"CompleteMultipartUpload"`
		Part    []part
	}{}
	var pieces []checksum.Part
	var size int64
	for i, p := range u.parts {
		row := part{PartNumber: i + 1, ETag: p.etag}
		if p.crc != nil {
			row.CRC = checksum.Encode(p.crc)
			pieces = append(pieces, checksum.Part{Value: p.crc, SizeBytes: p.size})
		}
		body.Part = append(body.Part, row)
		size += p.size
	}
	header, text := http.Header{}, ""
	if !u.o.NoChecksum {
		whole, err := checksum.FullObjectOf(checksum.CRC64NVME, pieces)
		if err != nil {
			return PutResult{}, err
		}
		text = checksum.Encode(whole)
		header.Set(checksum.CRC64NVME.HeaderKey(), text)
		header.Set("X-Amz-Checksum-Type", checksum.FullObject.String())
	}
	if u.o.IfNoneMatch {
		header.Set("If-None-Match", "*")
	}
	document, err := xml.Marshal(body)
	if err != nil {
		return PutResult{}, err
	}
	var answer struct {
		ETag              string
		ChecksumCRC64NVME string
	}
	if err = u.client.decode(ctx, call{op: "CompleteMultipartUpload", method: http.MethodPost, bucket: u.bucket,
		key: u.key, query: url.Values{"uploadId": {u.id}}, header: header,
		body: func() io.Reader { return bytes.NewReader(document) }, size: int64(len(document))}, &answer); err != nil {
		return PutResult{}, err
	}
	result := PutResult{Transfer: u.via.total(), ETag: strings.Trim(answer.ETag, `"`), SizeBytes: size,
		Parts: len(u.parts)}
	result.ChecksumVerified, err = echoed(text, answer.ChecksumCRC64NVME)
	return result, err
}

// abort gives back the space of the parts, also after the caller's context has ended.
func (u *upload) abort(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortTimeout)
	defer cancel()
	// Its error adds nothing to the one that led here.
	_, _ = u.client.discard(ctx, call{op: "AbortMultipartUpload", method: http.MethodDelete, bucket: u.bucket,
		key: u.key, query: url.Values{"uploadId": {u.id}}})
}
