package client

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/millrace/millrace/s3/checksum"
	"github.com/millrace/millrace/verbs"
)

// PutOptions say what is stored beside the bytes. The zero value is fine.
type PutOptions struct {
	ContentType string
	Metadata    map[string]string
	// NoChecksum leaves out the CRC64NVME that is otherwise sent for the server to compare.
	NoChecksum bool
	// IfNoneMatch makes the call fail with PreconditionFailed where the key is there already.
	IfNoneMatch bool
}

func (o PutOptions) header() http.Header {
	h := http.Header{}
	if o.ContentType != "" {
		h.Set("Content-Type", o.ContentType)
	}
	for name, value := range o.Metadata {
		h.Set("X-Amz-Meta-"+name, value)
	}
	if o.IfNoneMatch {
		h.Set("If-None-Match", "*")
	}
	return h
}

// PutResult is what a PUT gave.
type PutResult struct {
	Transfer
	ETag      string `json:"etag"`
	SizeBytes int64  `json:"size_bytes"`
	Parts     int    `json:"parts,omitempty"` // 0 unless it was a multipart upload
	// ChecksumVerified: the server has compared the bytes with a checksum made here, and says so.
	ChecksumVerified bool `json:"checksum_verified"`
}

// Put stores data as one object by one request: in its body, of at most 5 GiB, or by RDMA, of less than 4 GiB,
// for which data must be registered (Register).
func (c *Client) Put(ctx context.Context, bucket, key string, data []byte, o PutOptions) (PutResult, error) {
	h, crc := o.header(), ""
	if !o.NoChecksum {
		crc = crcText(data)
		h.Set(checksum.CRC64NVME.HeaderKey(), crc)
	}
	r := call{op: "PutObject", method: http.MethodPut, bucket: bucket, key: key, header: h}
	header, transfer, err := c.store(ctx, &r, data)
	if err != nil {
		return PutResult{}, err
	}
	result := PutResult{Transfer: transfer, ETag: strings.Trim(header.Get("Etag"), `"`), SizeBytes: int64(len(data))}
	result.ChecksumVerified, err = echoed(crc, header.Get(checksum.CRC64NVME.HeaderKey()))
	return result, err
}

// store sends a call that stores data: by RDMA, where the server reads data itself, or in the body.
func (c *Client) store(ctx context.Context, r *call, data []byte) (http.Header, Transfer, error) {
	r.accept = func(got *reply) error {
		if etag := got.header.Get("Etag"); got.status != http.StatusOK || got.bytes != int64(len(data)) || etag == "" {
			return fmt.Errorf("status %d, %d bytes of %d, ETag %q", got.status, got.bytes, len(data), etag)
		}
		return nil
	}
	got, transfer, err := c.byRDMA(ctx, r, data, verbs.RemoteRead)
	if err != nil {
		return nil, transfer, err
	}
	if transfer.Transport == TransportRDMA {
		return got.header, transfer, nil
	}
	c.path.counts.fell(transfer)
	r.body, r.size = func() io.Reader { return bytes.NewReader(data) }, int64(len(data))
	header, err := c.discard(ctx, *r)
	return header, transfer, err
}

// echoed tells whether the server has compared the checksum that was sent: one that does gives it
// back. An echo that differs is ErrChecksum.
func echoed(sent, echo string) (bool, error) {
	if sent == "" || echo == "" {
		return false, nil
	}
	if sent != echo {
		return false, ErrChecksum
	}
	return true, nil
}

// crcText is the CRC64NVME of data in the form of the header.
func crcText(data []byte) string {
	h := checksum.New(checksum.CRC64NVME)
	h.Write(data)
	return checksum.Encode(h.Sum(nil))
}
