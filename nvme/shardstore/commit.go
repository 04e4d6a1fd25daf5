package shardstore

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/millrace/millrace/nvme/shardstore/guardfs"
)

// Commit applies the batch: with shards in it, the device is flushed first, then one Pebble batch
// is written; with sync it is durable when Commit returns nil. The batch is used up. ErrFull,
// ErrInvalid and ErrTooLarge leave the drive as it was, and the writers to be aborted. A flush or
// a commit that fails kills the drive (ErrDead): the commit is then there wholly or not at all.
// ctx is looked at before the work starts, and not later.
func (s *Store) Commit(ctx context.Context, b *Batch, sync bool) error {
	defer b.Close()
	if err := ctx.Err(); err != nil {
		return err
	}
	if b.err != nil {
		return b.err
	}
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	if err := s.backlog.wait(); err != nil {
		return s.Err()
	}
	s.awaitSpace()
	if b.grows && !s.hasRoom(b.pb.Len()) && !b.frees {
		return fmt.Errorf("metadata: %w", ErrFull)
	}
	if len(b.puts) == 0 && len(b.deletes) == 0 {
		return s.apply(b, sync)
	}
	return s.commitShards(b, sync)
}

// hasRoom says whether there is room for n bytes of new records. If not, it sees to it that some is made.
func (s *Store) hasRoom(n int) bool {
	if s.room.enough(n, s.ops.Now()) {
		return true
	}
	s.makeRoom()
	return false
}

// HasRoom says whether new records would be taken now, as far as space goes: false if the metadata is full.
func (s *Store) HasRoom() bool {
	if s.enter() != nil {
		return true // the commit tells what is wrong
	}
	defer s.leave()
	return s.hasRoom(0)
}

// HasReserve says whether so much of the reserve is left that what frees space should be committed. The store itself takes
// it as long as there is any.
func (s *Store) HasReserve() bool {
	if s.enter() != nil {
		return true
	}
	defer s.leave()
	s.hasRoom(0)
	return !s.room.atFloor()
}

func (s *Store) commitShards(b *Batch, sync bool) error {
	ids := b.ids()
	s.busy.lock(ids)
	defer s.busy.unlock(ids)
	for i, w := range b.puts {
		err := fmt.Errorf("%w: shard writer of another store", ErrInvalid)
		if w.s == s {
			err = w.advance(writerOpen, writerCommitting)
		}
		if err != nil {
			reopen(b.puts[:i])
			return err
		}
	}
	old, err := s.stageShards(b, ids)
	if err == nil && len(b.puts) > 0 {
		if err = s.flusher.flush(); err != nil {
			err = s.kill(fmt.Errorf("flush: %w", err))
		}
	}
	if err == nil {
		err = s.apply(b, sync)
	}
	if err != nil {
		reopen(b.puts)
		return err
	}
	s.finishShards(b, old, sync)
	return nil
}

// reopen lets the writers of a failed commit be aborted.
func reopen(writers []*ShardWriter) {
	for _, w := range writers {
		w.advance(writerCommitting, writerOpen)
	}
}

// oldShard is a record that a commit replaces or deletes.
type oldShard struct {
	id  ShardID
	rec *shardRecord
}

// stageShards puts the records of the batch's shards into the Pebble batch, and gives those that
// are there now. The caller has the ids locked.
func (s *Store) stageShards(b *Batch, ids []ShardID) (old []oldShard, err error) {
	for _, id := range ids {
		rec, _ := s.records.get(id)
		if rec == nil {
			rec, err = s.loadRecord(id)
		}
		if errors.Is(err, ErrNotFound) {
			err = nil
			continue
		}
		if err != nil {
			return nil, err
		}
		old = append(old, oldShard{id, rec})
	}
	kb := s.keys.Get().(*keyBuffer)
	defer s.keys.Put(kb)
	for _, id := range b.deletes {
		kb.key = appendShardKey(kb.key[:0], id)
		b.note(b.pb.Delete(kb.key, nil))
	}
	for _, w := range b.puts {
		kb.key = appendShardKey(kb.key[:0], w.id)
		kb.value = appendShardRecord(kb.value[:0], kb.key, &w.rec)
		b.note(b.pb.Set(kb.key, kb.value, nil))
	}
	return old, b.err
}

// apply commits the Pebble batch. Its success is believed only if the mark is not set after it.
func (s *Store) apply(b *Batch, sync bool) error {
	opts := pebble.NoSync
	var pending []Extent
	if sync {
		opts = pebble.Sync
		pending = s.space.postponed()
		if b.pb.Empty() { // Pebble would not sync
			b.note(b.pb.LogData(nil, nil))
		}
	}
	if !b.pb.Empty() {
		if sync {
			s.syncing.Add(1)
			defer s.syncing.Add(-1)
		}
		if err := b.pb.Commit(opts); err != nil {
			return s.kill(fmt.Errorf("commit: %w", err))
		}
	}
	if err := s.Err(); err != nil {
		return err
	}
	s.commits.Add(1)
	if b.shrinks {
		s.relief.noteDeleted()
	}
	if len(pending) > 0 {
		s.space.settle(pending)
	}
	return nil
}

// finishShards tells everybody of a commit that has succeeded.
func (s *Store) finishShards(b *Batch, old []oldShard, sync bool) {
	for _, w := range b.puts {
		w.advance(writerCommitting, writerCommitted)
		s.space.keep(w.rec.extents)
	}
	s.shards.Add(int64(len(b.puts) - len(old)))
	for _, o := range old {
		s.records.invalidate(o.id) // before its space can be another's
	}
	for _, o := range old {
		if sync {
			s.space.release(o.rec.extents)
		} else {
			s.space.postpone(o.rec.extents)
		}
	}
}

// metaRoom watches the free space of the metadata file system.
type metaRoom struct {
	fs           *guardfs.FS
	dir          string
	reserveBytes int64
	freeBytes    atomic.Int64 // -1: not known
	writtenBytes atomic.Int64 // committed since it was last asked
	asked        atomic.Int64 // when, in the store's own time
}

// How often the file system is asked: often enough that the reserve is not passed by much.
const (
	roomEveryBytes = 1 << 20
	roomEvery      = time.Second
	tightReserves  = 4
	floorShare     = 4 // one in so many bytes of the reserve is for what is in memory
	baseLevelShare = 8
	maxBaseLevel   = 64 << 20
	tableShare     = 64
	maxTable       = 2 << 20
	memTableShare  = 32 // four of them, and their logs, fit into the floor
)

func (m *metaRoom) init(fs *guardfs.FS, dir string, reserveBytes int64) {
	m.fs, m.dir, m.reserveBytes = fs, dir, reserveBytes
	m.freeBytes.Store(-1)
	m.asked.Store(-int64(roomEvery))
}

// enough says whether n bytes of new records may be written.
func (m *metaRoom) enough(n int, now time.Duration) bool {
	if m.reserveBytes < 0 {
		return true
	}
	written, asked := m.writtenBytes.Add(int64(n)), m.asked.Load()
	if written < roomEveryBytes && int64(now)-asked < int64(roomEvery) && !m.short() {
		return true
	}
	m.askEvery(0, now)
	return !m.short()
}

// askEvery asks the file system if it was not asked for so long.
func (m *metaRoom) askEvery(age, now time.Duration) {
	if asked := m.asked.Load(); now-time.Duration(asked) >= age && m.asked.CompareAndSwap(asked, int64(now)) {
		m.writtenBytes.Store(0)
		m.ask()
	}
}

// open asks for the first time, and so learns how much to reserve, if nobody has said so.
func (m *metaRoom) open() {
	if m.reserveBytes == 0 {
		m.reserveBytes = minMetaReserveBytes
		if usage, err := m.fs.GetDiskUsage(m.dir); err == nil {
			share := int64(min(usage.TotalBytes/metaReserveShare, maxMetaReserveBytes))
			m.reserveBytes = max(m.reserveBytes, share)
		}
	}
	m.ask()
}

// ask asks the file system.
func (m *metaRoom) ask() {
	if m.reserveBytes < 0 {
		return
	}
	if usage, err := m.fs.GetDiskUsage(m.dir); err == nil {
		m.freeBytes.Store(int64(usage.AvailBytes))
	} else {
		m.freeBytes.Store(-1) // memory has no limit to tell
	}
}

// tight says whether there is so little that a compaction must not copy bodies without need: while it runs, they are
// there twice.
func (m *metaRoom) tight() bool {
	free := m.freeBytes.Load()
	return free >= 0 && free < tightReserves*m.reserveBytes
}

// scarce says whether half of the reserve is used.
func (m *metaRoom) scarce() bool {
	free := m.freeBytes.Load()
	return free >= 0 && free < m.reserveBytes/2
}

// baseLevelBytes is how large the level grows into which tables from memory are compacted: all of it may take part in one
// compaction, which must find space.
func (m *metaRoom) baseLevelBytes() int64 {
	if m.reserveBytes <= 0 {
		return maxBaseLevel
	}
	return min(m.reserveBytes/baseLevelShare, maxBaseLevel)
}

// tableBytes is the size of the tables of the uppermost level; those further down are larger, by two for each level.
func (m *metaRoom) tableBytes() int64 {
	if m.reserveBytes <= 0 {
		return maxTable
	}
	return min(m.reserveBytes/tableShare, maxTable)
}

// memTableBytes bounds the size of the tables in memory.
func (m *metaRoom) memTableBytes(wanted int64) int64 {
	if m.reserveBytes <= 0 {
		return wanted
	}
	return min(wanted, m.reserveBytes/memTableShare)
}

// floorBytes is what compactions leave alone: the tables in memory are to find space.
func (m *metaRoom) floorBytes() int64 { return m.reserveBytes / floorShare }

// atFloor says whether no more than that is left.
func (m *metaRoom) atFloor() bool {
	free := m.freeBytes.Load()
	return free >= 0 && free < m.floorBytes()
}

func (m *metaRoom) short() bool {
	free := m.freeBytes.Load()
	return free >= 0 && free < m.reserveBytes
}
