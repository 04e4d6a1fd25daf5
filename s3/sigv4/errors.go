package sigv4

import (
	"net/http"
	"strconv"
	"time"
)

// Field is one further element of an S3 error body.
type Field struct{ Name, Value string }

// Error is a refusal in S3's terms. Fields hold what the client sent, and what was derived from
// that without a secret; they go into the error's body, and are too long to log.
type Error struct {
	Code    string // S3's error code
	Message string
	Status  int // of HTTP
	Fields  []Field
}

// Error returns the code and the message.
func (e *Error) Error() string { return e.Code + ": " + e.Message }

// Field returns the value of a field; "" if it is not there.
func (e *Error) Field(name string) string {
	for _, f := range e.Fields {
		if f.Name == name {
			return f.Value
		}
	}
	return ""
}

func refuse(status int, code, message string, fields ...Field) *Error {
	return &Error{Code: code, Message: message, Status: status, Fields: fields}
}

func errUnsupported() *Error {
	return refuse(http.StatusBadRequest, "InvalidRequest",
		"The authorization mechanism you have provided is not supported. Please use AWS4-HMAC-SHA256.")
}

func errAuthorizationType(value string) *Error {
	return refuse(http.StatusBadRequest, "InvalidArgument", "Unsupported Authorization Type",
		Field{"ArgumentName", "Authorization"}, Field{"ArgumentValue", value})
}

func errTwoMechanisms() *Error {
	return refuse(http.StatusBadRequest, "InvalidArgument", "Only one auth mechanism allowed; only the "+
		"X-Amz-Algorithm query parameter, Signature query string parameter or the Authorization header should be specified")
}

func errURI() *Error {
	return refuse(http.StatusBadRequest, "InvalidURI", "Couldn't parse the specified URI.")
}

// errMalformed is the refusal of what a signature says of itself, in header or presigned form.
func errMalformed(presigned bool, detail string, fields ...Field) *Error {
	if presigned {
		return refuse(http.StatusBadRequest, "AuthorizationQueryParametersError", detail, fields...)
	}
	return refuse(http.StatusBadRequest, "AuthorizationHeaderMalformed",
		"The authorization header is malformed; "+detail, fields...)
}

func errRegion(presigned bool, got, want string) *Error {
	detail := "the region '" + got + "' is wrong; expecting '" + want + "'"
	if presigned {
		detail = "Error parsing the X-Amz-Credential parameter; " + detail
	}
	return errMalformed(presigned, detail, Field{"Region", want})
}

func errAccessDenied(message string, fields ...Field) *Error {
	return refuse(http.StatusForbidden, "AccessDenied", message, fields...)
}

func errSkewed(timestamp string, now time.Time) *Error {
	return refuse(http.StatusForbidden, "RequestTimeTooSkewed",
		"The difference between the request time and the current time is too large.",
		Field{"RequestTime", timestamp},
		Field{"ServerTime", now.UTC().Format(time.RFC3339)},
		Field{"MaxAllowedSkewMilliseconds", strconv.FormatInt(MaxSkew.Milliseconds(), 10)})
}

func errUnknownAccessKey(accessKey string) *Error {
	return refuse(http.StatusForbidden, "InvalidAccessKeyId",
		"The AWS Access Key Id you provided does not exist in our records.", Field{"AWSAccessKeyId", accessKey})
}

func errToken() *Error {
	return refuse(http.StatusBadRequest, "InvalidToken", "The provided token is malformed or otherwise invalid.")
}

// ChunkMismatch returns the refusal of a chunk or trailer whose signature is wrong.
func ChunkMismatch() *Error {
	return refuse(http.StatusForbidden, "SignatureDoesNotMatch", mismatchMessage)
}

const mismatchMessage = "The request signature we calculated does not match the signature you provided. " +
	"Check your key and signing method."

func errSignature(c *claim, stringToSign, canonicalRequest []byte) *Error {
	return refuse(http.StatusForbidden, "SignatureDoesNotMatch", mismatchMessage,
		Field{"AWSAccessKeyId", c.accessKey},
		Field{"StringToSign", string(stringToSign)},
		Field{"SignatureProvided", c.signature},
		Field{"CanonicalRequest", string(canonicalRequest)})
}
