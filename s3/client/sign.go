package client

import (
	"net/http"
	"time"

	"github.com/millrace/millrace/s3/sigv4"
)

// emptySHA256 is the SHA-256 of no bytes.
const emptySHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

// sign puts the signature in the header. payload is what stands for the body: "" is the hash of none, or
// nothing at all. Bodies are guarded by their CRC64NVME, whose header is signed, and not by a SHA-256,
// which would cost twenty times as much.
func (c *Client) sign(r *http.Request, payload string) error {
	if c.signer.Credential.AccessKey == "" {
		return nil
	}
	if payload == "" {
		payload = sigv4.UnsignedPayload
		if r.ContentLength == 0 {
			payload = emptySHA256
		}
	}
	_, err := c.signer.Sign(r, payload, time.Now())
	return err
}
