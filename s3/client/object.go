package client

import (
	"bytes"
	"context"
	"crypto/md5"
	"encoding/base64"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/millrace/millrace/s3/checksum"
)

// Info is what the headers of an object say.
type Info struct {
	SizeBytes   int64
	ETag        string // without quotes
	Modified    time.Time
	ContentType string
	Metadata    map[string]string // x-amz-meta-*, by lower-case name
	// Checksum is one over the whole object's bytes, CRC64NVME before the others; None where the
	// server gave none of those.
	Checksum      checksum.Algorithm
	ChecksumValue []byte
}

func infoOf(h http.Header) Info {
	info := Info{ETag: strings.Trim(h.Get("Etag"), `"`), ContentType: h.Get("Content-Type"), Metadata: map[string]string{}}
	info.SizeBytes, _ = strconv.ParseInt(h.Get("Content-Length"), 10, 64)
	if _, total, ok := strings.Cut(h.Get("Content-Range"), "/"); ok {
		info.SizeBytes, _ = strconv.ParseInt(total, 10, 64)
	}
	info.Modified, _ = http.ParseTime(h.Get("Last-Modified"))
	for name, values := range h {
		if rest, ok := strings.CutPrefix(name, "X-Amz-Meta-"); ok && len(values) > 0 {
			info.Metadata[strings.ToLower(rest)] = values[0]
		}
	}
	if strings.EqualFold(h.Get("X-Amz-Checksum-Type"), checksum.Composite.String()) {
		return info
	}
	for _, a := range verifiable() {
		// The text of a composite checksum is not a value: Decode refuses its "-N".
		if value, err := a.Decode(h.Get(a.HeaderKey())); err == nil {
			info.Checksum, info.ChecksumValue = a, value
			break
		}
	}
	return info
}

// verifiable lists the algorithms whose values of pieces fold into that of the whole, cheapest first.
func verifiable() [3]checksum.Algorithm {
	return [3]checksum.Algorithm{checksum.CRC64NVME, checksum.CRC32, checksum.CRC32C}
}

// Head returns what is known of an object, without its bytes.
func (c *Client) Head(ctx context.Context, bucket, key string) (Info, error) {
	header, err := c.discard(ctx, call{op: "HeadObject", method: http.MethodHead, bucket: bucket, key: key,
		header: http.Header{"X-Amz-Checksum-Mode": {"ENABLED"}}})
	if err != nil {
		return Info{}, err
	}
	return infoOf(header), nil
}

// Delete removes a key; one that is not there is no error.
func (c *Client) Delete(ctx context.Context, bucket, key string) error {
	_, err := c.discard(ctx, call{op: "DeleteObject", method: http.MethodDelete, bucket: bucket, key: key})
	return err
}

// MaxDeleteKeys is the most that DeleteMany takes.
const MaxDeleteKeys = 1000

// DeleteMany removes up to MaxDeleteKeys keys by one request. The error names the first key that
// the server refused to delete; the others are gone.
func (c *Client) DeleteMany(ctx context.Context, bucket string, keys []string) error {
	if len(keys) > MaxDeleteKeys {
		return fmt.Errorf("DeleteObjects %s: %d keys, more than %d", bucket, len(keys), MaxDeleteKeys)
	}
	type object struct{ Key string }
	body := struct {
		XMLName xml.Name `xml:"Delete"`
		Quiet   bool
		Object  []object
	}{Quiet: true}
	for _, key := range keys {
		if !inXML(key) {
			if err := c.Delete(ctx, bucket, key); err != nil {
				return err
			}
			continue
		}
		body.Object = append(body.Object, object{key})
	}
	if len(body.Object) == 0 {
		return nil
	}
	text, err := xml.Marshal(body)
	if err != nil {
		return err
	}
	sum := md5.Sum(text) // Content-MD5 is what S3 asks for with this call
	var result struct {
		Error []struct{ Key, Code, Message string }
	}
	err = c.decode(ctx, call{op: "DeleteObjects", method: http.MethodPost, bucket: bucket,
		query:  url.Values{"delete": {""}},
		header: http.Header{"Content-Md5": {base64.StdEncoding.EncodeToString(sum[:])}, "Content-Type": {"application/xml"}},
		body:   func() io.Reader { return bytes.NewReader(text) }, size: int64(len(text))}, &result)
	if err == nil && len(result.Error) > 0 {
		e := result.Error[0]
		return &Error{Op: "DeleteObjects", StatusCode: http.StatusOK, Code: e.Code, Message: e.Message,
			Resource: bucket + "/" + e.Key}
	}
	return err
}

// inXML tells whether XML 1.0 can hold key as it is: most control characters it can't.
func inXML(key string) bool {
	if !utf8.ValidString(key) {
		return false
	}
	return strings.IndexFunc(key, func(r rune) bool { return r < ' ' || r == 0xFFFE || r == 0xFFFF }) < 0
}
