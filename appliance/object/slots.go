package object

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/millrace/millrace/appliance/erasure"
	"github.com/millrace/millrace/appliance/placement"
	"github.com/millrace/millrace/appliance/record"
	"github.com/millrace/millrace/nvme/shardstore"
)

// stuckAfter is how long one drive operation may take before the drive counts as failed.
const stuckAfter = 30 * time.Second

var errStuck = errors.New("drive does not answer")

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

func writeMap(ctx context.Context, s *shardstore.Store, m *placement.Map) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	b := s.NewBatch()
	b.Set(record.MapKey(), text)
	return s.Commit(ctx, b, true)
}

func readMap(s *shardstore.Store) (*placement.Map, error) {
	text, err := s.Get(record.MapKey(), nil)
	if err != nil {
		return nil, err
	}
	m := &placement.Map{}
	if err := json.Unmarshal(text, m); err != nil {
		return nil, fmt.Errorf("%w: map: %w", record.ErrInvalid, err)
	}
	return m, m.Validate()
}

// newestMap finds the map with the highest epoch on the members.
func newestMap(members []Member) (*placement.Map, error) {
	var newest *placement.Map
	seen := map[shardstore.DriveID]bool{}
	for _, mb := range members {
		l := mb.Store.Label()
		if seen[l.Drive] {
			return nil, fmt.Errorf("%w: %s", ErrDuplicateDrive, l.Drive)
		}
		seen[l.Drive] = true
		m, err := readMap(mb.Store)
		if errors.Is(err, shardstore.ErrNotFound) {
			continue // a drive that is new to the pool
		}
		if err != nil {
			return nil, fmt.Errorf("drive %s: read map: %w", l.Drive, err)
		}
		if newest == nil || m.Epoch > newest.Epoch {
			newest = m
		}
	}
	if newest == nil {
		return nil, ErrNoPool
	}
	for _, mb := range members {
		if l := mb.Store.Label(); l.Pool.String() != newest.Pool {
			return nil, fmt.Errorf("%w: drive %s is of pool %s, not %s", ErrOtherPool, l.Drive, l.Pool, newest.Pool)
		}
	}
	return newest, nil
}

// seat puts the members into their slots and takes the missing ones out.
func (e *Engine) seat(m *placement.Map) error {
	for _, mb := range e.cfg.Members {
		l := mb.Store.Label()
		if l.Slot < 0 || l.Slot >= len(m.Slots) || m.Slots[l.Slot].Drive != l.Drive.String() {
			return fmt.Errorf("%w: drive %s has no place in it", ErrOtherPool, l.Drive)
		}
		e.stores[l.Slot] = mb.Store
		e.checks[l.Slot] = mb.Present
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
		if s.State == placement.Out || e.stores[i] == nil {
			e.outSince[i].Store(time.Now().UnixNano())
		}
	}
	for _, i := range missing {
		e.log.Warn("drive is missing", "slot", i, "drive", m.Slots[i].Drive)
	}
	if len(missing) > 0 {
		e.changeMap(func(m *placement.Map) *placement.Map { return m.Without(missing...) })
	}
	return nil
}

// changeMap makes the next map durable on every drive that is in under it, then puts it in force.
// A drive that can't take it is out by a further epoch. next may return nil for no change.
func (e *Engine) changeMap(next func(*placement.Map) *placement.Map) {
	e.mapMu.Lock()
	defer e.mapMu.Unlock()
	cur := e.view.Load()
	m := next(cur.Map)
	for m != nil {
		failed := e.writeMapToAll(m)
		if len(failed) == 0 {
			e.view.Store(placement.NewView(m, cur))
			return
		}
		m = m.Without(failed...)
	}
}

func (e *Engine) writeMapToAll(m *placement.Map) (failed []int) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i, s := range m.Slots {
		if s.State != placement.In {
			continue
		}
		wg.Go(func() {
			if err := writeMap(context.Background(), e.stores[i], m); err != nil {
				e.log.Error("drive is out", "slot", i, "err", err)
				mu.Lock()
				failed = append(failed, i)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return failed
}

// drop takes a slot out, durably, because of why.
func (e *Engine) drop(slot int, why error) {
	e.changeMap(func(m *placement.Map) *placement.Map {
		if m.Slots[slot].State == placement.Out {
			return nil
		}
		e.counters.DroppedDrives.Add(1)
		e.dropped[slot].Store(true)
		e.outSince[slot].Store(time.Now().UnixNano())
		e.log.Error("drive is out", "slot", slot, "drive", m.Slots[slot].Drive, "err", why)
		return m.Without(slot)
	})
	e.mender.nudge()
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

// watch looks after the drives that are in, and drops those that died, went away or hang.
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
			if err := e.check(int(slot)); err != nil {
				e.drop(int(slot), err)
			}
		}
	}
}

func (e *Engine) check(slot int) error {
	s := e.stores[slot]
	if err := s.Err(); err != nil {
		return err
	}
	if s.Stats().OldestOp > stuckAfter {
		return errStuck
	}
	if e.checks[slot] != nil {
		return e.checks[slot]()
	}
	return nil
}
