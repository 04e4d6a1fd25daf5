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
// is aborted. A body of unknown size may have up to 10,000 parts of PartBytes.
func (c *Client) Upload(ctx context.Context, bucket, key string, body io.Reader, o UploadOptions) (PutResult, error) {
	first := make([]byte, o.partBytes())
	n, err := io.ReadFull(body, first)
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		result, err := c.Put(ctx, bucket, key, first[:n], o.PutOptions)
		if err == nil && o.Progress != nil {
			o.Progress(result.SizeBytes)
		}
		return result, err
	case err != nil:
		return PutResult{}, fmt.Errorf("read body: %w", err)
	}
	u := &upload{client: c, bucket: bucket, key: key, o: o}
	if err := u.create(ctx); err != nil {
		return PutResult{}, err
	}
	if err := u.putAll(ctx, first, body); err != nil {
		u.abort(ctx)
		return PutResult{}, err
	}
	result, err := u.complete(ctx)
	if err != nil {
		u.abort(ctx)
	}
	return result, err
}

// upload is one multipart upload in progress.
type upload struct {
	client      *Client
	bucket, key string
	id          string
	o           UploadOptions

	mu    sync.Mutex
	parts []uploadedPart // index is the number - 1
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
func (u *upload) putAll(ctx context.Context, first []byte, body io.Reader) error {
	workers := u.o.Parallel
	if workers <= 0 {
		workers = DefaultParallel
	}
	workers = min(workers, MaxParallel)
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
				free <- p.data[:cap(p.data)]
			}
		})
	}
	buffers, data := 1, first
	for number := 1; len(data) > 0; number++ {
		if number > maxParts {
			cancel(fmt.Errorf("body longer than %d parts of %d bytes", maxParts, cap(data)))
			break
		}
		select {
		case parts <- part{number, data}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
		var next []byte
		if buffers <= workers {
			next = make([]byte, cap(data))
			buffers++
		} else {
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
	answer, err := u.client.discard(ctx, call{op: "UploadPart", method: http.MethodPut, bucket: u.bucket, key: u.key,
		query: url.Values{"partNumber": {strconv.Itoa(number)}, "uploadId": {u.id}}, header: header,
		body: func() io.Reader { return bytes.NewReader(data) }, size: int64(len(data))})
	if err != nil {
		return err
	}
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
	result := PutResult{Transfer: u.client.transfer, ETag: strings.Trim(answer.ETag, `"`), SizeBytes: size,
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
