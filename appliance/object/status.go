package object

import (
	"time"

	"github.com/millrace/millrace/appliance/placement"
)

// Progress is how far work has come that takes long.
type Progress struct {
	Running               bool
	Begun                 time.Time // of the work under way; zero if none is
	DoneBytes, TotalBytes int64
	BytesPerSecond        float64       // over the last half minute
	Left                  time.Duration // at that rate; 0 if it can't be told
}

func progress(running bool, begun time.Time, done, total int64, m *meter) Progress {
	p := Progress{Running: running, Begun: begun, DoneBytes: done, TotalBytes: max(done, total)}
	if p.Running {
		p.BytesPerSecond = m.perSecond(done)
	}
	if p.BytesPerSecond > 0 {
		p.Left = time.Duration(float64(p.TotalBytes-done) / p.BytesPerSecond * float64(time.Second))
	}
	return p
}

// ScrubStatus is how the scrub of a drive stands.
type ScrubStatus struct {
	Progress
	Finished time.Time // when the last one ended; zero: never
	Next     time.Time // when the next one is due; zero: never, or one is under way
	// Shards and Damaged are of the one under way, else of the last one.
	Shards, Damaged uint64
}

// RepairStatus is how the repair of the pool stands. Bytes are those of the shards to be made anew.
type RepairStatus struct {
	Progress
	// Counting: the segments that miss shards are being counted; the totals still grow.
	Counting bool
	// Missing is the number of missing shards of the segments that are at work.
	Missing                int
	Segments, SegmentsDone int64
	// Failed segments have no place for new shards now, or too few shards left.
	Failed int64
}

// SlotStatus is how a slot stands.
type SlotStatus struct {
	Slot  int
	Drive string
	State placement.State
	// Here: the drive is connected and well.
	Here bool
	// Failed says why the drive was taken for dead; "" if it wasn't.
	Failed string
	// Filling: the drive is in, and is being given the index records of its groups.
	Filling                    bool
	SizeBytes, FreeBytes       int64
	Shards                     int64
	ReadBytes, WrittenBytes    uint64
	ReadErrors, ChecksumErrors uint64
	// Slow: reads use other drives as far as they can. LateReads were not waited for.
	Slow      bool
	LateReads uint64
	OutSince  time.Time // zero if it is in
	Scrub     ScrubStatus
}

// Status is how the pool stands.
type Status struct {
	Map    *placement.Map // must not be changed
	Slots  []SlotStatus
	Repair RepairStatus
	// FilledRecords were copied to drives that lacked them, since the start.
	FilledRecords uint64
	ReadOnly      bool
}

// Status tells how the pool stands. It waits for nothing on the data path.
func (e *Engine) Status() Status {
	m := e.Map()
	s := Status{Map: m, Repair: e.repairs.status(), FilledRecords: e.counters.FilledRecords.Load(), ReadOnly: e.readOnly}
	for slot := range m.Slots {
		s.Slots = append(s.Slots, e.slotStatus(m, slot))
	}
	return s
}

func (e *Engine) slotStatus(m *placement.Map, slot int) SlotStatus {
	s := SlotStatus{Slot: slot, Drive: m.Slots[slot].Drive, State: m.Slots[slot].State, SizeBytes: m.Slots[slot].CapacityBytes}
	if since := e.outSince[slot].Load(); since != 0 && s.State != placement.In {
		s.OutSince = time.Unix(0, since).UTC()
	}
	s.Filling = s.State == placement.In && m.Slots[slot].Filled != placement.In
	store := e.stores[slot]
	if store == nil {
		return s
	}
	if err := store.Err(); err != nil {
		s.Failed = err.Error()
	}
	s.Here = s.Failed == ""
	s.Slow, s.LateReads = e.Pace(slot)
	st := store.Stats()
	s.SizeBytes, s.FreeBytes, s.Shards = st.DataBytes, st.FreeBytes, st.Shards
	s.ReadBytes, s.WrittenBytes = st.ReadBytes, st.WrittenBytes
	s.ReadErrors, s.ChecksumErrors = st.ReadErrors, st.ChecksumErrors
	s.Scrub = e.scrubStatus(slot)
	return s
}

func (e *Engine) scrubStatus(slot int) ScrubStatus {
	s := &e.scrubs.slots[slot]
	s.mu.Lock()
	state, running, total := s.state, s.running, s.total
	s.mu.Unlock()
	st := ScrubStatus{Progress: progress(running, state.Begun, int64(state.Bytes), total, &s.rate),
		Finished: state.Finished, Shards: state.Shards, Damaged: state.Damaged}
	if state.Begun.IsZero() {
		st.Next = e.scrubDue(e.stores[slot], &state)
	}
	return st
}

func (r *repairs) status() RepairStatus {
	running := r.active.Load()
	s := RepairStatus{Segments: r.segments.Load(), SegmentsDone: r.segmentsDone.Load(), Failed: r.failed.Load()}
	s.Progress = progress(running, time.Time{}, r.bytesDone.Load(), r.bytes.Load(), &r.rate)
	if !running {
		return s
	}
	s.Missing = int(r.level.Load())
	s.Counting = s.Missing == 0
	if s.Counting {
		s.Left = 0
	}
	s.Begun = time.UnixMilli(r.begun.Load()).UTC()
	return s
}
