package sigv4

import (
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"strings"
	"sync"
)

// SigningKey is a key derived from a secret for one Scope. It is secret too: its printed form
// hides it.
type SigningKey struct{ key [sha256.Size]byte }

// Format writes a placeholder, whatever the verb.
func (k SigningKey) Format(f fmt.State, _ rune) { fmt.Fprint(f, "[signing key]") }

// deriveKey is the chain of four HMACs of Signature V4.
func deriveKey(secret string, scope Scope) SigningKey {
	k := []byte("AWS4" + secret)
	for _, text := range [4]string{scope.Date, scope.Region, serviceName, terminator} {
		mac := hmac.New(sha256.New, k)
		mac.Write([]byte(text))
		k = mac.Sum(nil)
	}
	return SigningKey{[sha256.Size]byte(k)}
}

// sign returns the signature of message in lower-case hex. It is HMAC-SHA256 (RFC 2104) written
// out, since with a key of half a block that needs no allocation.
func (k *SigningKey) sign(message []byte) [signatureHex]byte {
	const inner, outer = 0x36, 0x5c
	block := make([]byte, sha256.BlockSize, 512)
	for i := range block {
		block[i] = inner
	}
	for i, b := range k.key {
		block[i] ^= b
	}
	digest := sha256.Sum256(append(block, message...))
	var second [sha256.BlockSize + sha256.Size]byte
	for i := range sha256.BlockSize {
		second[i] = outer
	}
	for i, b := range k.key {
		second[i] ^= b
	}
	copy(second[sha256.BlockSize:], digest[:])
	return hexDigest(sha256.Sum256(second[:]))
}

func hexDigest(d [sha256.Size]byte) (text [signatureHex]byte) {
	const digits = "0123456789abcdef"
	for i, b := range d {
		text[2*i], text[2*i+1] = digits[b>>4], digits[b&15]
	}
	return text
}

// keyCache holds derived keys, since deriving one costs more than the rest of a verification. It
// is keyed by the secret itself, so that a changed secret never finds the key of the old one.
// It holds the keys of the last maxCachedKeys different uses or more, and at most twice as many.
// The zero value is an empty cache; its methods may be called by many goroutines at once.
type keyCache struct {
	mu             sync.RWMutex
	newest, oldest map[keyOrigin]SigningKey
}

type keyOrigin struct{ secret, date, region string }

const maxCachedKeys = 1024

func (c *keyCache) key(secret string, scope Scope) SigningKey {
	origin := keyOrigin{secret, scope.Date, scope.Region}
	c.mu.RLock()
	k, ok := c.newest[origin]
	c.mu.RUnlock()
	if ok {
		return k
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if k, ok = c.oldest[origin]; !ok {
		k = deriveKey(secret, scope)
	}
	if c.newest == nil || len(c.newest) >= maxCachedKeys {
		c.newest, c.oldest = make(map[keyOrigin]SigningKey), c.newest
	}
	// The scope is a piece of a request: keep no reference to that.
	origin.date, origin.region = strings.Clone(origin.date), strings.Clone(origin.region)
	c.newest[origin] = k
	return k
}
