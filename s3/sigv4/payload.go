package sigv4

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"net/http"
)

// The values of x-amz-content-sha256 that are no hash.
const (
	UnsignedPayload          = "UNSIGNED-PAYLOAD"
	StreamingSigned          = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
	StreamingSignedTrailer   = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"
	StreamingUnsignedTrailer = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"

	streamingECDSA        = "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD"
	streamingECDSATrailer = "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD-TRAILER"
)

// EmptySHA256 is the x-amz-content-sha256 of an empty body.
const EmptySHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

// PayloadKind says how a request vouches for its body.
type PayloadKind uint8

// The kinds: the body's SHA-256 is signed, nothing is signed, or the body is aws-chunked.
const (
	PayloadSHA256 PayloadKind = iota + 1
	PayloadUnsigned
	PayloadStreamingSigned
	PayloadStreamingSignedTrailer
	PayloadStreamingUnsignedTrailer
)

// Streaming tells whether the body is aws-chunked.
func (k PayloadKind) Streaming() bool { return k >= PayloadStreamingSigned }

// Payload is what x-amz-content-sha256 says of the body.
type Payload struct {
	Kind   PayloadKind
	SHA256 [sha256.Size]byte // with PayloadSHA256
}

func parsePayload(value string) (Payload, error) {
	switch value {
	case UnsignedPayload:
		return Payload{Kind: PayloadUnsigned}, nil
	case StreamingSigned:
		return Payload{Kind: PayloadStreamingSigned}, nil
	case StreamingSignedTrailer:
		return Payload{Kind: PayloadStreamingSignedTrailer}, nil
	case StreamingUnsignedTrailer:
		return Payload{Kind: PayloadStreamingUnsignedTrailer}, nil
	case streamingECDSA, streamingECDSATrailer:
		return Payload{}, refuse(http.StatusNotImplemented, "NotImplemented",
			"A header you provided implies functionality that is not implemented.",
			Field{"Header", "x-amz-content-sha256"})
	}
	p := Payload{Kind: PayloadSHA256}
	if len(value) == hex.EncodedLen(len(p.SHA256)) {
		var text [2 * sha256.Size]byte
		copy(text[:], value)
		if _, err := hex.Decode(p.SHA256[:], text[:]); err == nil {
			return p, nil
		}
	}
	return Payload{}, refuse(http.StatusBadRequest, "InvalidArgument",
		"x-amz-content-sha256 must be "+UnsignedPayload+", "+StreamingUnsignedTrailer+", "+StreamingSigned+", "+
			StreamingSignedTrailer+", "+streamingECDSA+", "+streamingECDSATrailer+" or a valid sha256 value.",
		Field{"ArgumentName", "x-amz-content-sha256"}, Field{"ArgumentValue", value})
}

// SHA256Reader passes a body on and checks its SHA-256 at the end: instead of io.EOF it returns
// an *Error (XAmzContentSHA256Mismatch), now and ever after, if the hash is another. So the bytes
// must not be believed before io.EOF was seen.
type SHA256Reader struct {
	body io.Reader
	hash hash.Hash
	want [sha256.Size]byte
	err  error
}

// NewSHA256Reader returns a reader of body that expects its SHA-256 to be want.
func NewSHA256Reader(body io.Reader, want [sha256.Size]byte) *SHA256Reader {
	return &SHA256Reader{body: body, hash: sha256.New(), want: want}
}

// Read implements io.Reader. Errors of the body are returned as they are.
func (r *SHA256Reader) Read(p []byte) (int, error) {
	if r.err != nil {
		return 0, r.err
	}
	n, err := r.body.Read(p)
	r.hash.Write(p[:n])
	if err == nil {
		return n, nil
	}
	r.err = err
	if errors.Is(err, io.EOF) {
		if got := [sha256.Size]byte(r.hash.Sum(nil)); got != r.want {
			r.err = refuse(http.StatusBadRequest, "XAmzContentSHA256Mismatch",
				"The provided 'x-amz-content-sha256' header does not match what was computed.",
				Field{"ClientComputedContentSHA256", hex.EncodeToString(r.want[:])},
				Field{"S3ComputedContentSHA256", hex.EncodeToString(got[:])})
			// A reader that fills its buffer drops the error that comes with the last bytes.
			n = 0
		}
	}
	return n, r.err
}
