package sigv4

import "crypto/sha256"

// Chain makes the signatures of the chunks of an aws-chunked body, each of which covers the one
// before it ("Signature Calculations for the Authorization Header: Transferring Payload in
// Multiple Chunks" of the S3 API reference). Use it by one goroutine.
type Chain struct {
	key      SigningKey
	toSign   []byte // room for the longer of the two strings to sign
	head     int    // where the kind of the string ends and the part that both have begins
	previous int    // where the previous signature is
}

const (
	chunkHead   = algorithmName + "-PAYLOAD"
	trailerHead = algorithmName + "-TRAILER"
)

// NewChain returns the chain that starts from the signature of a request.
func NewChain(seed Seed) *Chain {
	c := &Chain{key: seed.Key, toSign: make([]byte, 0, 384)}
	c.toSign = append(c.toSign, chunkHead+"\n"...)
	c.head = len(chunkHead)
	c.toSign = seed.Time.UTC().AppendFormat(c.toSign, timeFormat)
	c.toSign = append(c.toSign, '\n')
	c.toSign = seed.Scope.append(c.toSign)
	c.toSign = append(c.toSign, '\n')
	c.previous = len(c.toSign)
	c.toSign = append(c.toSign, seed.Signature...)
	return c
}

// Chunk returns the signature, in hex, of the next chunk, which has that hash.
func (c *Chain) Chunk(digest [sha256.Size]byte) [signatureHex]byte {
	return c.next(chunkHead, EmptySHA256+"\n", digest)
}

// Trailer returns the signature, in hex, of the trailer. The hash is of "name:value\n" of each of its fields
// but the signature. It comes after the last, empty chunk.
func (c *Chain) Trailer(digest [sha256.Size]byte) [signatureHex]byte {
	return c.next(trailerHead, "", digest)
}

func (c *Chain) next(head, middle string, digest [sha256.Size]byte) [signatureHex]byte {
	copy(c.toSign[:c.head], head)
	text := hexDigest(digest)
	b := append(c.toSign, '\n')
	b = append(b, middle...)
	b = append(b, text[:]...)
	signature := c.key.sign(b)
	c.toSign = append(c.toSign[:c.previous], signature[:]...)
	return signature
}

// Equal compares a signature with the text that a client sent, in a time that does not depend on
// where they differ.
func Equal(want [signatureHex]byte, got string) bool { return equalText(want[:], got) }
