// Package shardstore is one drive: superblocks, an allocator of its data area, shards with a
// checksum for every 64 KiB, and ordered records for the engine, with commits that are atomic over
// both and survive power cuts. Shard bytes lie on the raw device; records lie in Pebble.
//
// It knows nothing of other drives, of erasure coding, or of how a drive is found. A drive that does not
// answer for OpDeadline is dead, and every call returns then, but for ReadShard and WriteAt: those use their
// caller's buffers until the device answers, and a caller that must not hang runs them on a goroutine it
// can leave behind when Dead says so.
//
// Invariant: a record refers only to bytes that were flushed before it was committed, and the
// space of a shard is handed out again only after the commit that deleted it is durable. So at
// every moment a power cut leaves each acknowledged commit whole, and each other one whole or
// absent. A drive that fails a mutation is dead: no commit is acknowledged from then on.
package shardstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/millrace/millrace/nvme/blockdev"
	"github.com/millrace/millrace/nvme/shardstore/guardfs"
	"github.com/millrace/millrace/nvme/shardstore/running"
)

// Store is an open drive. Its methods may be called from many goroutines.
type Store struct {
	label    Label
	data     blockdev.Device
	guard    *guardfs.FS
	db       *pebble.DB
	log      *slog.Logger
	cache    *Cache
	ownCache bool
	space    *allocator
	flusher  *flusher
	records  *recordCache
	busy     busyShards
	room     metaRoom
	backlog  backlog
	relief   relief
	fit      compactionFit
	scans    scans

	compactions *scheduler
	gate        gate
	ops         *running.Ops  // calls to the device and the metadata file system
	stop        chan struct{} // closed at the end of Close
	keys        sync.Pool     // *keyBuffer
	syncing     atomic.Int32  // commits that wait for a sync of the log
	closing     sync.Once
	closeErr    error

	counters
}

// counters are what Stats tells, besides what others count.
type counters struct {
	shards         atomic.Int64
	commits        atomic.Uint64
	shardReads     atomic.Uint64
	readBytes      atomic.Uint64
	writtenBytes   atomic.Uint64
	checksumErrors atomic.Uint64
	readErrors     atomic.Uint64
}

// Stats is a snapshot of a store's counters.
type Stats struct {
	DataBytes      int64         // size of the area for shards
	FreeBytes      int64         // of it, what new shards may take
	ReservedBytes  int64         // of it, what writers hold that are not committed
	PendingBytes   int64         // of it, deleted, but not durably yet
	Shards         int64         // shard records
	MetaFreeBytes  int64         // free on the metadata file system when last asked; -1 unknown
	Commits        uint64        // commits acknowledged
	Flushes        uint64        // device flushes
	ShardReads     uint64        // ReadShard calls
	ReadBytes      uint64        // read from the device for them
	WrittenBytes   uint64        // shard bytes written to the device
	ChecksumErrors uint64        // blocks that failed their checksum
	ReadErrors     uint64        // device reads that failed
	OldestOp       time.Duration // age of the longest running call to the drive; 0 if none
}

// Open opens a formatted drive. Its errors: ErrNotFormatted, ErrNewerFormat, ErrForeignMetadata,
// those marked ErrCorrupt, and the device's and file system's own.
func Open(ctx context.Context, o Options) (*Store, error) {
	if err := o.setDefaults(); err != nil {
		return nil, err
	}
	label, err := readLabelWithin(o.OpDeadline, o.Data)
	if err != nil {
		return nil, err
	}
	s := newStore(&o, label)
	if s.db, err = s.openPebble(&o, false); err == nil {
		err = s.load(ctx, &o)
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// errHung is why a drive is dead that did not answer.
var errHung = errors.New("drive does not answer")

// readLabelWithin is ReadLabel for a device that may hang.
func readLabelWithin(deadline time.Duration, data blockdev.Device) (Label, error) {
	if deadline < 0 {
		return ReadLabel(data)
	}
	type result struct {
		label Label
		err   error
	}
	done := make(chan result, 1)
	go func() {
		label, err := ReadLabel(data)
		done <- result{label, err}
	}()
	timer := time.NewTimer(deadline)
	defer timer.Stop()
	select {
	case r := <-done:
		return r.label, r.err
	case <-timer.C:
		return Label{}, fmt.Errorf("read superblock: %w for %v", errHung, deadline)
	}
}

func newStore(o *Options, label Label) *Store {
	s := &Store{
		label:   label,
		data:    o.Data,
		log:     o.Logger.With("drive", label.Drive.String()),
		cache:   o.Cache,
		space:   newAllocator(reservedBytes, label.DataBytes-reservedBytes),
		ops:     running.New(),
		stop:    make(chan struct{}),
		records: newRecordCache(o.RecordCacheBytes),
	}
	s.flusher = newFlusher(o.Data, s.ops)
	if s.cache == nil {
		s.cache, s.ownCache = NewCache(ownCacheBytes, ownCacheFiles), true
	}
	s.gate.drained = make(chan struct{})
	s.busy.init()
	s.keys.New = func() any { return new(keyBuffer) }
	hook := o.DeadHook
	s.guard = guardfs.New(o.MetaFS, s.ops, func(err error) {
		s.log.Error("drive dead", "error", err)
		s.flusher.stop(err)
		if hook != nil {
			go hook(s.dead(err))
		}
	})
	s.fit.room = &s.room
	s.guard.RefuseCreate(s.fit.mayCreate)
	s.room.init(s.guard, o.MetaDir, o.MetaReserveBytes)
	s.relief.init()
	s.backlog.init(s.guard.Dead())
	go s.backlog.run(&s.gate, s.stop)
	if o.OpDeadline > 0 {
		go s.watch(o.OpDeadline)
	}
	return s
}

// watch kills the drive when one of its calls takes longer than the deadline.
func (s *Store) watch(deadline time.Duration) {
	tick := time.NewTicker(max(deadline/8, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-tick.C:
		}
		if age := s.ops.Oldest(); age > deadline {
			s.guard.Fail(fmt.Errorf("%w for %v", errHung, age.Round(time.Millisecond)))
			return
		}
	}
}

// load checks that the metadata is this drive's, and builds the free map from the shard records.
func (s *Store) load(ctx context.Context, o *Options) error {
	if err := s.checkDriveRecord(); err != nil {
		return err
	}
	if err := o.MetaFS.Remove(formattingPath(o)); err == nil {
		s.log.Info("format was finished")
	}
	return s.eachRecord(ctx, s.db, ShardID{}, func(id ShardID, r *shardRecord) error {
		s.shards.Add(1)
		for _, e := range r.extents {
			if err := s.space.reserve(e); err != nil {
				return fmt.Errorf("shard %s: %w", id, err)
			}
		}
		return nil
	})
}

func (s *Store) checkDriveRecord() error {
	value, closer, err := s.db.Get([]byte{prefixDrive})
	if errors.Is(err, pebble.ErrNotFound) {
		return corruptf("metadata without a drive record")
	}
	if err != nil {
		return fmt.Errorf("read drive record: %w", s.metaError(err))
	}
	defer closer.Close()
	if want := appendDriveRecord(nil, &s.label); !bytes.Equal(value, want) {
		if len(value) == len(want) && value[0] == want[0] {
			return fmt.Errorf("%w: data of drive %s, metadata of drive %s",
				ErrForeignMetadata, s.label.Drive, DriveID(value[1:17]))
		}
		return corruptf("drive record")
	}
	return nil
}

// Label gives the drive's label.
func (s *Store) Label() Label { return s.label }

// Err returns nil while the drive is alive, and a *DeadError once it is dead.
func (s *Store) Err() error {
	if err := s.guard.Err(); err != nil {
		return s.dead(err)
	}
	return nil
}

func (s *Store) dead(cause error) error { return &DeadError{Drive: s.label.Drive, Cause: cause} }

// kill marks the drive dead, unless it is already, and gives the error for the caller.
func (s *Store) kill(cause error) error {
	s.guard.Fail(cause)
	return s.Err()
}

// enter lets an operation in, or says why not. Each success needs one leave.
func (s *Store) enter() error {
	if !s.gate.enter() {
		return ErrClosed
	}
	if err := s.Err(); err != nil {
		s.gate.leave()
		return err
	}
	return nil
}

func (s *Store) leave() { s.gate.leave() }

// Dead gives a channel that is closed when the drive dies. A ReadShard or WriteAt that is under way
// then may go on for as long as the device does not answer, and uses its buffers until it returns.
func (s *Store) Dead() <-chan struct{} { return s.guard.Dead() }

// Close waits for running operations and open iterators, and closes the metadata. It does not
// flush or close the data device. Shards that are not committed are given up. It is idempotent.
// On a dead drive it waits for a moment only; what still runs then is closed when it ends.
func (s *Store) Close() error {
	s.closing.Do(func() {
		_, err := apart(s.guard, func() (struct{}, error) { return struct{}{}, s.close() })
		if dead := s.Err(); dead != nil {
			err = dead
		} else if err != nil {
			err = fmt.Errorf("close metadata: %w", err)
		}
		s.closeErr = err
	})
	return s.closeErr
}

func (s *Store) close() error {
	defer close(s.stop)
	s.relief.stop()
	s.gate.close()
	if s.ownCache {
		defer s.cache.Close()
	}
	if s.db == nil {
		return nil
	}
	return s.db.Close()
}

// Stats gives the counters. It waits for nothing on the data path.
func (s *Store) Stats() Stats {
	return Stats{
		DataBytes:      s.space.totalUnits * AllocUnitBytes,
		FreeBytes:      s.space.freeUnits.Load() * AllocUnitBytes,
		ReservedBytes:  s.space.reservedUnits.Load() * AllocUnitBytes,
		PendingBytes:   s.space.pendingUnits.Load() * AllocUnitBytes,
		Shards:         s.shards.Load(),
		MetaFreeBytes:  s.room.freeBytes.Load(),
		Commits:        s.commits.Load(),
		Flushes:        s.flusher.count.Load(),
		ShardReads:     s.shardReads.Load(),
		ReadBytes:      s.readBytes.Load(),
		WrittenBytes:   s.writtenBytes.Load(),
		ChecksumErrors: s.checksumErrors.Load(),
		ReadErrors:     s.readErrors.Load(),
		OldestOp:       s.ops.Oldest(),
	}
}
