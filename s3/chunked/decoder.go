// Package chunked reads and writes aws-chunked bodies: the chunks that S3 clients frame a body in,
// with a signature on each, or with checksums in a trailer, or both.
//
// It is not HTTP's own chunked transfer coding, and it does not compare the checksums of a trailer:
// it hands the trailer over. The format is that of "Signature Calculations for the Authorization
// Header: Transferring Payload in Multiple Chunks" and "Including Trailing Headers" in the S3 API reference.
//
// Invariant: a Decoder returns io.EOF only after the whole stream has been read and found right: each
// signature in its place, the stated length exactly, the trailer as announced, and nothing after it.
package chunked

import (
	"crypto/sha256"
	"errors"
	"hash"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/millrace/millrace/s3/sigv4"
)

// Limits of what a client may send.
const (
	// MinChunkBytes is the least size of every chunk but the last that has data, as in S3.
	MinChunkBytes = 8 << 10
	// MaxHeaderBytes bounds the line before a chunk's data.
	MaxHeaderBytes = 512
	// MaxExtensions bounds the chunk extensions in that line.
	MaxExtensions = 4
	// MaxTrailerBytes and MaxTrailerFields bound the trailer.
	MaxTrailerBytes  = 8 << 10
	MaxTrailerFields = 16

	signatureExtension = "chunk-signature"
	trailerSignature   = "x-amz-trailer-signature"
	bufferBytes        = 4 << 10
)

// DecoderConfig says what a Decoder is to expect.
type DecoderConfig struct {
	Kind sigv4.PayloadKind // one of the streaming kinds
	Seed sigv4.Seed        // not used for PayloadStreamingUnsignedTrailer
	// DecodedBytes is x-amz-decoded-content-length. The data must be that long exactly.
	DecodedBytes int64
	// Trailers are the names in x-amz-trailer, in any case. The trailer must have those and no other.
	Trailers []string
}

// Decoder reads the data of an aws-chunked body. It passes bytes on before the signature of
// their chunk is known (but for the last ones of a chunk), so that a chunk need not be held in memory:
// what was read may be believed only once Read has returned io.EOF. After the last byte of data it reads
// and checks the rest of the stream before it returns that byte. Use it by one goroutine.
//
// Its errors are *sigv4.Error for what the client did wrong, and those of the body as they are. An
// error is returned again by each later Read.
type Decoder struct {
	body   io.Reader
	config DecoderConfig
	chain  *sigv4.Chain // nil if chunks are not signed
	hash   hash.Hash    // of the current chunk; nil as chain
	digest [sha256.Size]byte
	err    error

	buffer     []byte // read from body, but not used yet: buffer[from:to]
	from, to   int
	chunks     int
	chunkBytes int64  // size of the current chunk
	rest       int64  // of the current chunk
	left       int64  // of the data that no chunk has announced yet
	signature  string // that the client gave for the current chunk
	trailer    map[string]string
}

// NewDecoder returns a decoder of body. It panics if config.Kind is not a streaming one.
func NewDecoder(body io.Reader, config DecoderConfig) *Decoder {
	if !config.Kind.Streaming() {
		panic("chunked: payload is not aws-chunked")
	}
	d := &Decoder{body: body, config: config, left: config.DecodedBytes, buffer: make([]byte, bufferBytes)}
	if signed(config.Kind) {
		d.chain, d.hash = sigv4.NewChain(config.Seed), sha256.New()
	}
	if config.DecodedBytes < 0 {
		d.err = errInvalid("x-amz-decoded-content-length must not be negative.")
	}
	return d
}

func signed(k sigv4.PayloadKind) bool { return k != sigv4.PayloadStreamingUnsignedTrailer }

func trailed(k sigv4.PayloadKind) bool { return k != sigv4.PayloadStreamingSigned }

// Trailer returns the fields of the trailer by lower-case name, without its signature. It is nil before
// Read has returned io.EOF, and empty if there were none.
func (d *Decoder) Trailer() map[string]string {
	if !errors.Is(d.err, io.EOF) {
		return nil
	}
	return d.trailer
}

// Read implements io.Reader.
func (d *Decoder) Read(p []byte) (int, error) {
	if d.err != nil {
		return 0, d.err
	}
	if len(p) == 0 {
		return 0, nil
	}
	n, err := d.read(p)
	if err != nil {
		d.err = err
		return 0, err
	}
	return n, nil
}

// read returns some data, or io.EOF at the end.
func (d *Decoder) read(p []byte) (int, error) {
	if d.rest == 0 {
		if err := d.readHeader(); err != nil {
			return 0, err
		}
		if d.chunkBytes == 0 {
			return 0, d.finish()
		}
	}
	p = p[:min(int64(len(p)), d.rest)]
	n, err := d.readData(p)
	if err != nil {
		return 0, err
	}
	if d.hash != nil {
		d.hash.Write(p[:n])
	}
	if d.rest -= int64(n); d.rest > 0 {
		return n, nil
	}
	if err := d.endChunk(); err != nil {
		return 0, err
	}
	if d.left == 0 {
		// The end comes now, so that a caller who asks for no more than the data has it checked too.
		if err := d.readHeader(); err != nil {
			return 0, err
		}
		d.err = d.finish()
		if !errors.Is(d.err, io.EOF) {
			return 0, d.err
		}
	}
	return n, nil
}

// readData fills p from what is buffered, else from the body directly.
func (d *Decoder) readData(p []byte) (int, error) {
	if d.from < d.to {
		n := copy(p, d.buffer[d.from:d.to])
		d.from += n
		return n, nil
	}
	return d.readBody(p)
}

// readBody reads at least one byte. An end of the body is an error.
func (d *Decoder) readBody(p []byte) (int, error) {
	const maxEmptyReads = 100
	for range maxEmptyReads {
		n, err := d.body.Read(p)
		switch {
		case n > 0:
			return n, nil // an error will come again
		case err == nil:
			continue
		case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
			return 0, errIncomplete("The request body terminated unexpectedly")
		}
		return 0, err
	}
	return 0, io.ErrNoProgress
}

// fill adds to the buffer.
func (d *Decoder) fill() error {
	if d.from > 0 {
		d.to = copy(d.buffer, d.buffer[d.from:d.to])
		d.from = 0
	}
	n, err := d.readBody(d.buffer[d.to:])
	d.to += n
	return err
}

// endChunk reads the line end after a chunk's data, and checks the signature.
func (d *Decoder) endChunk() error {
	for d.to-d.from < 2 {
		if err := d.fill(); err != nil {
			return err
		}
	}
	if d.buffer[d.from] != '\r' || d.buffer[d.from+1] != '\n' {
		return errInvalid("A chunk of the body does not end where its size says.")
	}
	d.from += 2
	return d.checkChunk()
}

func (d *Decoder) checkChunk() error {
	if d.chain == nil {
		return nil
	}
	d.hash.Sum(d.digest[:0])
	d.hash.Reset()
	if !sigv4.Equal(d.chain.Chunk(d.digest), d.signature) {
		return sigv4.ChunkMismatch()
	}
	return nil
}

// finish follows the header of the empty chunk. It returns io.EOF if all is well.
func (d *Decoder) finish() error {
	if d.left != 0 {
		return errIncomplete("You did not provide the number of bytes specified by the " +
			"x-amz-decoded-content-length HTTP header")
	}
	if err := d.checkChunk(); err != nil {
		return err
	}
	return d.readTrailer()
}

// readHeader reads the line before a chunk's data, such as "10000;chunk-signature=…".
func (d *Decoder) readHeader() error {
	line, err := d.readLine()
	if err != nil {
		return err
	}
	size, extensions, _ := strings.Cut(line, ";")
	n, err := parseSize(size)
	if err != nil {
		return err
	}
	if err := d.setExtensions(extensions); err != nil {
		return err
	}
	if n > 0 && d.chunks > 0 && d.chunkBytes < MinChunkBytes {
		return refuse(http.StatusForbidden, "InvalidChunkSizeError",
			"Only the last chunk is allowed to have a size less than 8192 bytes",
			sigv4.Field{Name: "Chunk", Value: strconv.Itoa(d.chunks)},
			sigv4.Field{Name: "BadChunkSize", Value: strconv.FormatInt(d.chunkBytes, 10)})
	}
	if n > d.left {
		return errIncomplete("The request body is longer than x-amz-decoded-content-length says.")
	}
	d.chunks++
	d.chunkBytes, d.rest, d.left = n, n, d.left-n
	return nil
}

// parseSize reads the size of a chunk. strconv would accept signs and underscores.
func parseSize(text string) (int64, error) {
	const maxDigits = 15
	if text == "" || len(text) > maxDigits {
		return 0, errInvalid("The size of a chunk of the body is malformed.")
	}
	var n int64
	for _, c := range []byte(text) {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, errInvalid("The size of a chunk of the body is malformed.")
		}
		n = n<<4 | int64(c)
	}
	return n, nil
}

// setExtensions takes the signature from the chunk extensions. Others are skipped.
func (d *Decoder) setExtensions(list string) error {
	d.signature = ""
	for count := 0; list != ""; count++ {
		var extension string
		extension, list, _ = strings.Cut(list, ";")
		name, value, _ := strings.Cut(strings.TrimSpace(extension), "=")
		if count == MaxExtensions || name == signatureExtension && d.signature != "" {
			return errInvalid("The header of a chunk of the body is malformed.")
		}
		if name == signatureExtension {
			d.signature = value
		}
	}
	if d.chain != nil && d.signature == "" {
		return errInvalid("A chunk of the body has no signature.")
	}
	return nil
}
