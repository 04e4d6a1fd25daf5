package gateway

import (
	"context"
	"errors"
	"io"
	"os"

	"github.com/millrace/millrace/s3/sigv4"
	"github.com/millrace/millrace/s3/store"
	"github.com/millrace/millrace/s3/wire"
)

// clientGone is the code in counts and logs of a request whose client did not wait for the answer.
const (
	clientGone       wire.Code = "ClientGone"
	statusClientGone int       = 499
)

// storeErrors maps the store's errors to S3's codes.
var storeErrors = []struct {
	err  error
	code wire.Code
}{
	{store.ErrNoSuchBucket, wire.NoSuchBucket},
	{store.ErrBucketNotEmpty, wire.BucketNotEmpty},
	{store.ErrNoSuchKey, wire.NoSuchKey},
	{store.ErrNoSuchUpload, wire.NoSuchUpload},
	{store.ErrInvalidPart, wire.InvalidPart},
	{store.ErrInvalidRange, wire.InvalidRange},
	{store.ErrBodyTooShort, wire.IncompleteBody},
	{store.ErrBodyTooLong, wire.IncompleteBody},
	{store.ErrOverloaded, wire.SlowDown},
	{store.ErrUnavailable, wire.ServiceUnavailable},
	{store.ErrFull, wire.StorageFull},
}

// render makes the answer out of any error.
func (g *Gateway) render(r *request, err error) *wire.Error {
	var e *wire.Error
	if errors.As(err, &e) {
		return e
	}
	var declined *Declined
	if errors.As(err, &declined) {
		return &wire.Error{Code: wire.RDMANotSupported, Message: declined.Error(), Cause: err,
			Fields: []wire.Field{{Name: "Reason", Value: declined.Reason}}}
	}
	var signature *sigv4.Error
	if errors.As(err, &signature) {
		e := &wire.Error{Code: wire.Code(signature.Code), Message: signature.Message, Status: signature.Status}
		for _, f := range signature.Fields {
			e.Fields = append(e.Fields, wire.Field(f))
		}
		return e
	}
	// An error of the client's connection, which the store hands through.
	if r.body.err != nil && errors.Is(err, r.body.err) {
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return &wire.Error{Code: wire.RequestTimeout, Cause: err}
		case errors.Is(err, context.Canceled):
			return &wire.Error{Code: clientGone, Status: statusClientGone, Cause: err}
		case errors.Is(err, io.ErrUnexpectedEOF):
			return &wire.Error{Code: wire.IncompleteBody, Cause: err}
		}
		return &wire.Error{Code: wire.IncompleteBody, Cause: err}
	}
	for _, m := range storeErrors {
		if errors.Is(err, m.err) {
			return &wire.Error{Code: m.code, Cause: err, Fields: resourceFields(r, m.code)}
		}
	}
	if errors.Is(err, context.Canceled) {
		return &wire.Error{Code: clientGone, Status: statusClientGone, Cause: err}
	}
	return &wire.Error{Code: wire.InternalError, Cause: err}
}

// resourceFields are the elements by which S3 names what is not there.
func resourceFields(r *request, code wire.Code) []wire.Field {
	if r.Request == nil {
		return nil
	}
	switch code {
	case wire.NoSuchBucket, wire.BucketNotEmpty:
		return []wire.Field{{Name: "BucketName", Value: r.Bucket}}
	case wire.NoSuchKey:
		return []wire.Field{{Name: "Key", Value: r.Key}}
	case wire.NoSuchUpload:
		return []wire.Field{{Name: "UploadId", Value: r.Query.Get("uploadId")}}
	}
	return nil
}
