package sigv4

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// Verifier checks the signatures of requests. Its fields must not change once it is used; Verify
// may be called by many goroutines at once.
type Verifier struct {
	Lookup Lookup
	// Region is what requests must be signed for; us-east-1 is accepted as well, since many clients
	// know no other, unless StrictRegion is set.
	Region       string
	StrictRegion bool
	// Now is the clock; time.Now if it is nil.
	Now func() time.Time

	keys keyCache
}

// Verify returns who signed the request. It returns ErrAnonymous for a request without a
// signature, an *Error for one that is refused, and otherwise the wrapped error of Lookup. It reads
// r as net/http's server has parsed it, URL.Path and RawQuery in particular, and not the body:
// the caller must check that against Identity.Payload.
func (v *Verifier) Verify(ctx context.Context, r *http.Request) (Identity, error) {
	w := workspaces.Get().(*workspace)
	defer w.release()
	if err := w.setQuery(r.URL.RawQuery); err != nil {
		return Identity{}, err
	}
	c, err := w.parseClaim(r)
	if err != nil {
		return Identity{}, err
	}
	payload, err := parsePayload(c.payload)
	if err != nil {
		return Identity{}, err
	}
	if err := v.check(&c, r.Header); err != nil {
		return Identity{}, err
	}
	credential, err := v.Lookup(ctx, c.accessKey)
	if errors.Is(err, ErrUnknownKey) {
		return Identity{}, errUnknownAccessKey(c.accessKey)
	}
	if err != nil {
		return Identity{}, fmt.Errorf("look up access key: %w", err)
	}
	key := v.keys.key(credential.SecretKey, c.scope)
	w.setCanonical(r, c.signed, c.payload)
	w.setToSign(c.timestamp, c.scope)
	if signature := key.sign(w.toSign); !equalText(signature[:], c.signature) {
		return Identity{}, errSignature(&c, w.toSign, w.canonical)
	}
	if err := checkToken(credential, &c); err != nil {
		return Identity{}, err
	}
	return Identity{
		AccessKey:     c.accessKey,
		SignedHeaders: c.signed,
		Presigned:     c.presigned,
		Payload:       payload,
		Seed:          Seed{Signature: c.signature, Key: key, Scope: c.scope, Time: c.time},
	}, nil
}

// check does what needs no secret.
func (v *Verifier) check(c *claim, h http.Header) error {
	if c.scope.Region != v.Region && (v.StrictRegion || c.scope.Region != defaultRegion) {
		return errRegion(c.presigned, c.scope.Region, v.Region)
	}
	now := time.Now
	if v.Now != nil {
		now = v.Now
	}
	if err := c.checkTime(now()); err != nil {
		return err
	}
	return c.checkSigned(h)
}

// checkToken compares the session token. A temporary access key without its token is unknown.
func checkToken(credential Credential, c *claim) error {
	switch {
	case subtle.ConstantTimeCompare([]byte(credential.SessionToken), []byte(c.token)) == 1:
		return nil
	case c.token == "":
		return errUnknownAccessKey(c.accessKey)
	}
	return errToken()
}

// equalText compares in a time that does not depend on where the two differ.
func equalText(want []byte, got string) bool {
	var text [signatureHex]byte
	return len(got) == len(text) && subtle.ConstantTimeCompare(want, append(text[:0], got...)) == 1
}
