// Package wire translates between HTTP and S3: requests into operations with typed arguments,
// answers and errors into headers and XML.
//
// It is not a server and not a store: it decides nothing about access or about objects, and it
// holds no state. The reader of aws-chunked bodies and the signatures have packages of their own.
// It follows the Amazon S3 API reference (2006-03-01), and RFC 9110 where that is silent.
//
// Invariant: whatever bytes come in, a parser returns a value within its limits or an *Error with
// one of S3's codes; and what is rendered is well-formed.
package wire

// The limits on what a request may hold.
const (
	// MaxQueryParams is the greatest number of parameters in a query.
	MaxQueryParams = 64
	// MaxXMLDepth is how deep the elements of a body may be nested.
	MaxXMLDepth = 16
	// MaxXMLBytes bounds the XML bodies but for the two below.
	MaxXMLBytes = 64 << 10
	// MaxDeleteBytes bounds the body of DeleteObjects: 1000 keys of 1024 bytes, all escaped.
	MaxDeleteBytes = 8 << 20
	// MaxCompleteBytes bounds the body of CompleteMultipartUpload: 10,000 parts with a checksum each.
	MaxCompleteBytes = 4 << 20
	// MaxDeleteKeys is the greatest number of keys in one DeleteObjects.
	MaxDeleteKeys = 1000
	// MaxTags, MaxTagKeyRunes and MaxTagValueRunes bound the tags of an object.
	MaxTags          = 10
	MaxTagKeyRunes   = 128
	MaxTagValueRunes = 256
)
