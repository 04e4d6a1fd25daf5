package inspect

import (
	"context"
	"errors"
	"fmt"

	"github.com/millrace/millrace/appliance/arena"
	"github.com/millrace/millrace/appliance/object"
	"github.com/millrace/millrace/nvme/shardstore"
)

// PoolFault is the kind of a fault that keeps the pool from being opened, or a drive of it.
const PoolFault object.FaultKind = "pool"

// DriveState says how a slot stands.
type DriveState string

// The states of a slot.
const (
	In         DriveState = "in"         // takes part
	Out        DriveState = "out"        // is here, and takes no part until it is brought up to date
	Missing    DriveState = "missing"    // is not among the drives looked at
	Unreadable DriveState = "unreadable" // is here and can't be opened
)

// DriveReport is what is to be said of one drive, or of a slot without one.
type DriveReport struct {
	Slot      int        `json:"slot"` // -1 if it isn't known
	Drive     string     `json:"drive,omitempty"`
	Path      string     `json:"path,omitempty"`
	State     DriveState `json:"state"`
	Error     string     `json:"error,omitempty"`
	DataBytes int64      `json:"data_bytes,omitempty"`
	FreeBytes int64      `json:"free_bytes,omitempty"`
	Shards    int64      `json:"shards,omitempty"`
}

// Fault is one thing that is wrong.
type Fault struct {
	Kind object.FaultKind `json:"kind"`
	Slot int              `json:"slot"` // -1: of no single drive
	Text string           `json:"text"`
}

// Report is what a check of a pool found.
type Report struct {
	Sound    bool          `json:"sound"` // no faults; drives may be missing
	Deep     bool          `json:"deep"`
	Pool     string        `json:"pool,omitempty"`
	Scheme   string        `json:"scheme,omitempty"`
	Epoch    uint64        `json:"epoch,omitempty"`
	Drives   []DriveReport `json:"drives"`
	Records  int           `json:"records"`
	Segments int           `json:"segments"`
	Shards   int           `json:"shards"`
	// Degraded segments are readable and lack shards.
	Degraded  int   `json:"degraded_segments"`
	ReadBytes int64 `json:"read_bytes"`
	// RolledForward and Broken are what the next start will do: complete changes that not all drives have, and free
	// the shards of writes that were broken off. Neither is a fault.
	RolledForward uint64                   `json:"rolled_forward"`
	Broken        uint64                   `json:"broken_off_shards"`
	FaultCount    map[object.FaultKind]int `json:"fault_count"`
	Faults        []Fault                  `json:"faults"` // the first thousand
}

func (r *Report) fault(kind object.FaultKind, slot int, format string, args ...any) {
	r.FaultCount[kind]++
	r.Faults = append(r.Faults, Fault{kind, slot, fmt.Sprintf(format, args...)})
}

// Fsck checks the pool of the drives: what its records say, against each other and against what is there. With
// deep it reads all data. The error says why it could not be carried out; all that is wrong is in the report.
func (d *Drives) Fsck(ctx context.Context, deep bool) (*Report, error) {
	r := &Report{Deep: deep, FaultCount: map[object.FaultKind]int{}, Faults: []Fault{}}
	for _, dr := range d.List {
		if dr.Err != nil {
			d.reportDrive(r, dr)
		}
	}
	err := d.check(ctx, r, deep)
	if err != nil && ctx.Err() == nil {
		r.fault(PoolFault, -1, "%v", err)
		err = d.checkAlone(ctx, r, deep)
	}
	for _, dr := range d.List {
		if dr.store != nil {
			r.ReadBytes += int64(dr.store.Stats().ReadBytes)
		}
	}
	r.Sound = len(r.Faults) == 0
	return r, err
}

func (d *Drives) reportDrive(r *Report, dr *Drive) {
	report := DriveReport{Slot: -1, Path: dr.Path, State: Unreadable, Error: dr.Err.Error()}
	if dr.Label != nil {
		report.Slot, report.Drive = dr.Label.Slot, dr.Label.Drive.String()
	}
	r.Drives = append(r.Drives, report)
	r.fault(PoolFault, report.Slot, "%s: %v", dr.Path, dr.Err)
}

// check opens the pool and lets it check itself.
func (d *Drives) check(ctx context.Context, r *Report, deep bool) error {
	members := d.members()
	if len(members) == 0 {
		return errors.New("no drive could be opened")
	}
	buffers, err := arena.New(arena.Config{SizeBytes: arena.MaxBytes})
	if err != nil {
		return err
	}
	defer buffers.Close()
	e, err := object.Inspect(ctx, object.Config{Members: members, Arena: buffers, Logger: d.log})
	if err != nil {
		return err
	}
	defer func() { _ = e.Close() }() // nothing was written
	e.ClearUp()
	d.describe(e, r)
	found, err := e.Check(ctx, deep)
	if err != nil {
		return err
	}
	r.Records, r.Segments, r.Shards, r.Degraded = found.Records, found.Segments, found.Shards, found.Degraded
	for kind, n := range found.FaultCount {
		r.FaultCount[kind] += n
	}
	for _, f := range found.Faults {
		r.Faults = append(r.Faults, Fault{f.Kind, f.Slot, f.Text})
	}
	return nil
}

// describe says what the pool is and how its slots stand.
func (d *Drives) describe(e *object.Engine, r *Report) {
	m := e.Map()
	r.Pool, r.Scheme, r.Epoch = m.Pool, m.Scheme.String(), m.Epoch
	r.RolledForward, r.Broken = e.Counters().RolledForward.Load(), e.Counters().OrphanShards.Load()
	unreadable := map[int]bool{}
	for _, dr := range r.Drives {
		unreadable[dr.Slot] = true
	}
	for slot, s := range m.Slots {
		report := DriveReport{Slot: slot, Drive: s.Drive, State: DriveState(s.State)}
		store := e.Store(slot)
		if store == nil {
			if unreadable[slot] {
				continue
			}
			report.State = Missing
		} else {
			stats := store.Stats()
			report.DataBytes, report.FreeBytes, report.Shards = stats.DataBytes, stats.FreeBytes, stats.Shards
			for _, dr := range d.List {
				if dr.store == store {
					report.Path = dr.Path
				}
			}
		}
		r.Drives = append(r.Drives, report)
	}
}

// checkAlone checks each drive by itself, where they make no pool.
func (d *Drives) checkAlone(ctx context.Context, r *Report, deep bool) error {
	for _, dr := range d.List {
		if dr.store == nil {
			continue
		}
		// The engine has closed it.
		if err := d.openStore(ctx, dr); err != nil {
			dr.Err = err
			d.reportDrive(r, dr)
			continue
		}
		found, err := dr.store.Verify(ctx, deep)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		slot := dr.Label.Slot
		if err != nil {
			r.fault(PoolFault, slot, "%s: %v", dr.Path, err)
		}
		for _, p := range found.Problems {
			kind := object.DriveFault
			var sum *shardstore.ChecksumError
			if errors.As(p, &sum) {
				kind = object.DataFault
			}
			r.fault(kind, slot, "%v", p)
		}
		r.Shards += int(found.Shards)
		stats := dr.store.Stats()
		r.Drives = append(r.Drives, DriveReport{Slot: slot, Drive: dr.Label.Drive.String(), Path: dr.Path, State: In,
			DataBytes: stats.DataBytes, FreeBytes: stats.FreeBytes, Shards: found.Shards})
	}
	return nil
}

// Progress tells how many bytes a deep check has read, of how many. It may be called while Fsck runs.
func (d *Drives) Progress() (done, total int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, dr := range d.List {
		if dr.store != nil {
			s := dr.store.Stats()
			done += int64(s.ReadBytes)
			total += s.DataBytes - s.FreeBytes - s.PendingBytes
		}
	}
	return done, total
}
