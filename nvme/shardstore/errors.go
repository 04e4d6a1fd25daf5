package shardstore

import (
	"errors"
	"fmt"
)

// The errors that callers branch on, by errors.Is.
var (
	// ErrNotFound: there is no record of that key or shard.
	ErrNotFound = errors.New("not found")
	// ErrFull: the data area or the metadata file system has no room. Deletes still work.
	ErrFull = errors.New("drive full")
	// ErrDead: the drive failed a mutation and does no work any more. The text names the cause.
	ErrDead = errors.New("drive dead")
	// ErrClosed: the store was closed.
	ErrClosed = errors.New("store closed")
	// ErrCorrupt marks what was read and does not match its checksum or its format.
	ErrCorrupt = errors.New("corrupt")
	// ErrNotFormatted: the device has no superblock.
	ErrNotFormatted = errors.New("not formatted")
	// ErrFormatted: the device or the metadata folder is in use already; Format leaves it alone.
	ErrFormatted = errors.New("already formatted")
	// ErrNewerFormat: the drive was formatted or upgraded by a newer version.
	ErrNewerFormat = errors.New("newer on-disk format")
	// ErrForeignMetadata: the metadata folder belongs to another drive than the data.
	ErrForeignMetadata = errors.New("metadata of another drive")
	// ErrTooLarge: a shard, a key, a value or a batch is over its limit.
	ErrTooLarge = errors.New("too large")
	// ErrInvalid: the arguments break the contract of the call.
	ErrInvalid = errors.New("invalid argument")
)

var errBatchUsed = fmt.Errorf("%w: batch used up", ErrInvalid)

// DeadError says why a drive is dead. errors.Is(err, ErrDead) holds, and so does errors.Is for
// the cause.
type DeadError struct {
	Drive DriveID
	Cause error
}

// Error implements error.
func (e *DeadError) Error() string { return fmt.Sprintf("drive %s dead: %v", e.Drive, e.Cause) }

// Unwrap gives ErrDead and the cause.
func (e *DeadError) Unwrap() []error { return []error{ErrDead, e.Cause} }

// ChecksumError says that blocks of a shard do not match their checksums. errors.Is(err,
// ErrCorrupt) holds.
type ChecksumError struct {
	Shard  ShardID
	Blocks []int // the numbers of the bad blocks within the shard, ascending
}

// Error implements error.
func (e *ChecksumError) Error() string {
	return fmt.Sprintf("shard %s: %d blocks fail their checksum, first %d", e.Shard, len(e.Blocks), e.Blocks[0])
}

// Unwrap gives ErrCorrupt.
func (e *ChecksumError) Unwrap() error { return ErrCorrupt }

// corruptf makes an error that is marked ErrCorrupt.
func corruptf(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrCorrupt, fmt.Sprintf(format, args...))
}
