// Package sigv4 checks and makes AWS Signature Version 4 signatures of S3 requests: in the
// Authorization header, in the query (presigned), and of the chunks of an aws-chunked body.
//
// It does not decide what a caller may do, does not know Signature V2 nor V4A, and reads no body
// (s3/chunked does that for signed chunks). It follows "Authenticating Requests (AWS Signature
// Version 4)" of the Amazon S3 API reference, which differs from the other services' SigV4: the
// path is encoded once, and is not normalised.
//
// Invariant: Verify returns an Identity only if someone who has the secret key signed this method,
// path, query, signed headers and payload hash, for a time that includes now; and no secret,
// nor a key derived from one, is in any error or printed form.
package sigv4

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"
)

// Constants of Signature V4, and the limits that are set here.
const (
	// MaxSkew is how far the time of a request may be from the server's.
	MaxSkew = 15 * time.Minute
	// MaxExpiry is the longest life of a presigned request.
	MaxExpiry = 7 * 24 * time.Hour
	// MaxQueryParameters and MaxSignedHeaders bound the work of one verification.
	MaxQueryParameters = 512
	MaxSignedHeaders   = 256
	// MaxAuthorizationBytes bounds the Authorization header.
	MaxAuthorizationBytes = 8 << 10

	algorithmName = "AWS4-HMAC-SHA256"
	serviceName   = "s3"
	terminator    = "aws4_request"
	defaultRegion = "us-east-1"
	timeFormat    = "20060102T150405Z"
	dateBytes     = len("20060102")
	signatureHex  = 64
)

var (
	// ErrAnonymous is returned by Verify for a request that carries no signature at all.
	ErrAnonymous = errors.New("request is not signed")
	// ErrUnknownKey is what Lookup returns for an access key that is not known.
	ErrUnknownKey = errors.New("unknown access key")
)

// Credential is an access key and its secret. Its printed forms hide the secrets.
type Credential struct {
	AccessKey string
	SecretKey string `json:"-"`
	// SessionToken, if not empty, must come with every request.
	SessionToken string `json:"-"`
}

// Format writes the access key only, whatever the verb.
func (c Credential) Format(f fmt.State, _ rune) { fmt.Fprintf(f, "credential %q", c.AccessKey) }

// String returns the access key only.
func (c Credential) String() string { return fmt.Sprint(c) }

// LogValue logs the access key only.
func (c Credential) LogValue() slog.Value { return slog.StringValue(c.String()) }

// Scope is what a signing key is good for, besides the service.
type Scope struct {
	Date   string // YYYYMMDD, UTC
	Region string
}

// String returns the scope as it is signed.
func (s Scope) String() string { return string(s.append(nil)) }

func (s Scope) append(dst []byte) []byte {
	dst = append(dst, s.Date...)
	dst = append(dst, '/')
	dst = append(dst, s.Region...)
	return append(dst, "/"+serviceName+"/"+terminator...)
}

// Seed is what the signatures of chunks go on from.
type Seed struct {
	Signature string // of the request, lower-case hex
	Key       SigningKey
	Scope     Scope
	Time      time.Time // of the request, whole seconds, UTC
}

// HeaderSet is a list of signed headers: lower-case, ascending, with ";" between.
type HeaderSet string

// Has tells whether the set holds the header of that name, in any case.
func (s HeaderSet) Has(name string) bool {
	rest, more := string(s), s != ""
	for more {
		var first string
		first, rest, more = strings.Cut(rest, ";")
		if len(first) == len(name) && strings.EqualFold(first, name) {
			return true
		}
	}
	return false
}

// valid tells whether the set is as its definition says, within the limit.
func (s HeaderSet) valid() bool {
	rest, more := string(s), true
	for last, count := "", 0; more; count++ {
		var name string
		name, rest, more = strings.Cut(rest, ";")
		if name <= last || count == MaxSignedHeaders {
			return false
		}
		for i := range len(name) {
			if !isLowerToken(name[i]) {
				return false
			}
		}
		last = name
	}
	return true
}

// isLowerToken tells whether c may be in a header name (RFC 9110 section 5.6.2) in lower case.
func isLowerToken(c byte) bool {
	return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0
}

// Identity is what a verified request has proven.
type Identity struct {
	AccessKey     string
	SignedHeaders HeaderSet
	Presigned     bool
	Payload       Payload
	Seed          Seed
}

// Lookup returns the credential of an access key; ErrUnknownKey (it may be wrapped) if there is none.
type Lookup func(ctx context.Context, accessKey string) (Credential, error)
