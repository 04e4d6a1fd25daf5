package store

import "errors"

// The errors that the front branches on. A Store wraps them for context; use errors.Is.
var (
	ErrNoSuchBucket   = errors.New("no such bucket")
	ErrBucketExists   = errors.New("bucket exists")
	ErrBucketNotEmpty = errors.New("bucket not empty")
	ErrNoSuchKey      = errors.New("no such key")
	ErrNoSuchUpload   = errors.New("no such upload")
	ErrInvalidPart    = errors.New("part not uploaded")
	ErrInvalidRange   = errors.New("range outside the object")
	ErrBodyTooShort   = errors.New("body shorter than its stated size")
	ErrBodyTooLong    = errors.New("body longer than its stated size")
	// ErrOverloaded: the memory or queue budget is used up; the same call may work later.
	ErrOverloaded = errors.New("overloaded")
	// ErrUnavailable: too few drives live for this call now.
	ErrUnavailable = errors.New("too few drives available")
	// ErrFull: no space left for a write.
	ErrFull = errors.New("no space left")
	// ErrDamaged marks bytes that can't be given back right, with all redundancy used up.
	ErrDamaged = errors.New("object data damaged beyond its redundancy")
)
