package wire

import (
	"crypto/md5"
	"encoding/base64"
	"net/http"
	"strings"

	"github.com/millrace/millrace/s3/checksum"
)

// Integrity is what a request says about the integrity of its body.
type Integrity struct {
	MD5    [md5.Size]byte // of Content-MD5
	HasMD5 bool
	// Algorithm is that of the checksum that comes with the body, or None. Its value is in Value,
	// or comes in the trailer.
	Algorithm checksum.Algorithm
	Value     []byte // raw
	Trailers  []string
}

// InTrailer tells whether the value of the checksum comes in the trailer.
func (i *Integrity) InTrailer() bool { return i.Algorithm != checksum.None && i.Value == nil }

// Given tells whether there is anything to check the body against.
func (i *Integrity) Given() bool { return i.HasMD5 || i.Algorithm != checksum.None }

// ParseIntegrity reads Content-MD5 (InvalidDigest if malformed), x-amz-checksum-*, x-amz-trailer and
// x-amz-sdk-checksum-algorithm. At most one checksum may be given (InvalidRequest); one that is malformed
// can't match, and is BadDigest.
func ParseIntegrity(h http.Header) (Integrity, error) {
	in, err := ParseContentMD5(h)
	if err != nil {
		return in, err
	}
	for _, a := range checksum.All() {
		values, ok := h[a.HeaderKey()]
		if !ok {
			continue
		}
		if in.Algorithm != checksum.None {
			return in, errSeveralChecksums()
		}
		value, err := a.Decode(first(values))
		if err != nil {
			return in, BadChecksum(a)
		}
		in.Algorithm, in.Value = a, value
	}
	if err := in.parseTrailers(h); err != nil {
		return in, err
	}
	return in, in.checkSDK(first(h["X-Amz-Sdk-Checksum-Algorithm"]))
}

// ParseContentMD5 reads Content-MD5 alone (RFC 1864): for requests whose checksum headers are not
// about the body.
func ParseContentMD5(h http.Header) (Integrity, error) {
	values, ok := h["Content-Md5"]
	if !ok {
		return Integrity{}, nil
	}
	sum, err := base64.StdEncoding.DecodeString(first(values))
	if err != nil || len(sum) != md5.Size {
		return Integrity{}, &Error{Code: InvalidDigest, Fields: []Field{{"Content-MD5", first(values)}}}
	}
	return Integrity{MD5: [md5.Size]byte(sum), HasMD5: true}, nil
}

func (i *Integrity) parseTrailers(h http.Header) error {
	for _, list := range h["X-Amz-Trailer"] {
		for name := range strings.SplitSeq(list, ",") {
			if name = strings.TrimSpace(name); name == "" {
				continue
			}
			i.Trailers = append(i.Trailers, name)
			a, err := checksum.ParseHeader(name)
			if err != nil {
				return Refuse("The value specified in the x-amz-trailer header is not supported")
			}
			if i.Algorithm != checksum.None {
				return errSeveralChecksums()
			}
			i.Algorithm = a
		}
	}
	return nil
}

// checkSDK compares with x-amz-sdk-checksum-algorithm, by which SDKs say which checksum they send.
func (i *Integrity) checkSDK(name string) error {
	if name == "" {
		return nil
	}
	a, err := checksum.Parse(name)
	switch {
	case err != nil:
		return Refuse("Value for x-amz-sdk-checksum-algorithm header is invalid.")
	case i.Algorithm == checksum.None && !i.HasMD5:
		return Refuse("x-amz-sdk-checksum-algorithm specified, but no corresponding x-amz-checksum-* " +
			"or x-amz-trailer headers were found.")
	case i.Algorithm != checksum.None && a != i.Algorithm:
		return Refuse("Value for x-amz-sdk-checksum-algorithm header is invalid.")
	}
	return nil
}

func errSeveralChecksums() *Error {
	return Refuse("Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed.")
}

// BadChecksum returns BadDigest for a checksum.
func BadChecksum(a checksum.Algorithm) *Error {
	return &Error{
		Code:    BadDigest,
		Message: "The " + a.String() + " you specified did not match the calculated checksum.",
	}
}
