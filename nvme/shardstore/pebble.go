package shardstore

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
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

// Syncs of the log take CPU time and the drive's, whatever they carry. While many commits wait, the next sync
// starts at least syncPause after the last, and takes more of them along; a few don't wait.
const (
	syncPause   = 500 * time.Microsecond
	manyCommits = 3
)

// syncInterval is how long Pebble waits from one sync to the next.
func (s *Store) syncInterval() time.Duration {
	if s.syncing.Load() < manyCommits {
		return 0
	}
	return syncPause
}

// rewriteAge is how old a file of bodies is before it is rewritten: in a younger one more may soon be garbage.
const rewriteAge = 5 * time.Second

// valueSeparation keeps the bodies of small objects out of the sorted tables: compactions move references
// instead of bytes, and a look-up reads small tables. What was deleted is given back by rewriting a file
// of bodies once a fifth of it is garbage. Compactions put bodies that lie scattered together again, where there is
// space for that.
func (s *Store) valueSeparation() pebble.ValueSeparationPolicy {
	p := pebble.ValueSeparationPolicy{
		Enabled:               true,
		MinimumSize:           1 << 10,
		MaxBlobReferenceDepth: 10,
		RewriteMinimumAge:     rewriteAge,
		TargetGarbageRatio:    0.2,
	}
	if s.room.tight() {
		p.MaxBlobReferenceDepth = math.MaxInt
	}
	return p
}

func (s *Store) pebbleOptions(o *Options) *pebble.Options {
	po := &pebble.Options{
		FS:                          s.guard,
		Logger:                      pebbleLogger{s.guard, s.log},
		EventListener:               s.pebbleEvents(),
		FormatMajorVersion:          metaFormat,
		MemTableSize:                uint64(s.room.memTableBytes(o.MemTableBytes)),
		MemTableStopWritesThreshold: 4,
		L0CompactionThreshold:       2,
		L0StopWritesThreshold:       1000, // commits wait before they get there: backlog
		LBaseMaxBytes:               s.room.baseLevelBytes(),
		MaxOpenFiles:                256,
		MaxManifestFileSize:         4 << 20,
		WALMinSyncInterval:          s.syncInterval,
		Cache:                       s.cache.blocks,
		FileCache:                   s.cache.files,
	}
	po.TargetFileSizes[0] = s.room.tableBytes() // the other levels' follow
	po.Experimental.ValueSeparationPolicy = s.valueSeparation
	for i := range po.Levels {
		po.Levels[i].BlockSize = 16 << 10
		po.Levels[i].IndexBlockSize = 64 << 10
		if i < len(po.Levels)-1 {
			po.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
		}
	}
	return po
}

// openPebble opens the metadata. A Pebble that opens on a drive that died meanwhile is closed again.
func (s *Store) openPebble(o *Options, create bool) (*pebble.DB, error) {
	s.compactions = newScheduler(s.guard, &s.fit, s.scans.letGo)
	db, err := apart(s.guard, func() (*pebble.DB, error) {
		s.room.open()
		po := s.pebbleOptions(o)
		po.ErrorIfExists, po.ErrorIfNotExists = create, !create
		po.Experimental.CompactionScheduler = s.compactions
		db, err := pebble.Open(o.MetaDir, po)
		if mark := s.guard.Err(); err == nil && mark != nil {
			_ = db.Close() // what matters is the mark
			return nil, mark
		}
		return db, err
	})
	switch mark := s.guard.Err(); {
	case err == nil:
		s.backlog.db.Store(db)
		s.backlog.touch()
		s.compactions.open()
		return db, nil
	case mark != nil:
		err = mark
	case pebble.IsCorruptionError(err):
		err = fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return nil, fmt.Errorf("open metadata: %w", err)
}

// abandonAfter bounds the wait for Pebble on a dead drive, where it may have lost a goroutine.
const abandonAfter = time.Second

// errLeft is the error of work that ended early, or was left behind.
var errLeft = errors.New("metadata store stopped")

// apart runs fn on a goroutine of its own. Whatever damaged files make Pebble do there, a panic or
// a fatal log line included, ends up as an error; and on a dead drive it is waited for only so long.
func apart[T any](guard *guardfs.FS, fn func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		r := result{err: errLeft}
		defer func() {
			if p := recover(); p != nil {
				r.err = corruptf("metadata: %v", p)
			}
			done <- r
		}()
		r.value, r.err = fn()
	}()
	var r result
	for {
		dead := guard.Err() != nil
		select {
		case r = <-done:
			return r.value, r.err
		case <-time.After(abandonAfter):
			if dead {
				return r.value, errLeft
			}
		}
	}
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
const errorBackoff = 10 * time.Millisecond

func (s *Store) pebbleEvents() *pebble.EventListener {
	return &pebble.EventListener{
		BackgroundError: func(err error) {
			if errors.Is(err, pebble.ErrCancelledCompaction) || errors.Is(err, errNoSpaceFor) {
				return
			}
			s.guard.Fail(fmt.Errorf("metadata: %w", err))
			if !s.gate.closed() { // else one for each table that can't be read would add up
				time.Sleep(errorBackoff)
			}
		},
		FlushEnd:        func(pebble.FlushInfo) { s.backlog.touch() },
		CompactionBegin: func(info pebble.CompactionInfo) { s.fit.begin(inputBytes(&info)) },
		CompactionEnd: func(pebble.CompactionInfo) {
			s.fit.end()
			s.backlog.touch()
		},
		BlobFileRewriteBegin: func(info pebble.BlobFileRewriteInfo) { s.fit.begin(info.Input.Size) },
		BlobFileRewriteEnd:   func(pebble.BlobFileRewriteInfo) { s.fit.end() },
		DataCorruption: func(info pebble.DataCorruptionInfo) {
			s.guard.Fail(fmt.Errorf("metadata: %w: %s", ErrCorrupt, info))
		},
		DiskSlow: func(info pebble.DiskSlowInfo) {
			s.log.Warn("metadata slow", "event", info.String())
		},
	}
}
