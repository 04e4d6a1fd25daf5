package chunked

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/millrace/millrace/s3/sigv4"
)

func refuse(status int, code, message string, fields ...sigv4.Field) error {
	return &sigv4.Error{Code: code, Message: message, Status: status, Fields: fields}
}

func errInvalid(message string) error {
	return refuse(http.StatusBadRequest, "InvalidRequest", message)
}

func errIncomplete(message string) error {
	return refuse(http.StatusBadRequest, "IncompleteBody", message)
}

func errTrailer() error {
	return refuse(http.StatusBadRequest, "MalformedTrailerError",
		"The request contained trailing data that was not well-formed or did not conform to our published schema.")
}

// readLine returns the next line, without its CR LF.
func (d *Decoder) readLine() (string, error) {
	for {
		held := d.buffer[d.from:d.to]
		end := bytes.IndexByte(held, '\n')
		if end > MaxHeaderBytes || end < 0 && len(held) > MaxHeaderBytes {
			return "", errInvalid("The header of a chunk of the body is too long.")
		}
		if end >= 0 {
			line, ok := bytes.CutSuffix(held[:end], []byte("\r"))
			if !ok {
				return "", errInvalid("The header of a chunk of the body is malformed.")
			}
			d.from += end + 1
			return string(line), nil
		}
		if err := d.fill(); err != nil {
			return "", err
		}
	}
}

// readTrailer reads what is left of the body, which must be a trailer and nothing else. It returns io.EOF if
// all is well.
func (d *Decoder) readTrailer() error {
	text, err := d.readRest()
	if err != nil {
		return err
	}
	if !trailed(d.config.Kind) && text != "\r\n" {
		return errTrailer()
	}
	fields, signature, err := parseTrailer(text)
	if err != nil {
		return err
	}
	if len(fields) != len(d.config.Trailers) {
		return errTrailer()
	}
	d.trailer = make(map[string]string, len(fields))
	for _, f := range fields {
		announced := func(name string) bool { return strings.EqualFold(name, f[0]) }
		if _, repeated := d.trailer[f[0]]; repeated || !slices.ContainsFunc(d.config.Trailers, announced) {
			return errTrailer()
		}
		d.trailer[f[0]] = f[1]
	}
	if d.config.Kind != sigv4.PayloadStreamingSignedTrailer {
		if signature != "" {
			return errTrailer()
		}
		return io.EOF
	}
	if !sigv4.Equal(d.chain.Trailer(trailerDigest(fields)), signature) {
		return sigv4.ChunkMismatch()
	}
	return io.EOF
}

// readRest returns all that is left of the body.
func (d *Decoder) readRest() (string, error) {
	text := slices.Clone(d.buffer[d.from:d.to])
	for len(text) <= MaxTrailerBytes {
		n, err := d.body.Read(d.buffer)
		text = append(text, d.buffer[:n]...)
		switch {
		case errors.Is(err, io.EOF):
			if len(text) > MaxTrailerBytes {
				return "", errTrailer()
			}
			if string(text) != "\r\n" && !bytes.HasSuffix(text, []byte("\n\r\n")) {
				return "", errIncomplete("The request body terminated unexpectedly")
			}
			return string(text), nil
		case errors.Is(err, io.ErrUnexpectedEOF):
			return "", errIncomplete("The request body terminated unexpectedly")
		case err != nil:
			return "", err
		}
	}
	return "", errTrailer()
}

// parseTrailer returns the fields in their order, and the signature if there is one. Lines end in CR LF or, as
// some clients have it, in LF; empty lines are skipped, since those clients also have one before the signature.
// Nothing may follow the signature.
func parseTrailer(text string) (fields [][2]string, signature string, err error) {
	for text != "" {
		var line string
		line, text, _ = strings.Cut(text, "\n")
		line = strings.TrimSuffix(line, "\r")
		if line == "" {
			continue
		}
		name, value, ok := strings.Cut(line, ":")
		name, value = strings.ToLower(name), strings.TrimSpace(value)
		switch {
		case !ok || name == "" || strings.ContainsAny(name, " \t\r") || signature != "" ||
			strings.IndexByte(value, '\r') >= 0 || len(fields) == MaxTrailerFields:
			return nil, "", errTrailer()
		case name == trailerSignature:
			if value == "" {
				return nil, "", errTrailer()
			}
			signature = value
		default:
			fields = append(fields, [2]string{name, value})
		}
	}
	return fields, signature, nil
}

// trailerDigest is what the signature of a trailer is made of.
func trailerDigest(fields [][2]string) [sha256.Size]byte {
	var b []byte
	for _, f := range fields {
		b = append(b, f[0]...)
		b = append(b, ':')
		b = append(b, f[1]...)
		b = append(b, '\n')
	}
	return sha256.Sum256(b)
}
