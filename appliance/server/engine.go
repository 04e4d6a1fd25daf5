package server

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/appliance/arena"
	"github.com/millrace/millrace/appliance/config"
	"github.com/millrace/millrace/appliance/object"
	"github.com/millrace/millrace/appliance/placement"
	"github.com/millrace/millrace/mgmt/endpoint"
	"github.com/millrace/millrace/mgmt/metrics"
)

// arenaWait is how long a request waits for buffers before the answer is SlowDown.
const arenaWait = 10 * time.Second

// openEngine opens the pool's drives and the engine on them.
func openEngine(ctx context.Context, c *config.Config, log *slog.Logger) (*backend, error) {
	d, err := openPool(ctx, c, log)
	if err != nil {
		return nil, err
	}
	buffers, err := arena.New(arena.Config{SizeBytes: int64(c.ArenaSize), WaitLimit: arenaWait})
	if err != nil {
		return nil, errors.Join(err, d.close())
	}
	var clients clients
	e, err := object.Open(ctx, object.Config{Members: d.members(), Arena: buffers, Logger: log, Clients: clients.count,
		ScrubInterval: c.ScrubInterval, ScrubBytesPerSecond: int64(c.ScrubRate), RepairBytesPerSecond: int64(c.RepairRate),
		RelocateAfter: c.RelocateAfter})
	if err != nil {
		return nil, errors.Join(err, d.close(), buffers.Close())
	}
	v := &view{engine: e, drives: d, arena: buffers}
	return &backend{
		store:   e,
		sources: metrics.Sources{Drives: v.driveStates, Arena: v.arenaUse, Engine: v.counters, DataShares: v.dataShares},
		health:  v.health,
		pool:    v,
		clients: clients.countBy,
		close: func() error {
			err := errors.Join(e.Close(), d.close())
			if d.stuck { // the kernel has not given back what it reads and writes
				return err
			}
			return errors.Join(err, buffers.Close())
		},
		memory: buffers.Memory(),
	}, nil
}

// clients counts the requests in progress, once it is told how; the engine is open before anything can count.
type clients struct{ by atomic.Pointer[func() int64] }

func (c *clients) countBy(f func() int64) { c.by.Store(&f) }

func (c *clients) count() int64 {
	if f := c.by.Load(); f != nil {
		return (*f)()
	}
	return 0
}

// view shows an engine to management. It reads counters and the map in force, and waits for nothing
// on the data path.
type view struct {
	engine *object.Engine
	drives *drives
	arena  *arena.Arena
}

func (v *view) driveStates() []metrics.Drive {
	m := v.engine.Map()
	list := make([]metrics.Drive, 0, len(m.Slots))
	for slot, s := range m.Slots {
		d := metrics.Drive{Slot: slot, ID: s.Drive, State: "missing"}
		d.Slow, d.LateReads = v.engine.Pace(slot)
		if store := v.engine.Store(slot); store != nil {
			stats := store.Stats()
			d.Path, d.State = v.drives.path(store), string(s.State)
			d.SizeBytes, d.FreeBytes = stats.DataBytes, stats.FreeBytes
			d.ReadBytes, d.WrittenBytes, d.ChecksumErrors = stats.ReadBytes, stats.WrittenBytes, stats.ChecksumErrors
		}
		list = append(list, d)
	}
	return list
}

func (v *view) arenaUse() metrics.Arena {
	s := v.arena.Stats()
	return metrics.Arena{SizeBytes: s.CapacityBytes, UsedBytes: s.InUseBytes}
}

func (v *view) counters() metrics.Engine {
	c := v.engine.Counters()
	return metrics.Engine{DegradedReads: c.DegradedReads.Load(), DegradedWrites: c.DegradedWrites.Load(),
		DroppedDrives: c.DroppedDrives.Load(), MendedShards: c.MendedShards.Load(), MovedShards: c.MovedShards.Load(),
		ScrubbedBytes: c.ScrubbedBytes.Load(), ScrubDamaged: c.ScrubDamaged.Load(), ScrubOrphans: c.ScrubOrphans.Load(),
		ScrubDiffering: c.ScrubDiffering.Load()}
}

func (v *view) dataShares() (k, n int) {
	scheme := v.engine.Map().Scheme
	return scheme.Data, scheme.Shards()
}

// health: with all slots in it is ok; below m+1 slots the engine refuses writes.
func (v *view) health() endpoint.Health {
	m := v.engine.Map()
	h := endpoint.Health{Status: endpoint.OK, Scheme: m.Scheme.String(), Drives: map[string]int{}}
	in := 0
	for slot, s := range m.Slots {
		switch {
		case v.engine.Store(slot) == nil:
			h.Drives["missing"]++
		case s.State == placement.In:
			in++
			h.Drives["in"]++
		default:
			h.Drives["out"]++
		}
	}
	switch {
	case in < m.Scheme.Parity+1:
		h.Status = endpoint.Unavailable
	case in < len(m.Slots):
		h.Status = endpoint.Degraded
	}
	return h
}
