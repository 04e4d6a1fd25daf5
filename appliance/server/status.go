package server

import (
	"math"
	"time"

	"github.com/millrace/millrace/appliance/object"
	"github.com/millrace/millrace/appliance/placement"
	"github.com/millrace/millrace/mgmt/api"
)

// The states of slots as the API tells them, besides those of the map.
const (
	stateMissing = "missing" // no drive
	stateFailed  = "failed"  // a drive that is taken for dead
	stateFilling = "filling" // in, and on the way to have all its records
)

// Pool implements api.Source.
func (v *view) Pool() api.Pool {
	s := v.engine.Status()
	p := api.Pool{ID: s.Map.Pool, Status: api.OK, Scheme: s.Map.Scheme.String(), Epoch: s.Map.Epoch, Drives: map[string]int{},
		Repair: repairOf(&s.Repair), FilledRecords: s.FilledRecords}
	for i := range s.Slots {
		slot := &s.Slots[i]
		p.Drives[stateOf(slot)]++
		p.Filling = p.Filling || slot.Filling
		if slot.Here && slot.State == placement.In {
			p.RawBytes += slot.SizeBytes
			p.RawUsedBytes += slot.SizeBytes - slot.FreeBytes
		}
	}
	scheme := s.Map.Scheme
	p.ObjectBytes = p.RawBytes / int64(scheme.Shards()) * int64(scheme.Data)
	p.ObjectFreeBytes = (p.RawBytes - p.RawUsedBytes) / int64(scheme.Shards()) * int64(scheme.Data)
	p.Scrub = sumScrubs(s.Slots)
	switch in := p.Drives[string(placement.In)] + p.Drives[stateFilling]; {
	case s.ReadOnly:
		p.Status = api.ReadOnly
	case in < scheme.Parity+1:
		p.Status = api.Unavailable
	case in < len(s.Slots) || p.Filling || p.Repair.Running && !p.Repair.Counting:
		p.Status = api.Degraded
	}
	return p
}

// Drives implements api.Source.
func (v *view) Drives() []api.Drive {
	s := v.engine.Status()
	list := make([]api.Drive, 0, len(s.Slots))
	for i := range s.Slots {
		slot := &s.Slots[i]
		d := api.Drive{Slot: slot.Slot, ID: slot.Drive, State: stateOf(slot), Error: slot.Failed, OutSince: timeOf(slot.OutSince),
			SizeBytes: slot.SizeBytes, Shards: slot.Shards, ReadBytes: slot.ReadBytes, WrittenBytes: slot.WrittenBytes,
			ReadErrors: slot.ReadErrors, ChecksumErrors: slot.ChecksumErrors, Slow: slot.Slow, LateReads: slot.LateReads,
			Scrub: scrubOf(&slot.Scrub)}
		if store := v.engine.Store(slot.Slot); store != nil {
			d.Path, d.UsedBytes = v.drives.path(store), slot.SizeBytes-slot.FreeBytes
		}
		list = append(list, d)
	}
	return list
}

// StartScrub implements api.Source.
func (v *view) StartScrub() { v.engine.StartScrub() }

func stateOf(s *object.SlotStatus) string {
	switch {
	case s.Failed != "":
		return stateFailed
	case !s.Here && s.State != placement.Lost:
		return stateMissing
	case s.Filling:
		return stateFilling
	}
	return string(s.State)
}

func progressOf(p *object.Progress) api.Progress {
	return api.Progress{Running: p.Running, Begun: timeOf(p.Begun), DoneBytes: p.DoneBytes, TotalBytes: p.TotalBytes,
		BytesPerSecond: int64(p.BytesPerSecond), SecondsLeft: int64(math.Ceil(p.Left.Seconds()))}
}

func repairOf(r *object.RepairStatus) api.Repair {
	return api.Repair{Progress: progressOf(&r.Progress), Counting: r.Counting, MissingShards: r.Missing,
		Segments: r.Segments, SegmentsDone: r.SegmentsDone, SegmentsFailed: r.Failed}
}

func scrubOf(s *object.ScrubStatus) api.Scrub {
	return api.Scrub{Progress: progressOf(&s.Progress), Finished: timeOf(s.Finished), Next: timeOf(s.Next),
		Shards: s.Shards, DamagedShards: s.Damaged}
}

// sumScrubs gives one scrub for all drives: it has ended when the last has, and takes as long as the longest.
func sumScrubs(slots []object.SlotStatus) api.Scrub {
	var sum api.Scrub
	unfinished := false
	for i := range slots {
		if !slots[i].Here {
			continue
		}
		s := scrubOf(&slots[i].Scrub)
		unfinished = unfinished || s.Finished == nil
		sum.Finished = earlier(sum.Finished, s.Finished)
		sum.Next = earlier(sum.Next, s.Next)
		sum.Shards += s.Shards
		sum.DamagedShards += s.DamagedShards
		if !s.Running {
			continue
		}
		sum.Running = true
		sum.Begun = earlier(sum.Begun, s.Begun)
		sum.DoneBytes += s.DoneBytes
		sum.TotalBytes += s.TotalBytes
		sum.BytesPerSecond += s.BytesPerSecond
		sum.SecondsLeft = max(sum.SecondsLeft, s.SecondsLeft)
	}
	if unfinished {
		sum.Finished = nil
	}
	return sum
}

// earlier gives the earlier of two times; nil is none.
func earlier(a, b *time.Time) *time.Time {
	if a == nil || b != nil && b.Before(*a) {
		return b
	}
	return a
}

func timeOf(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
