package chunked

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"hash"
	"io"
	"strconv"

	"github.com/millrace/millrace/s3/checksum"
	"github.com/millrace/millrace/s3/sigv4"
)

// DefaultChunkBytes is the size of chunks unless another is asked for.
const DefaultChunkBytes = 64 << 10

// EncoderConfig says how an Encoder frames data.
type EncoderConfig struct {
	Kind         sigv4.PayloadKind // one of the streaming kinds
	Seed         sigv4.Seed        // of the request's signature; not used for PayloadStreamingUnsignedTrailer
	DecodedBytes int64             // what x-amz-decoded-content-length says
	ChunkBytes   int               // MinChunkBytes or more; 0 for DefaultChunkBytes
	// Trailer is the checksum of the data that the trailer carries; None with
	// PayloadStreamingSigned, and only with that.
	Trailer checksum.Algorithm
}

func (c *EncoderConfig) chunkBytes() int {
	if c.ChunkBytes == 0 {
		return DefaultChunkBytes
	}
	return c.ChunkBytes
}

// EncodedBytes is the size of the body that the Encoder will give: its Content-Length.
func (c *EncoderConfig) EncodedBytes() int64 {
	size := int64(c.chunkBytes())
	full, rest := c.DecodedBytes/size, c.DecodedBytes%size
	n := full*(int64(c.headerBytes(size))+size+2) + int64(c.headerBytes(0)) + 2
	if rest > 0 {
		n += int64(c.headerBytes(rest)) + rest + 2
	}
	if trailed(c.Kind) {
		n += int64(len(c.Trailer.Header()) + len(":\r\n") + base64.StdEncoding.EncodedLen(c.Trailer.SizeBytes()))
	}
	if c.Kind == sigv4.PayloadStreamingSignedTrailer {
		n += int64(len(trailerSignature) + len(":\r\n") + hexSignatureBytes)
	}
	return n
}

const hexSignatureBytes = 2 * sha256.Size

func (c *EncoderConfig) headerBytes(chunk int64) int {
	n := len(strconv.FormatInt(chunk, 16)) + len("\r\n")
	if signed(c.Kind) {
		n += len(";"+signatureExtension+"=") + hexSignatureBytes
	}
	return n
}

// Encoder frames data as an aws-chunked body. It holds one chunk in memory. Use it by one goroutine.
type Encoder struct {
	data   io.Reader
	config EncoderConfig
	chain  *sigv4.Chain // nil if chunks are not signed
	hash   hash.Hash    // of the data, for the trailer; nil if there is none
	left   int64        // of the data
	err    error        // to be returned once ready is used up

	buffer []byte // room for a header, a chunk, and its line end
	ready  []byte // what Read gives next
}

const headerRoom = 128

// NewEncoder returns a reader of the framed form of data. It panics on a wrong config.
func NewEncoder(data io.Reader, config EncoderConfig) *Encoder {
	if !config.Kind.Streaming() || config.DecodedBytes < 0 || config.chunkBytes() < MinChunkBytes ||
		trailed(config.Kind) != (config.Trailer != checksum.None) {
		panic("chunked: wrong encoder config")
	}
	room := min(int64(config.chunkBytes()), config.DecodedBytes) + 2*headerRoom + hexSignatureBytes
	e := &Encoder{data: data, config: config, left: config.DecodedBytes, buffer: make([]byte, room)}
	if signed(config.Kind) {
		e.chain = sigv4.NewChain(config.Seed)
	}
	e.hash = checksum.New(config.Trailer)
	return e
}

// Read implements io.Reader. Data that is shorter or longer than DecodedBytes gives
// io.ErrUnexpectedEOF; errors of the data are returned as they are.
func (e *Encoder) Read(p []byte) (int, error) {
	if len(e.ready) == 0 && e.err == nil {
		e.ready, e.err = e.next()
	}
	if len(e.ready) == 0 {
		return 0, e.err
	}
	n := copy(p, e.ready)
	e.ready = e.ready[n:]
	return n, nil
}

// next makes the next chunk; with the last one it returns io.EOF.
func (e *Encoder) next() ([]byte, error) {
	n := int(min(e.left, int64(e.config.chunkBytes())))
	chunk := e.buffer[headerRoom : headerRoom+n]
	if _, err := io.ReadFull(e.data, chunk); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	e.left -= int64(n)
	if e.hash != nil {
		e.hash.Write(chunk)
	}
	header := strconv.AppendInt(make([]byte, 0, headerRoom), int64(n), 16)
	if e.chain != nil {
		signature := e.chain.Chunk(sha256.Sum256(chunk))
		header = append(header, ";"+signatureExtension+"="...)
		header = append(header, signature[:]...)
	}
	header = append(header, "\r\n"...)
	from := headerRoom - len(header)
	copy(e.buffer[from:], header)
	out := e.buffer[from : headerRoom+n]
	if n > 0 {
		return append(out, "\r\n"...), nil
	}
	if extra, err := io.ReadFull(e.data, make([]byte, 1)); extra > 0 {
		return nil, io.ErrUnexpectedEOF
	} else if !errors.Is(err, io.EOF) {
		return nil, err
	}
	return append(e.appendTrailer(out), "\r\n"...), io.EOF
}

func (e *Encoder) appendTrailer(out []byte) []byte {
	if e.hash == nil {
		return out
	}
	field := [2]string{e.config.Trailer.Header(), checksum.Encode(e.hash.Sum(nil))}
	out = append(out, field[0]+":"+field[1]+"\r\n"...)
	if e.chain == nil {
		return out
	}
	signature := e.chain.Trailer(trailerDigest([][2]string{field}))
	out = append(out, trailerSignature+":"...)
	out = append(out, signature[:]...)
	return append(out, "\r\n"...)
}
