package object

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/appliance/placement"
	"github.com/millrace/millrace/appliance/record"
	"github.com/millrace/millrace/nvme/shardstore"
	"github.com/millrace/millrace/s3/store"
)

// A map is in force once every drive that is in under it holds it; only then is anything acknowledged that
// relies on it. The power may fail in between, unevenly, so what is found at a start is judged: a
// map that some drive should hold, which is here and does not, was never in force.

func writeMap(ctx context.Context, s *shardstore.Store, m *placement.Map) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	b := s.NewBatch()
	b.Set(record.MapKey(), text)
	b.UseReserve()
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

// mapInForce finds, among the maps on the members, the one that was in force last. Its epoch is raised
// above all that were seen, if need be, so that no later map can be taken for one of those.
func mapInForce(members []Member) (*placement.Map, error) {
	held := map[string]*placement.Map{} // by drive
	var found []*placement.Map
	for _, mb := range members {
		drive := mb.Store.Label().Drive.String()
		m, err := readMap(mb.Store)
		if err != nil && !errors.Is(err, shardstore.ErrNotFound) { // not found: a drive that is new to the pool
			return nil, fmt.Errorf("drive %s: read map: %w", drive, err)
		}
		if held[drive] = m; m != nil {
			found = append(found, m)
		}
	}
	if len(found) == 0 {
		return nil, ErrNoPool
	}
	slices.SortStableFunc(found, func(a, b *placement.Map) int { return cmp.Compare(b.Epoch, a.Epoch) })
	i := slices.IndexFunc(found, func(m *placement.Map) bool { return wasInForce(m, held) })
	if i < 0 {
		return nil, fmt.Errorf("%w: no map is on all of its drives", ErrTooFewDrives)
	}
	m := found[i].Clone()
	m.Epoch = found[0].Epoch
	for _, mb := range members {
		if l := mb.Store.Label(); l.Pool.String() != m.Pool {
			return nil, fmt.Errorf("%w: drive %s is of pool %s, not %s", ErrOtherPool, l.Drive, l.Pool, m.Pool)
		}
	}
	return m, nil
}

// wasInForce says whether no drive that is here speaks against m's having been in force: each that is in
// under m holds m, or a later one.
func wasInForce(m *placement.Map, held map[string]*placement.Map) bool {
	for _, s := range m.Slots {
		if s.State != placement.In {
			continue
		}
		h, here := held[s.Drive]
		if here && (h == nil || h.Epoch < m.Epoch || h.Epoch == m.Epoch && !reflect.DeepEqual(h, m)) {
			return false
		}
	}
	return true
}

// errLosesData: a map would leave a group with no member that can be believed, or too few drives to
// write to. Then the map stays as it is: nothing is acknowledged that the drives missing from
// it would have to know, so they can be believed when they are back.
var errLosesData = errors.New("more drives failed than the pool can lose")

// changeMap makes the next map durable on every drive that is in under it, then puts it in force.
// A drive that can't take it is out by a further epoch. next may return nil for no change.
func (e *Engine) changeMap(next func(*placement.Map) *placement.Map) error {
	e.mapMu.Lock()
	defer e.mapMu.Unlock()
	if e.readOnly {
		return fmt.Errorf("%w: %w", store.ErrUnavailable, errLosesData)
	}
	cur := e.view.Load()
	m := next(cur.Map)
	for m != nil {
		v := placement.NewView(m, cur)
		if v.CountIn() < v.Copies() || !v.Complete() {
			return fmt.Errorf("%w: %w", store.ErrUnavailable, errLosesData)
		}
		failed := e.writeMapToAll(m)
		if len(failed) == 0 {
			e.noteOut(cur.Map, m)
			e.view.Store(v)
			return nil
		}
		m = m.Without(failed...)
	}
	return nil
}

// noteOut remembers which slots the change from one map to the other took out.
func (e *Engine) noteOut(from, to *placement.Map) {
	for slot, s := range to.Slots {
		if s.State != placement.In && from.Slots[slot].State == placement.In {
			e.dropped[slot].Store(e.stores[slot] != nil)
			e.outSince[slot].Store(time.Now().UnixNano())
			e.counters.DroppedDrives.Add(1)
			e.log.Error("drive is out", "slot", slot, "drive", s.Drive, "epoch", to.Epoch)
		}
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
				e.log.Error("drive can't take the map", "slot", i, "err", err)
				mu.Lock()
				failed = append(failed, i)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return failed
}

// drop takes a slot out, durably, because of why. It returns an error if the slot can't be spared.
func (e *Engine) drop(slot int, why error) error {
	err := e.changeMap(func(m *placement.Map) *placement.Map {
		if m.Slots[slot].State != placement.In {
			return nil
		}
		return m.Without(slot)
	})
	if e.complained[slot].CompareAndSwap(false, true) {
		e.log.Error("drive failed", "slot", slot, "err", why, "kept", err != nil)
	}
	e.mender.nudge()
	return err
}
