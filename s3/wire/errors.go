package wire

import "net/http"

// Code is one of S3's error codes.
type Code string

// The codes that are given here, as the Amazon S3 API reference ("Error responses") names them.
const (
	AccessDenied              Code = "AccessDenied"
	BadDigest                 Code = "BadDigest"
	BucketAlreadyExists       Code = "BucketAlreadyExists"
	BucketAlreadyOwnedByYou   Code = "BucketAlreadyOwnedByYou"
	BucketNotEmpty            Code = "BucketNotEmpty"
	EntityTooLarge            Code = "EntityTooLarge"
	EntityTooSmall            Code = "EntityTooSmall"
	IncompleteBody            Code = "IncompleteBody"
	InternalError             Code = "InternalError"
	InvalidArgument           Code = "InvalidArgument"
	InvalidBucketName         Code = "InvalidBucketName"
	InvalidDigest             Code = "InvalidDigest"
	InvalidLocationConstraint Code = "InvalidLocationConstraint"
	InvalidPart               Code = "InvalidPart"
	InvalidPartOrder          Code = "InvalidPartOrder"
	InvalidRange              Code = "InvalidRange"
	InvalidRDMAToken          Code = "InvalidRDMAToken"
	InvalidRequest            Code = "InvalidRequest"
	InvalidStorageClass       Code = "InvalidStorageClass"
	InvalidTag                Code = "InvalidTag"
	InvalidURI                Code = "InvalidURI"
	KeyTooLongError           Code = "KeyTooLongError"
	MalformedXML              Code = "MalformedXML"
	MaxMessageLengthExceeded  Code = "MaxMessageLengthExceeded"
	MetadataTooLarge          Code = "MetadataTooLarge"
	MethodNotAllowed          Code = "MethodNotAllowed"
	MissingContentLength      Code = "MissingContentLength"
	NoSuchBucket              Code = "NoSuchBucket"
	NoSuchKey                 Code = "NoSuchKey"
	NoSuchTagSet              Code = "NoSuchTagSet"
	NoSuchUpload              Code = "NoSuchUpload"
	NoSuchVersion             Code = "NoSuchVersion"
	NotImplemented            Code = "NotImplemented"
	NotModified               Code = "NotModified"
	PreconditionFailed        Code = "PreconditionFailed"
	RDMANotSupported          Code = "RDMANotSupported"
	RDMASessionBusy           Code = "RDMASessionBusy"
	RDMATooLarge              Code = "RDMATooLarge"
	RDMATransferFailed        Code = "RDMATransferFailed"
	RDMATransferTimeout       Code = "RDMATransferTimeout"
	NoSuchRDMASession         Code = "NoSuchRDMASession"
	RequestTimeout            Code = "RequestTimeout"
	ServiceUnavailable        Code = "ServiceUnavailable"
	SlowDown                  Code = "SlowDown"
	StorageFull               Code = "StorageFull"
)

type codeInfo struct {
	status  int
	message string
}

// codes has the status and the usual message of every code.
var codes = map[Code]codeInfo{
	AccessDenied: {http.StatusForbidden, "Access Denied"},
	BadDigest: {http.StatusBadRequest,
		"The Content-MD5 or checksum value that you specified did not match what the server received."},
	BucketAlreadyExists: {http.StatusConflict,
		"The requested bucket name is not available. Select a different name and try again."},
	BucketAlreadyOwnedByYou: {http.StatusConflict,
		"Your previous request to create the named bucket succeeded and you already own it."},
	BucketNotEmpty: {http.StatusConflict, "The bucket you tried to delete is not empty"},
	EntityTooLarge: {http.StatusBadRequest, "Your proposed upload exceeds the maximum allowed size"},
	EntityTooSmall: {http.StatusBadRequest, "Your proposed upload is smaller than the minimum allowed size"},
	IncompleteBody: {http.StatusBadRequest,
		"You did not provide the number of bytes specified by the Content-Length HTTP header"},
	InternalError:     {http.StatusInternalServerError, "We encountered an internal error. Please try again."},
	InvalidArgument:   {http.StatusBadRequest, "Invalid Argument"},
	InvalidBucketName: {http.StatusBadRequest, "The specified bucket is not valid."},
	InvalidDigest:     {http.StatusBadRequest, "The Content-MD5 you specified was invalid."},
	InvalidLocationConstraint: {http.StatusBadRequest,
		"The specified location-constraint is not valid"},
	InvalidPart: {http.StatusBadRequest, "One or more of the specified parts could not be found. " +
		"The part may not have been uploaded, or the specified entity tag may not match the part's entity tag."},
	InvalidPartOrder: {http.StatusBadRequest,
		"The list of parts was not in ascending order. Parts must be ordered by part number."},
	InvalidRange: {http.StatusRequestedRangeNotSatisfiable, "The requested range is not satisfiable"},
	// The codes of RDMA are of the draft "RDMA protocol for S3", version 1.0.
	InvalidRDMAToken: {http.StatusBadRequest, "The RDMA token is malformed."},
	RDMANotSupported: {http.StatusNotImplemented,
		"This request can't be served by RDMA. Send it again without an RDMA token."},
	NoSuchRDMASession:   {http.StatusNotFound, "There is no such RDMA session, or no longer."},
	RDMASessionBusy:     {http.StatusConflict, "The RDMA session is in use, or was used."},
	RDMATooLarge:        {http.StatusRequestEntityTooLarge, "The transfer is larger than what can be done in one by RDMA."},
	RDMATransferTimeout: {http.StatusRequestTimeout, "The bytes did not come by RDMA in time."},
	RDMATransferFailed:  {http.StatusInternalServerError, "The transfer by RDMA failed."},
	InvalidRequest:      {http.StatusBadRequest, "Invalid Request"},
	InvalidStorageClass: {http.StatusBadRequest, "The storage class you specified is not valid"},
	InvalidTag:          {http.StatusBadRequest, "The tag provided was not a valid tag."},
	InvalidURI:          {http.StatusBadRequest, "Couldn't parse the specified URI."},
	KeyTooLongError:     {http.StatusBadRequest, "Your key is too long"},
	MalformedXML: {http.StatusBadRequest,
		"The XML you provided was not well-formed or did not validate against our published schema"},
	MaxMessageLengthExceeded: {http.StatusBadRequest, "Your request was too big."},
	MetadataTooLarge: {http.StatusBadRequest,
		"Your metadata headers exceed the maximum allowed metadata size"},
	MethodNotAllowed: {http.StatusMethodNotAllowed,
		"The specified method is not allowed against this resource."},
	MissingContentLength: {http.StatusLengthRequired, "You must provide the Content-Length HTTP header."},
	NoSuchBucket:         {http.StatusNotFound, "The specified bucket does not exist"},
	NoSuchKey:            {http.StatusNotFound, "The specified key does not exist."},
	NoSuchTagSet:         {http.StatusNotFound, "The TagSet does not exist"},
	NoSuchUpload: {http.StatusNotFound, "The specified upload does not exist. " +
		"The upload ID may be invalid, or the upload may have been aborted or completed."},
	NoSuchVersion: {http.StatusNotFound, "The specified version does not exist."},
	NotImplemented: {http.StatusNotImplemented,
		"A header or operation you provided implies functionality that is not implemented"},
	NotModified: {http.StatusNotModified, "Not Modified"},
	PreconditionFailed: {http.StatusPreconditionFailed,
		"At least one of the pre-conditions you specified did not hold"},
	RequestTimeout: {http.StatusBadRequest,
		"Your socket connection to the server was not read from or written to within the timeout period."},
	ServiceUnavailable: {http.StatusServiceUnavailable, "Service is unable to handle request."},
	SlowDown:           {http.StatusServiceUnavailable, "Please reduce your request rate."},
	// 507 is no code of Amazon's, which is never full. Clients retry 500 and 503, but not this.
	StorageFull: {http.StatusInsufficientStorage, "There is not enough space left to store this."},
}

// Status returns the HTTP status that goes with the code; 500 for a code that is not in the table.
func (c Code) Status() int {
	if info, ok := codes[c]; ok {
		return info.status
	}
	return http.StatusInternalServerError
}

// Message returns the usual message of the code.
func (c Code) Message() string { return codes[c].message }

// Field is one further element of an error's body.
type Field struct{ Name, Value string }

// Error is an answer that is an error. Only Code has to be set.
type Error struct {
	Code    Code
	Message string // if it is to say more than Code.Message
	Status  int    // if it is not Code.Status
	Fields  []Field
	Cause   error // for the log; clients don't see it
}

// Error returns the code, the message and the cause.
func (e *Error) Error() string {
	text := string(e.Code) + ": " + e.Text()
	if e.Cause != nil {
		text += ": " + e.Cause.Error()
	}
	return text
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// Text returns the message that the client sees.
func (e *Error) Text() string {
	if e.Message != "" {
		return e.Message
	}
	return e.Code.Message()
}

// HTTPStatus returns the status that the client sees.
func (e *Error) HTTPStatus() int {
	if e.Status != 0 {
		return e.Status
	}
	return e.Code.Status()
}

// InvalidArg returns the error for an argument with a value that it must not have.
func InvalidArg(name, value, message string) *Error {
	return &Error{Code: InvalidArgument, Message: message, Fields: []Field{
		{"ArgumentName", name}, {"ArgumentValue", value},
	}}
}

// Refuse returns InvalidRequest with a message.
func Refuse(message string) *Error { return &Error{Code: InvalidRequest, Message: message} }

// AppendError appends the XML body of an error.
func AppendError(dst []byte, e *Error, resource, requestID, hostID string) []byte {
	x := XML{b: append(dst, xmlDeclaration...)}
	x.Open("Error")
	x.Text("Code", string(e.Code))
	x.Text("Message", e.Text())
	for _, f := range e.Fields {
		x.Text(f.Name, f.Value)
	}
	x.Text("Resource", resource)
	x.Text("RequestId", requestID)
	x.Text("HostId", hostID)
	x.Close("Error")
	return x.b
}
