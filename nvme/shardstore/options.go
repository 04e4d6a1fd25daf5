package shardstore

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/millrace/millrace/nvme/blockdev"
)

// Options say where a drive's two parts are, and what it may use. Zero values mean the defaults.
type Options struct {
	// Data is the drive's raw part. The store does not close it.
	Data blockdev.Device
	// MetaFS and MetaDir are the file system and the folder of the drive's metadata.
	MetaFS  vfs.FS
	MetaDir string
	// Cache is shared between drives. Without one the store has a small one of its own.
	Cache *Cache
	// Logger gets warnings of the metadata store. Default: none.
	Logger *slog.Logger
	// DeadHook is called once, on a goroutine of its own, when the drive dies; that may be while Open
	// or Format is still at work, and they return the error too.
	DeadHook func(error)
	// MetaReserveBytes is what new records leave free on the metadata file system, so that a full
	// drive can still start, delete and compact. Default an eighth of it, but 64 MiB at least and 256 MiB at most;
	// negative means nothing is reserved.
	MetaReserveBytes int64
	// MemTableBytes is the size of one of the (at most four) tables of new records in memory.
	// Default 8 MiB: larger ones cost memory, smaller ones more compaction work. A 32nd of the reserve at most.
	MemTableBytes int64
	// RecordCacheBytes bounds the memory of decoded shard records. Default 4 MiB; negative: none.
	RecordCacheBytes int64
	// OpDeadline is how long a call to the data device or the metadata file system may take before the
	// drive counts as hung, which makes it dead. Default 30 seconds, as long as the kernel gives an
	// NVMe command; negative: for ever.
	OpDeadline time.Duration
	// Overwrite lets Format destroy what is on the drive.
	Overwrite bool
}

const (
	minMetaReserveBytes     = 64 << 20
	maxMetaReserveBytes     = 256 << 20
	metaReserveShare        = 8 // one in so many bytes of the file system
	defaultMemTableBytes    = 8 << 20
	defaultRecordCacheBytes = 4 << 20
	defaultOpDeadline       = 30 * time.Second
	ownCacheBytes           = 8 << 20
	ownCacheFiles           = 64
)

func (o *Options) setDefaults() error {
	if o.Data == nil || o.MetaFS == nil || o.MetaDir == "" {
		return fmt.Errorf("%w: options without Data, MetaFS or MetaDir", ErrInvalid)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	setDefault(&o.MemTableBytes, defaultMemTableBytes)
	setDefault(&o.RecordCacheBytes, defaultRecordCacheBytes)
	setDefault(&o.OpDeadline, defaultOpDeadline)
	return nil
}

func setDefault[T int64 | time.Duration](v *T, d T) {
	if *v == 0 {
		*v = d
	}
}
