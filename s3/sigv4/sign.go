package sigv4

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// ErrOpaqueURL is returned for a request whose URL has an Opaque part: its path is not known.
var ErrOpaqueURL = errors.New("request has an opaque URL")

// Signer signs requests. It keeps the key of the day, and must not be copied once it has signed.
type Signer struct {
	Credential Credential
	Region     string
	last       atomic.Pointer[derived]
}

// derived is a key, and what it was derived from.
type derived struct {
	origin keyOrigin
	key    SigningKey
}

// key returns the key for a scope. It changes once a day.
func (s *Signer) key(scope Scope) SigningKey {
	origin := keyOrigin{s.Credential.SecretKey, scope.Date, scope.Region}
	if d := s.last.Load(); d != nil && d.origin == origin {
		return d.key
	}
	d := &derived{origin, deriveKey(s.Credential.SecretKey, scope)}
	s.last.Store(d)
	return d.key
}

// Sign signs r in its Authorization header for time t. payload is the value of
// x-amz-content-sha256: the lower-case hex SHA-256 of the body, or one of the constants. All headers that are
// set already are signed, but those that change on the way. The Seed serves to sign an aws-chunked body.
func (s *Signer) Sign(r *http.Request, payload string, t time.Time) (Seed, error) {
	if r.URL.Opaque != "" {
		return Seed{}, ErrOpaqueURL
	}
	t = t.UTC().Truncate(time.Second)
	timestamp := t.Format(timeFormat)
	r.Header.Set(headerDate, timestamp)
	r.Header.Set(headerPayload, payload)
	r.Header.Del(headerToken)
	if s.Credential.SessionToken != "" {
		r.Header.Set(headerToken, s.Credential.SessionToken)
	}
	r.Header.Del(headerAuthorization)
	scope := Scope{Date: timestamp[:dateBytes], Region: s.Region}
	signed := headersToSign(r.Header)
	signature, key, err := s.sign(r, scope, timestamp, signed, payload)
	if err != nil {
		return Seed{}, err
	}
	r.Header.Set(headerAuthorization, algorithmName+" Credential="+s.Credential.AccessKey+"/"+scope.String()+
		",SignedHeaders="+string(signed)+",Signature="+signature)
	return Seed{Signature: signature, Key: key, Scope: scope, Time: t}, nil
}

// Presign signs r in its query for time t, and for an expiry of 1 s to MaxExpiry after. The URL is then
// good for anyone who sends the headers that r has. The body is not signed, unless r has x-amz-content-sha256.
func (s *Signer) Presign(r *http.Request, expiry time.Duration, t time.Time) error {
	if r.URL.Opaque != "" {
		return ErrOpaqueURL
	}
	if expiry < time.Second || expiry > MaxExpiry {
		return fmt.Errorf("presign: expiry of %v is not from 1s to %v", expiry, MaxExpiry)
	}
	timestamp := t.UTC().Format(timeFormat)
	scope := Scope{Date: timestamp[:dateBytes], Region: s.Region}
	payload := r.Header.Get(headerPayload)
	if payload == "" {
		payload = UnsignedPayload
	}
	signed := headersToSign(r.Header)
	query := make([]byte, 0, 512)
	if r.URL.RawQuery != "" {
		query = append(append(query, r.URL.RawQuery...), '&')
	}
	for _, p := range [...][2]string{
		{queryAlgorithm, algorithmName},
		{queryCredential, s.Credential.AccessKey + "/" + scope.String()},
		{queryDate, timestamp},
		{queryExpires, strconv.FormatInt(int64(expiry/time.Second), 10)},
		{querySignedHeaders, string(signed)},
		{queryToken, s.Credential.SessionToken},
	} {
		if p[1] != "" {
			query = append(query, p[0]+"="+url.QueryEscape(p[1])+"&"...)
		}
	}
	r.URL.RawQuery = string(query[:len(query)-1])
	signature, _, err := s.sign(r, scope, timestamp, signed, payload)
	if err != nil {
		return err
	}
	r.URL.RawQuery += "&" + querySignature + "=" + signature
	return nil
}

func (s *Signer) sign(r *http.Request, scope Scope, timestamp string, signed HeaderSet,
	payload string) (string, SigningKey, error) {
	w := workspaces.Get().(*workspace)
	defer w.release()
	if err := w.setQuery(r.URL.RawQuery); err != nil {
		return "", SigningKey{}, err
	}
	w.setCanonical(r, signed, payload)
	w.setToSign(timestamp, scope)
	key := s.key(scope)
	signature := key.sign(w.toSign)
	return string(signature[:]), key, nil
}

// headersToSign returns all headers but those that transports set or proxies change.
func headersToSign(h http.Header) HeaderSet {
	names := make([]string, 1, len(h)+1)
	names[0] = "host"
	for key := range h {
		switch name := strings.ToLower(key); name {
		case "authorization", "host", "user-agent", "accept-encoding", "connection", "expect", "te", "trailer",
			"transfer-encoding", "upgrade", "x-amzn-trace-id":
		default:
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return HeaderSet(strings.Join(names, ";"))
}
