// Package segment writes and reads one segment over the shards of its scheme, in bounded memory: window by
// window, each window some whole stripes, with buffers from the arena. Bytes go from the body into the
// buffers that the drives are given, and from the buffers that the drives filled to the client; nothing
// copies them in between.
//
// It is not the engine: it doesn't know where shards are, commits nothing, and leaves it to its caller to
// judge whether the shards that were written suffice. It does not verify checksums either; its shard
// readers do, and an error of theirs means that the range is missing.
//
// Invariant: a byte reaches the client only if its own shard vouched for it, or if it was reconstructed
// from shards that each vouched for theirs; and a buffer returns to the arena only when no call can touch it.
package segment

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/appliance/arena"
	"github.com/millrace/millrace/appliance/erasure"
	"github.com/millrace/millrace/s3/checksum"
)

// ShardWriter takes the bytes of one shard.
type ShardWriter interface {
	// WriteAt writes bufs, in order, at off of the shard: whole checksum blocks, or up to the shard's end.
	// crcs has the CRC64NVME of each of these blocks. Calls for one shard are made one after the other, with
	// rising offsets, and never again after an error.
	WriteAt(bufs [][]byte, off int64, crcs []uint64) error
}

// ShardReader gives the bytes of one shard.
type ShardReader interface {
	// ReadShard fills bufs, in order, from off of the shard: whole checksum blocks, or up to the shard's
	// end. It returns nil only if all of them match their checksums. It may be called from several
	// goroutines, and may still be running when the read that it serves has returned.
	ReadShard(off int64, bufs [][]byte) error
}

// Paced is a ShardReader that learns how long its reads take, and may ask to be spared.
type Paced interface {
	// Took tells how long a read took, or how long it was waited for in vain.
	Took(time.Duration)
	// Slow is asked once a Read: a shard that is slow is read only if the others are too few.
	Slow() bool
}

// The errors that callers branch on.
var (
	// ErrBodyShort is returned by Write when the body ends before the segment's size.
	ErrBodyShort = errors.New("body ended early")
	// ErrTooFewShards is returned when fewer shards work than the scheme has data shards. The errors of
	// the shards are wrapped beside it.
	ErrTooFewShards = erasure.ErrTooFewShards
	// ErrNoShard is the error in a WriteResult of a shard that had no writer.
	ErrNoShard = errors.New("no shard writer")
)

// ShardError is the failure of one shard.
type ShardError struct {
	Shard int
	Err   error
}

// Error names the shard.
func (e *ShardError) Error() string { return fmt.Sprintf("shard %d: %v", e.Shard, e.Err) }

// Unwrap returns the error of the shard.
func (e *ShardError) Unwrap() error { return e.Err }

// Defaults of Config.
const (
	DefaultWindowBytes = 2 << 20
	DefaultHedgeAfter  = 30 * time.Millisecond
)

// hedgeFactor times the median duration of a shard read is slow.
const hedgeFactor = 8

// Config says what an IO works with.
type Config struct {
	Arena *arena.Arena
	// WindowBytes is the data that moves in one step, rounded down to whole stripes, at least one. A
	// segment of several windows takes two from the arena. 0 means DefaultWindowBytes.
	WindowBytes int
	// HedgeAfter is the least time after which a shard read counts as slow, and the shard is
	// reconstructed from others instead; it is longer when reads in general take long. 0 means
	// DefaultHedgeAfter, less than 0 never.
	HedgeAfter time.Duration
}

// IO writes and reads segments. Its methods may be called from many goroutines at once.
type IO struct {
	cfg        Config
	coders     erasure.Coders
	blockShift *checksum.Shift
	readers    sync.Pool
	waiters    waiters
	readNanos  atomic.Int64 // running median of the duration of a shard read
}

// New returns an IO over an arena.
func New(cfg Config) *IO {
	if cfg.WindowBytes <= 0 {
		cfg.WindowBytes = DefaultWindowBytes
	}
	if cfg.HedgeAfter == 0 {
		cfg.HedgeAfter = DefaultHedgeAfter
	}
	return &IO{cfg: cfg, blockShift: checksum.NewCRC64Shift(erasure.BlockBytes)}
}

// windowStripes is the number of stripes in a window.
func (o *IO) windowStripes(g erasure.Geometry) int {
	return min(max(1, o.cfg.WindowBytes/int(g.StripeBytes())), g.Stripes())
}

func checkShards(g erasure.Geometry, n int) error {
	if err := g.Validate(); err != nil {
		return err
	}
	if n != g.Scheme.Shards() {
		return fmt.Errorf("scheme %v with %d shards", g.Scheme, n)
	}
	return nil
}

// tooFew wraps the errors of the shards beside ErrTooFewShards.
func tooFew(failed []error) error {
	errs := []error{ErrTooFewShards}
	for j, err := range failed {
		if err != nil {
			errs = append(errs, &ShardError{Shard: j, Err: err})
		}
	}
	return errors.Join(errs...)
}
