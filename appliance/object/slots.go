package object

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace/millrace/appliance/erasure"
	"github.com/millrace/millrace/appliance/placement"
	"github.com/millrace/millrace/nvme/shardstore"
)

// Create makes a new pool of freshly formatted drives: it gives every one the first map. The
// slots are those of the drives' labels, which must be 0 … len(stores)-1.
func Create(ctx context.Context, stores []*shardstore.Store, scheme erasure.Scheme) error {
	m := &placement.Map{Epoch: 1, Scheme: scheme, Groups: placement.DefaultGroups,
		Slots: make([]placement.Slot, len(stores))}
	for _, s := range stores {
		l := s.Label()
		if l.Slot < 0 || l.Slot >= len(stores) || m.Slots[l.Slot].Drive != "" {
			return fmt.Errorf("create pool: slot %d of drive %s", l.Slot, l.Drive)
		}
		m.Pool = l.Pool.String()
		m.Slots[l.Slot] = placement.Slot{Drive: l.Drive.String(), CapacityBytes: l.DataBytes,
			State: placement.In, Filled: placement.In}
	}
	if err := m.Validate(); err != nil {
		return fmt.Errorf("create pool: %w", err)
	}
	if n := scheme.Data + scheme.Parity; len(stores) < n {
		return fmt.Errorf("create pool: scheme %v needs %d drives, there are %d", scheme, n, len(stores))
	}
	for _, s := range stores {
		if err := writeMap(ctx, s, m); err != nil {
			return fmt.Errorf("create pool: %w", err)
		}
	}
	return nil
}

// seat puts the members into their slots, takes the missing ones out, and lets new drives replace them.
func (e *Engine) seat(m *placement.Map) error {
	if err := e.seatKnown(m); err != nil {
		return err
	}
	return e.seatNew()
}

func (e *Engine) seatKnown(m *placement.Map) error {
	for _, mb := range e.cfg.Members {
		l := mb.Store.Label()
		switch {
		case l.Slot >= 0 && l.Slot < len(m.Slots) && m.Slots[l.Slot].Drive == l.Drive.String():
			e.stores[l.Slot], e.checks[l.Slot] = mb.Store, mb.Present
		case !mb.New:
			e.log.Error("drive left out: the pool has another in its place", "slot", l.Slot, "drive", l.Drive)
		}
	}
	var missing []int
	for i, s := range m.Slots {
		if s.State == placement.In && e.stores[i] == nil {
			missing = append(missing, i)
		}
	}
	if len(missing) > m.Scheme.Parity {
		return fmt.Errorf("%w: %d missing, %v can lose %d", ErrTooFewDrives, len(missing), m.Scheme, m.Scheme.Parity)
	}
	e.view.Store(placement.NewView(m, nil))
	for i, s := range m.Slots {
		if s.State != placement.In || e.stores[i] == nil {
			e.outSince[i].Store(time.Now().UnixNano())
		}
	}
	for _, i := range missing {
		e.log.Warn("drive is missing", "slot", i, "drive", m.Slots[i].Drive)
	}
	if len(missing) == 0 {
		return nil
	}
	err := e.changeMap(func(m *placement.Map) *placement.Map { return m.Without(missing...) })
	if err == nil {
		return nil
	}
	// Too few to write to; they may still serve reads.
	v := placement.NewView(m.Without(missing...), nil)
	if !v.Complete() {
		return fmt.Errorf("%w: %w", ErrTooFewDrives, err)
	}
	e.log.Error("too few drives for writes: serving reads only", "in", v.CountIn(), "needed", v.Copies())
	e.readOnly = true
	e.view.Store(v)
	return nil
}

// live returns the drive in a slot if it can serve reads: shards are never overwritten, so also
// a drive that is out, but here and well, may give them.
func (e *Engine) live(slot uint8) *shardstore.Store {
	if int(slot) >= len(e.stores) {
		return nil
	}
	s := e.stores[slot]
	if s == nil || s.Err() != nil {
		return nil
	}
	return s
}

// watch looks after the drives that are in, and drops those that died, lie or went away. A drive that hangs
// dies by its store's deadline.
func (e *Engine) watch(ctx context.Context) {
	tick := time.NewTicker(e.cfg.CheckInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, slot := range e.view.Load().AllIn() {
			e.lookForStall(int(slot))
			if err := e.check(int(slot)); err != nil {
				_ = e.drop(int(slot), err) // it stays in if it can't be spared
			}
		}
	}
}

func (e *Engine) check(slot int) error {
	s := e.stores[slot]
	if err := s.Err(); err != nil {
		return err
	}
	if e.lies(slot) {
		return errLies
	}
	if e.checks[slot] != nil {
		return e.checks[slot]()
	}
	return nil
}
