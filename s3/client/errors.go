package client

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
)

// Error is an answer of the server that is no success.
type Error struct {
	Op         string // the call, as "GetObject"
	StatusCode int
	Code       string // S3's code, as "NoSuchKey"; made of the status where the answer has no body
	Message    string
	Resource   string // "bucket/key"
	RequestID  string
}

// Error gives the call, the resource, the code and the message.
func (e *Error) Error() string {
	text := fmt.Sprintf("%s %s: %s", e.Op, e.Resource, e.Code)
	if e.Message != "" {
		text += ": " + e.Message
	}
	return text
}

// ErrChecksum is returned when the bytes that came are not those that the server's checksum is of.
var ErrChecksum = errors.New("checksum mismatch: the bytes that came are not the object's")

// Code returns the S3 code of err ("NoSuchKey"), or "" where err holds no Error.
func Code(err error) string {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// NotFound tells whether err says that a bucket or an object is not there.
func NotFound(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.StatusCode == http.StatusNotFound
}

// maxErrorBytes limits the body of an error answer.
const maxErrorBytes = 64 << 10

type errorXML struct {
	XMLName   xml.Name `xml:"Error"`
	Code      string
	Message   string
	RequestID string `xml:"RequestId"`
}

// errorOf reads the Error in resp. It closes the body.
func errorOf(op, resource string, resp *http.Response) *Error {
	e := &Error{Op: op, StatusCode: resp.StatusCode, Resource: resource, RequestID: resp.Header.Get("X-Amz-Request-Id")}
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBytes))
	resp.Body.Close()
	var parsed errorXML
	if xml.Unmarshal(body, &parsed) == nil && parsed.Code != "" {
		e.Code, e.Message = parsed.Code, parsed.Message
		if e.RequestID == "" {
			e.RequestID = parsed.RequestID
		}
		return e
	}
	e.Code = codeOf(resp.StatusCode)
	return e
}

// codeOf names a status for which there is no body: HEAD answers have none.
func codeOf(status int) string {
	switch status {
	case http.StatusNotFound:
		return "NotFound"
	case http.StatusForbidden:
		return "AccessDenied"
	case http.StatusPreconditionFailed:
		return "PreconditionFailed"
	case http.StatusNotModified:
		return "NotModified"
	case http.StatusServiceUnavailable:
		return "ServiceUnavailable"
	}
	return fmt.Sprintf("HTTP%d", status)
}
