package gateway

import (
	"context"
	"crypto/md5"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/millrace/millrace/s3/checksum"
	"github.com/millrace/millrace/s3/chunked"
	"github.com/millrace/millrace/s3/sigv4"
	"github.com/millrace/millrace/s3/store"
	"github.com/millrace/millrace/s3/wire"
)

// bodyReader reads the body of an HTTP request. It counts, remembers the error that ended it, and
// gives the client a deadline for the next bytes.
type bodyReader struct {
	body     io.Reader
	control  *http.ResponseController
	stall    time.Duration
	deadline time.Time
	read     int64
	err      error // not io.EOF
}

// Read implements io.Reader.
func (b *bodyReader) Read(p []byte) (int, error) {
	if b.stall > 0 {
		if now := time.Now(); b.deadline.Sub(now) < b.stall-b.stall/4 {
			b.deadline = now.Add(b.stall)
			_ = b.control.SetReadDeadline(b.deadline) // not every ResponseWriter has it
		}
	}
	n, err := b.body.Read(p)
	b.read += int64(n)
	switch {
	case err == nil:
	case errors.Is(err, io.EOF):
		if b.stall > 0 {
			// From now on the server waits for the next request, or for the client to go away.
			_ = b.control.SetReadDeadline(time.Time{})
		}
	default:
		b.err = err
	}
	return n, err
}

// upload is the data of a request on its way into the store, with all that is known to check it by.
type upload struct {
	source    io.Reader
	sizeBytes int64
	integrity wire.Integrity
	algorithm checksum.Algorithm // to store besides CRC64NVME; may be None
	hash      hash.Hash          // of algorithm; nil if the store or the signature gives it
	signed    *[sha256.Size]byte
	decoder   *chunked.Decoder // nil unless the body is aws-chunked
	limited   context.Context  // ends when a transfer by RDMA has taken too long; nil without one
}

// openUpload makes ready to read the data in the body of a request, and reads nothing yet. With an
// algorithm that is not None, that checksum is computed even if the client sends none.
func (r *request) openUpload(in wire.Integrity, algorithm checksum.Algorithm) (*upload, error) {
	kind := r.identity.Payload.Kind
	if len(in.Trailers) > 0 &&
		kind != sigv4.PayloadStreamingUnsignedTrailer && kind != sigv4.PayloadStreamingSignedTrailer {
		return nil, wire.Refuse("x-amz-trailer needs a payload with a trailer")
	}
	u := &upload{integrity: in, algorithm: algorithm}
	if u.algorithm == checksum.None {
		u.algorithm = in.Algorithm
	}
	if r.rdma != nil {
		u.sizeBytes = r.rdma.window.SizeBytes
		u.hashUnlessGiven()
		return u, r.checkWindowBody(&in)
	}
	var err error
	if u.sizeBytes, err = r.dataBytes(); err != nil {
		return nil, err
	}
	u.source = r.body
	switch {
	case kind.Streaming():
		u.decoder = chunked.NewDecoder(r.body, chunked.DecoderConfig{
			Kind: kind, Seed: r.identity.Seed, DecodedBytes: u.sizeBytes, Trailers: in.Trailers,
		})
		u.source = u.decoder
	case kind == sigv4.PayloadSHA256:
		u.signed = &r.identity.Payload.SHA256
		u.source = sigv4.NewSHA256Reader(r.body, *u.signed)
	}
	u.hashUnlessGiven()
	return u, nil
}

// hashUnlessGiven sets u.hash.
func (u *upload) hashUnlessGiven() {
	if u.algorithm != checksum.CRC64NVME && (u.algorithm != checksum.SHA256 || u.signed == nil) {
		u.hash = checksum.New(u.algorithm)
	}
}

func emptySHA256() [sha256.Size]byte { return sha256.Sum256(nil) }

// Read implements io.Reader.
func (u *upload) Read(p []byte) (int, error) {
	n, err := u.source.Read(p)
	if u.hash != nil {
		u.hash.Write(p[:n])
	}
	return n, err
}

// dataBytes returns the size of the data in the body: that of an aws-chunked body is decoded.
func (r *request) dataBytes() (int64, error) {
	n := r.HTTP.ContentLength
	if r.identity.Payload.Kind.Streaming() {
		text := r.Header("X-Amz-Decoded-Content-Length")
		if text == "" {
			return 0, &wire.Error{Code: wire.MissingContentLength}
		}
		var err error
		if n, err = strconv.ParseInt(text, 10, 64); err != nil || n < 0 {
			return 0, wire.InvalidArg("x-amz-decoded-content-length", text, "The value is not a size")
		}
	}
	switch {
	case n < 0:
		return 0, &wire.Error{Code: wire.MissingContentLength}
	case n > store.MaxPutBytes:
		return 0, &wire.Error{Code: wire.EntityTooLarge, Fields: []wire.Field{
			{Name: "ProposedSize", Value: strconv.FormatInt(n, 10)},
			{Name: "MaxSizeAllowed", Value: strconv.FormatInt(store.MaxPutBytes, 10)},
		}}
	}
	return n, nil
}

// seal is Finish of the upload of an object or a part: checksums are those that sum is kept with.
func (u *upload) seal(d store.Digests, checksums func(store.Checksum, store.Digests) []store.Checksum) (
	store.Seal, error) {
	sum, err := u.check(d)
	seal := store.Seal{Checksums: checksums(sum, d)}
	if u.limited != nil {
		seal.ETag = windowETag(d)
	}
	return seal, err
}

// check compares what was received with what the client said of it, and returns the checksum of the
// upload's algorithm: that of CRC64NVME if there is no other.
func (u *upload) check(d store.Digests) (store.Checksum, error) {
	if u.limited != nil && u.limited.Err() != nil {
		return store.Checksum{}, u.limited.Err()
	}
	if u.integrity.HasMD5 && u.integrity.MD5 != d.MD5 {
		return store.Checksum{}, &wire.Error{
			Code: wire.BadDigest, Message: "The Content-MD5 you specified did not match what we received.",
			Fields: []wire.Field{
				{Name: "ExpectedDigest", Value: hex.EncodeToString(u.integrity.MD5[:])},
				{Name: "CalculatedDigest", Value: hex.EncodeToString(d.MD5[:])},
			},
		}
	}
	sum := u.sum(d)
	if u.integrity.Algorithm != sum.Algorithm {
		return sum, nil
	}
	want := u.integrity.Value
	if u.integrity.InTrailer() && u.decoder != nil {
		var err error
		if want, err = sum.Algorithm.Decode(u.decoder.Trailer()[sum.Algorithm.Header()]); err != nil {
			return sum, wire.BadChecksum(sum.Algorithm)
		}
	}
	if string(want) != string(sum.Value) {
		return sum, wire.BadChecksum(sum.Algorithm)
	}
	return sum, nil
}

func (u *upload) sum(d store.Digests) store.Checksum {
	switch {
	case u.hash != nil:
		return store.Checksum{Algorithm: u.algorithm, Value: u.hash.Sum(nil)}
	case u.algorithm == checksum.SHA256:
		return store.Checksum{Algorithm: u.algorithm, Value: u.signed[:]}
	}
	return crc64(d)
}

func crc64(d store.Digests) store.Checksum {
	return store.Checksum{
		Algorithm: checksum.CRC64NVME, Value: binary.BigEndian.AppendUint64(nil, d.CRC64NVME),
	}
}

// readDocument reads a whole body of at most limit bytes, and checks it against in.
func (r *request) readDocument(limit int64, in wire.Integrity) ([]byte, error) {
	u, err := r.openUpload(in, checksum.None)
	if err != nil {
		return nil, err
	}
	if u.sizeBytes > limit {
		return nil, &wire.Error{Code: wire.MaxMessageLengthExceeded, Fields: []wire.Field{
			{Name: "MaxMessageLengthBytes", Value: strconv.FormatInt(limit, 10)},
		}}
	}
	data := make([]byte, u.sizeBytes)
	if _, err := io.ReadFull(u, data); err != nil {
		return nil, documentError(err)
	}
	if n, err := u.Read(make([]byte, 1)); n > 0 || !errors.Is(err, io.EOF) {
		return nil, documentError(err)
	}
	d := store.Digests{SizeBytes: u.sizeBytes}
	if in.HasMD5 {
		d.MD5 = md5.Sum(data)
	}
	if in.Algorithm == checksum.CRC64NVME {
		h := checksum.New(in.Algorithm)
		h.Write(data)
		d.CRC64NVME = binary.BigEndian.Uint64(h.Sum(nil))
	}
	_, err = u.check(d)
	return data, err
}

// documentError tells a body that has another length than it says from one that is bad otherwise.
func documentError(err error) error {
	if err == nil || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return &wire.Error{Code: wire.IncompleteBody, Cause: err}
	}
	return err
}
