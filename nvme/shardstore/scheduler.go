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
	fit   *compactionFit
	letGo func() // makes readers give up files that were replaced

	mu       sync.Mutex
	idle     sync.Cond // granting ended
	db       pebble.DBForCompaction
	opened   bool
	closed   bool
	granting bool
	running  int
	began    time.Time // the last compaction
	pausing  bool      // nextTurn will be called
	turn     bool      // where space is scarce, one may begin
}

// scarcePause is the time between compactions where half of the reserve is used, or the last one was refused. What a
// compaction has replaced keeps its space as long as somebody reads it; so before the next one begins, iterators are made to let go.
const scarcePause = 250 * time.Millisecond

var _ pebble.CompactionScheduler = (*scheduler)(nil)

func newScheduler(guard *guardfs.FS, fit *compactionFit, letGo func()) *scheduler {
	s := &scheduler{guard: guard, room: fit.room, fit: fit, letGo: letGo}
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
	s.began, s.turn = time.Now(), false
	return true, s
}

// free is how many more compactions may run. The lock is held.
func (s *scheduler) free() int {
	if !s.opened || s.closed || s.guard.Err() != nil {
		return 0
	}
	n := s.db.GetAllowedWithoutPermission() - s.running
	if s.room.ask(); n <= 0 || !s.room.scarce() && !s.fit.refused.Load() {
		return n
	}
	if s.running == 0 && s.turn {
		return 1
	}
	if !s.pausing {
		s.pausing = true
		wait := scarcePause
		if s.running == 0 {
			wait = max(scarcePause-time.Since(s.began), scarcePause/10)
		}
		time.AfterFunc(wait, s.nextTurn)
	}
	return 0
}

// nextTurn lets one compaction begin where space is scarce.
func (s *scheduler) nextTurn() {
	s.letGo()
	s.mu.Lock()
	s.pausing, s.turn = false, true
	s.mu.Unlock()
	s.grant()
	s.mu.Lock()
	s.turn = false
	s.mu.Unlock()
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
	s.began, s.turn = time.Now(), false
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
