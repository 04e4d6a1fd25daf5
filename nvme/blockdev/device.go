// Package blockdev is the one seam between the store and a drive's raw bytes: the Device
// interface and its implementations (a file or block device, memory that can lose power, and
// an injector of faults over any other).
//
// It is not a cache and holds no format: what the bytes mean is nvme/shardstore's matter.
//
// Invariant: after Flush has returned nil, every write that had returned before Flush was
// called survives a power cut; nothing else is promised to.
package blockdev

// AlignBytes is the alignment of offsets, lengths and memory that every Device accepts,
// whatever its sector size.
const AlignBytes = 4096

// Device is a raw drive, or the part of one that holds data. Its methods may be called at the
// same time from many goroutines; each blocks until the drive answers, and cannot be cancelled
// (a caller that must not hang calls it from a goroutine that it can leave behind). Offsets,
// buffer lengths and buffer addresses are multiples of AlignBytes; others give ErrUnaligned.
type Device interface {
	// ReadAt fills bufs, in order, from off. A short read is an error.
	ReadAt(bufs [][]byte, off int64) error
	// WriteAt writes bufs, in order, at off.
	WriteAt(bufs [][]byte, off int64) error
	// Flush makes every write that has returned durable. After an error the state of those
	// writes is unknown, and the device must not be trusted again.
	Flush() error
	// Discard tells the drive that the range is unused; reads of it then give any bytes.
	// Devices that can't do it return nil.
	Discard(off, n int64) error
	// SizeBytes is the usable size, a multiple of AlignBytes, fixed while open.
	SizeBytes() int64
	// Close releases the device. It does not flush.
	Close() error
}
