package object

import (
	"errors"
	"fmt"

	"github.com/millrace/millrace/appliance/placement"
	"github.com/millrace/millrace/nvme/shardstore"
)

// ErrOccupied is returned by Open for a new drive whose slot has its drive.
var ErrOccupied = errors.New("the slot has its drive")

// seatNew gives new drives the slots that they were formatted for. They come in as drives that were away for long: with
// a fill of their records, and a repair of the shards that were there.
func (e *Engine) seatNew() error {
	for _, mb := range e.cfg.Members {
		l := mb.Store.Label()
		switch {
		case !mb.New || l.Slot >= 0 && l.Slot < len(e.stores) && e.stores[l.Slot] == mb.Store:
			continue
		case l.Slot < 0 || l.Slot >= len(e.stores):
			return fmt.Errorf("replace drive of slot %d: the pool has %d slots", l.Slot, len(e.stores))
		case e.stores[l.Slot] != nil:
			return fmt.Errorf("replace drive of slot %d: %w", l.Slot, ErrOccupied)
		}
		was := e.view.Load().Slots[l.Slot].Drive
		err := e.changeMap(func(m *placement.Map) *placement.Map { return m.Replace(l.Slot, l.Drive.String()) })
		if err != nil {
			return fmt.Errorf("replace drive of slot %d: %w", l.Slot, err)
		}
		e.stores[l.Slot], e.checks[l.Slot] = mb.Store, mb.Present
		e.log.Info("drive is replaced", "slot", l.Slot, "was", was, "drive", l.Drive)
	}
	return nil
}

// HasJoined says whether a drive was ever in its pool: such a one may hold what the pool needs, one that was only
// formatted holds nothing.
func HasJoined(s *shardstore.Store) (bool, error) {
	_, err := readMap(s)
	if errors.Is(err, shardstore.ErrNotFound) {
		return false, nil
	}
	return true, err
}
