package shardstore

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"

	"github.com/millrace/millrace/nvme/shardstore/guardfs"
)

// metaFormat is the format of Pebble's files. It is named, and raised only by a deliberate step:
// an older binary can't open what a newer format has touched.
const metaFormat = pebble.FormatValueSeparation

// The first byte of every key in Pebble.
const (
	prefixDrive  = 'D' // the drive record, one
	prefixEngine = 'K' // the engine's records
	prefixShard  = 'S' // shard records
)

// Cache is the memory that several drives' metadata share: a cache of blocks and one of open
// files.
type Cache struct {
	blocks *pebble.Cache
	files  *pebble.FileCache
}

// NewCache makes a cache of sizeBytes of metadata blocks and openFiles open files. Close it after
// the stores that use it.
func NewCache(sizeBytes int64, openFiles int) *Cache {
	return &Cache{
		blocks: pebble.NewCache(sizeBytes),
		files:  pebble.NewFileCache(runtime.GOMAXPROCS(0), max(openFiles, 16)),
	}
}

// Close gives the memory back once the last store is closed too.
func (c *Cache) Close() {
	c.files.Unref()
	c.blocks.Unref()
}

func (s *Store) pebbleOptions(o *Options) *pebble.Options {
	po := &pebble.Options{
		FS:                          s.guard,
		Logger:                      pebbleLogger{s.guard, s.log},
		EventListener:               pebbleEvents(s.guard, s.log),
		FormatMajorVersion:          metaFormat,
		MemTableSize:                uint64(o.MemTableBytes),
		MemTableStopWritesThreshold: 4,
		L0CompactionThreshold:       2,
		L0StopWritesThreshold:       24,
		LBaseMaxBytes:               64 << 20,
		MaxOpenFiles:                256,
		MaxManifestFileSize:         4 << 20,
		Cache:                       s.cache.blocks,
		FileCache:                   s.cache.files,
	}
	for i := range po.Levels {
		po.Levels[i].BlockSize = 16 << 10
		po.Levels[i].IndexBlockSize = 64 << 10
		if i < len(po.Levels)-1 {
			po.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
		}
	}
	return po
}

// openPebble opens the metadata. It runs Pebble on a goroutine of its own: whatever damaged files
// make Pebble do there, a panic or a fatal log line included, ends up as an error.
func (s *Store) openPebble(o *Options, create bool) (*pebble.DB, error) {
	po := s.pebbleOptions(o)
	po.ErrorIfExists, po.ErrorIfNotExists = create, !create
	var db *pebble.DB
	err := errors.New("metadata: opening ended early")
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if p := recover(); p != nil {
				err = corruptf("metadata: %v", p)
			}
		}()
		db, err = pebble.Open(o.MetaDir, po)
	}()
	<-done
	mark := s.guard.Err()
	if err == nil && mark == nil {
		return db, nil
	}
	if err == nil {
		db.Close()
	}
	if mark != nil {
		return nil, fmt.Errorf("open metadata: %w", mark)
	}
	if pebble.IsCorruptionError(err) {
		return nil, fmt.Errorf("open metadata: %w: %w", ErrCorrupt, err)
	}
	return nil, fmt.Errorf("open metadata: %w", err)
}

// pebbleLogger keeps Pebble's fatal errors from ending the process.
type pebbleLogger struct {
	guard *guardfs.FS
	log   *slog.Logger
}

func (l pebbleLogger) Infof(format string, args ...any) {}

func (l pebbleLogger) Errorf(format string, args ...any) {
	l.log.Warn("metadata", "error", fmt.Sprintf(format, args...))
}

// Fatalf must not return, so it ends the goroutine, after the mark is set.
func (l pebbleLogger) Fatalf(format string, args ...any) {
	l.guard.Fail(fmt.Errorf("metadata: %s", fmt.Sprintf(format, args...)))
	runtime.Goexit()
}

// errorBackoff slows down Pebble's retries, which come without a pause of their own.
const errorBackoff = 50 * time.Millisecond

func pebbleEvents(guard *guardfs.FS, log *slog.Logger) *pebble.EventListener {
	return &pebble.EventListener{
		BackgroundError: func(err error) {
			if errors.Is(err, pebble.ErrCancelledCompaction) {
				return
			}
			guard.Fail(fmt.Errorf("metadata: %w", err))
			time.Sleep(errorBackoff)
		},
		DataCorruption: func(info pebble.DataCorruptionInfo) {
			guard.Fail(fmt.Errorf("metadata: %w: %s", ErrCorrupt, info))
		},
		DiskSlow: func(info pebble.DiskSlowInfo) {
			log.Warn("metadata slow", "event", info.String())
		},
	}
}
