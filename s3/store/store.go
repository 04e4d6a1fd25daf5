// Package store says what the S3 front asks of the store of objects behind it: the types that
// cross that line, the interfaces, and the few errors that the front branches on.
//
// It is not a store. The object engine implements it over drives, store/memstore implements it
// in memory (the reference model and the fake for tests), and store/storetest is the one suite
// that both must pass.
//
// Invariant: what a method has acknowledged is visible to every later call (read-after-write,
// list-after-write), and a call that returns an error has changed nothing that can be seen.
package store

import (
	"context"
	"io"
	"time"

	"github.com/millrace/millrace/s3/checksum"
)

// Limits of names and sizes, as S3 has them.
const (
	MaxKeyBytes      = 1024
	MaxPartNumber    = 10_000
	MaxObjectBytes   = 5 << 40
	MaxPutBytes      = 5 << 30
	MinPartBytes     = 5 << 20
	MaxListEntries   = 1000
	NullVersion      = "null"
	MaxSystemBytes   = 8 << 10
	MaxUserMetaBytes = 2 << 10
)

// Bucket is a named collection of objects.
type Bucket struct {
	Name    string
	Owner   string // the account that made it
	Region  string
	Created time.Time
	// Attributes hold a bucket's configuration (policy, versioning, lifecycle …), each in the
	// form that the front gave it, by name. The store keeps them and does not read them.
	Attributes map[string][]byte
}

// Checksum is one additional checksum of an object or a part, as S3 names them.
type Checksum struct {
	Algorithm checksum.Algorithm
	Composite bool   // a checksum of the parts' checksums, not of the bytes
	Value     []byte // raw, not base64
}

// Part describes one part of a multipart upload or of a completed multipart object.
type Part struct {
	Number    int // 1 … MaxPartNumber
	SizeBytes int64
	ETag      string // without quotes
	Modified  time.Time
	Checksums []Checksum
}

// Object describes one version of an object. Values returned by a Store are the caller's.
type Object struct {
	Bucket, Key string
	VersionID   string // NullVersion unless the bucket keeps versions
	SizeBytes   int64
	Modified    time.Time // millisecond precision
	ETag        string    // without quotes
	Checksums   []Checksum
	// System holds the S3 system metadata that are returned as headers (Content-Type,
	// Cache-Control …) by canonical header name; User holds x-amz-meta-* by the lower-case
	// rest of the name.
	System, User map[string]string
	// Attributes are further facts of a version (tags, retention, encryption …), by name.
	Attributes map[string][]byte
	// Parts lists the parts of an object made by a multipart upload, in order; else it is nil.
	// List leaves it nil.
	Parts []Part
}

// Digests are what a store computed of the bytes that it was given.
type Digests struct {
	SizeBytes int64
	MD5       [16]byte
	CRC64NVME uint64
}

// Seal is what the front decides about an object once its bytes are known. Its zero value
// means: the ETag is the MD5 of the bytes, and there are no further checksums.
type Seal struct {
	ETag      string
	Checksums []Checksum
}

// Precondition judges the current version of a key (nil when there is none) at the moment
// of commit, when nothing else can change it. Its error is returned by the call as it is.
type Precondition func(current *Object) error

// PutRequest stores one object.
type PutRequest struct {
	Bucket, Key  string
	SizeBytes    int64
	System, User map[string]string
	Attributes   map[string][]byte
	// Body yields exactly SizeBytes bytes, then io.EOF. A shorter body gives ErrBodyTooShort,
	// any other error of Body is returned as it is; in both cases nothing is stored.
	Body io.Reader
	// Finish is called once when the whole body was read, before anything is committed. Its
	// error is returned as it is, and nothing is stored. It may be nil.
	Finish       func(Digests) (Seal, error)
	Precondition Precondition // may be nil
	// NoMD5 says that nobody needs Digests.MD5, which costs more than all else: Finish gives an ETag.
	NoMD5 bool
}

// Reader is an open version of an object. Its bytes stay readable until Close, whatever
// happens to the key meanwhile.
type Reader interface {
	Info() Object
	// WriteRange writes the bytes [off, off+n) to w, in order, in slices that are valid only
	// during each Write. Bytes that fail their checksum are never written.
	WriteRange(ctx context.Context, w io.Writer, off, n int64) error
	Close() error
}

// DeleteRequest removes one key.
type DeleteRequest struct {
	Bucket, Key  string
	Precondition Precondition
}

// ListRequest asks for a page of a bucket, in the order of the keys' bytes.
type ListRequest struct {
	Bucket    string
	Prefix    string
	Delimiter string // "" for none
	// After is exclusive: only keys and common prefixes greater than it are returned.
	After      string
	MaxEntries int // 0 … MaxListEntries; keys and common prefixes together
}

// ListPage is a page of a listing. Objects and Prefixes are each in order.
type ListPage struct {
	Objects   []Object
	Prefixes  []string
	Truncated bool
	Next      string // the last key or common prefix of the page: After of the next request
}

// Buckets is the set of buckets.
type Buckets interface {
	// CreateBucket returns ErrBucketExists, with the bucket that there is, if the name is taken.
	CreateBucket(ctx context.Context, b Bucket) (Bucket, error)
	Bucket(ctx context.Context, name string) (Bucket, error)
	ListBuckets(ctx context.Context) ([]Bucket, error) // by name
	// UpdateBucket applies change to the bucket's attributes in one step.
	UpdateBucket(ctx context.Context, name string, change func(*Bucket) error) error
	// DeleteBucket returns ErrBucketNotEmpty while a key or an upload is left in it.
	DeleteBucket(ctx context.Context, name string) error
}

// Objects is the set of objects of all buckets.
type Objects interface {
	Put(ctx context.Context, r PutRequest) (Object, error)
	// Open returns the current version; the caller must close it.
	Open(ctx context.Context, bucket, key string) (Reader, error)
	Stat(ctx context.Context, bucket, key string) (Object, error)
	// Delete returns nil for a key that is not there, when the precondition allows it.
	Delete(ctx context.Context, r DeleteRequest) error
	List(ctx context.Context, r ListRequest) (ListPage, error)
}

// ObjectUpdater is what a Store may do besides; a front without it has no operations that change the
// tags of an object.
type ObjectUpdater interface {
	// UpdateObject applies change to the Attributes of a key's current version in one step. Nothing
	// else of the version changes, Modified included. The error of change is returned as it is.
	UpdateObject(ctx context.Context, bucket, key string, change func(*Object) error) error
}

// Upload is a multipart upload in progress.
type Upload struct {
	Bucket, Key  string
	ID           string // opaque, URL-safe; later uploads of a key sort after earlier ones
	Owner        string
	Initiated    time.Time
	System, User map[string]string
	// Attributes as Object's; the front also keeps here what it must remember of the upload
	// (checksum algorithm and type).
	Attributes map[string][]byte
}

// PartRequest stores one part; an earlier part of the same number is replaced.
type PartRequest struct {
	Bucket, Key, UploadID string
	Number                int
	SizeBytes             int64
	Body                  io.Reader                   // as in PutRequest
	Finish                func(Digests) (Seal, error) // as in PutRequest
	NoMD5                 bool                        // as in PutRequest
}

// UploadsRequest asks for a page of the uploads of a bucket, by key, then by upload ID.
type UploadsRequest struct {
	Bucket, Prefix, Delimiter string
	// KeyAfter and IDAfter: only uploads after that (key, ID) pair; with IDAfter "" only those
	// of keys greater than KeyAfter.
	KeyAfter, IDAfter string
	MaxEntries        int
}

// UploadsPage is a page of uploads.
type UploadsPage struct {
	Uploads         []Upload
	Prefixes        []string
	Truncated       bool
	NextKey, NextID string
}

// CompleteRequest makes an object of the named parts, in the order given, without copying.
type CompleteRequest struct {
	Bucket, Key, UploadID string
	Numbers               []int // strictly ascending, each one uploaded, else ErrInvalidPart
	// Finish sees those parts, in order, and gives the ETag and the checksums of the whole.
	Finish       func(Upload, []Part) (Seal, error)
	Precondition Precondition
}

// Multipart is the set of multipart uploads. A call that names an upload which is not there, or
// not of that bucket and key, returns ErrNoSuchUpload.
type Multipart interface {
	CreateUpload(ctx context.Context, u Upload) (Upload, error) // sets ID and Initiated
	Upload(ctx context.Context, bucket, key, id string) (Upload, error)
	PutPart(ctx context.Context, r PartRequest) (Part, error)
	// ListParts returns up to maxParts parts with numbers greater than after, and whether
	// there are more.
	ListParts(ctx context.Context, bucket, key, id string, after, maxParts int) ([]Part, bool, error)
	ListUploads(ctx context.Context, r UploadsRequest) (UploadsPage, error)
	// CompleteUpload of an upload that made the key's current version returns that again.
	CompleteUpload(ctx context.Context, r CompleteRequest) (Object, error)
	AbortUpload(ctx context.Context, bucket, key, id string) error
}

// Store is all of it.
type Store interface {
	Buckets
	Objects
	Multipart
}
