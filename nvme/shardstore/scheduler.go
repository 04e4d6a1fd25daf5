package shardstore

import (
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/millrace/millrace/nvme/shardstore/guardfs"
)

// scheduler says when the compactions of one Pebble run. It starts none before open, because a
// pebble.Open that fails gives up memory that a running compaction uses, which ends the process; and
// none once the drive is dead, because there it would fail again and again.
type scheduler struct {
	guard *guardfs.FS
	room  *metaRoom

	mu       sync.Mutex
	idle     sync.Cond // granting ended
	db       pebble.DBForCompaction
	opened   bool
	closed   bool
	granting bool
	running  int
	began    time.Time // the last compaction
	pausing  bool      // grant will be called when it may be the next one's turn
}

// scarcePause is the time between compactions where half of the reserve is used. What a compaction has replaced keeps its
// space as long as somebody reads it: one after the other could use up all there is under a long listing. To let one fail that
// finds no space is no way: Pebble (v2.1.7) panics when a compaction's file of bodies can't be written.
const scarcePause = time.Second

var _ pebble.CompactionScheduler = (*scheduler)(nil)

func newScheduler(guard *guardfs.FS, room *metaRoom) *scheduler {
	s := &scheduler{guard: guard, room: room}
	s.idle.L = &s.mu
	return s
}

// Register implements pebble.CompactionScheduler. pebble.Open calls it half-way.
func (s *scheduler) Register(_ int, db pebble.DBForCompaction) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.db = db
}

// open lets compactions begin.
func (s *scheduler) open() {
	s.mu.Lock()
	s.opened = true
	s.mu.Unlock()
	s.grant()
}

// Unregister implements pebble.CompactionScheduler: no call into Pebble runs when it returns, and
// none is made later.
func (s *scheduler) Unregister() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for s.granting {
		s.idle.Wait()
	}
}

// TrySchedule implements pebble.CompactionScheduler. What it refuses Pebble keeps, and grant starts it.
func (s *scheduler) TrySchedule() (bool, pebble.CompactionGrantHandle) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.free() <= 0 {
		return false, nil
	}
	s.running++
	s.began = time.Now()
	return true, s
}

// free is how many more compactions may run. The lock is held.
func (s *scheduler) free() int {
	if !s.opened || s.closed || s.guard.Err() != nil {
		return 0
	}
	n := s.db.GetAllowedWithoutPermission() - s.running
	if s.room.ask(); n <= 0 || !s.room.scarce() {
		return n
	}
	wait := scarcePause - time.Since(s.began)
	if s.running == 0 && wait <= 0 {
		return 1
	}
	if !s.pausing {
		s.pausing = true
		time.AfterFunc(max(wait, scarcePause/10), func() {
			s.mu.Lock()
			s.pausing = false
			s.mu.Unlock()
			s.grant()
		})
	}
	return 0
}

// UpdateGetAllowedWithoutPermission implements pebble.CompactionScheduler. Pebble has its lock and
// calls it after each flush.
func (s *scheduler) UpdateGetAllowedWithoutPermission() {
	s.mu.Lock()
	more := s.free() > 0
	s.mu.Unlock()
	if more {
		go s.grant()
	}
}

// Done implements pebble.CompactionGrantHandle: one compaction has ended.
func (s *scheduler) Done() {
	s.mu.Lock()
	s.running--
	s.mu.Unlock()
	s.grant()
}

// grant starts compactions that wait, as many as may run. One goroutine at a time does; the others
// wait, for what they know of may be too late for it.
func (s *scheduler) grant() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.granting {
		s.idle.Wait()
	}
	s.granting = true
	for s.free() > 0 && s.grantOne() {
	}
	s.granting = false
	s.idle.Broadcast()
}

// grantOne gives up the lock while it calls Pebble, whose lock comes first.
func (s *scheduler) grantOne() bool {
	before := s.began
	s.running++
	s.began = time.Now()
	s.mu.Unlock()
	waiting, _ := s.db.GetWaitingCompaction()
	started := waiting && s.db.Schedule(s)
	s.mu.Lock()
	if !started {
		s.running--
		s.began = before
	}
	return started
}

// Started implements pebble.CompactionGrantHandle.
func (s *scheduler) Started() {}

// MeasureCPU implements pebble.CompactionGrantHandle.
func (s *scheduler) MeasureCPU(pebble.CompactionGoroutineKind) {}

// CumulativeStats implements pebble.CompactionGrantHandle.
func (s *scheduler) CumulativeStats(pebble.CompactionGrantHandleStats) {}
