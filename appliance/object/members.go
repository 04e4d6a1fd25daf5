package object

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/millrace/millrace/nvme/shardstore"
)

// defaultMaxDamaged is the number of damaged shards after which a drive is taken out. A good drive has one in
// many thousand drive years.
const defaultMaxDamaged = 100

var errLies = errors.New("drive gave back too many damaged shards")

// openLiving opens a pool. A drive that dies meanwhile counts as one that is not there.
func openLiving(ctx context.Context, cfg Config) (*Engine, error) {
	cfg = withDefaults(cfg)
	all := cfg.Members
	members, twins := withoutTwins(cfg)
	for {
		cfg.Members = members
		e, err := open(ctx, cfg)
		if err == nil {
			e.closeOthers(all)
			return e, nil
		}
		members = living(members)
		if len(members) == len(cfg.Members) || ctx.Err() != nil {
			return nil, errors.Join(err, twins)
		}
		cfg.Logger.Error("drives died while the pool was opened", "drives", len(cfg.Members)-len(members), "err", err)
	}
}

// closeOthers closes the members that the engine goes without.
func (e *Engine) closeOthers(all []Member) {
	for _, m := range all {
		if !slices.Contains(e.stores, m.Store) {
			_ = m.Store.Close() // why it is left out has been told
		}
	}
}

func living(members []Member) (alive []Member) {
	for _, m := range members {
		if m.Store.Err() == nil {
			alive = append(alive, m)
		}
	}
	return alive
}

// withoutTwins leaves out the drives that share an identity with another one: nobody can tell which of them
// is right, and the pool can do without some. twins is ErrDuplicateDrive if there are any.
func withoutTwins(cfg Config) (single []Member, twins error) {
	count := map[shardstore.DriveID]int{}
	for _, m := range cfg.Members {
		count[m.Store.Label().Drive]++
	}
	for _, m := range cfg.Members {
		l := m.Store.Label()
		if count[l.Drive] == 1 {
			single = append(single, m)
			continue
		}
		twins = fmt.Errorf("%w: %s", ErrDuplicateDrive, l.Drive)
		cfg.Logger.Error("drive left out", "slot", l.Slot, "err", twins)
	}
	return single, twins
}

// noteDamaged counts damage by the drives that had it. It counts what was mended, so each damaged shard once, however
// many reads met it.
func (e *Engine) noteDamaged(w *wound) {
	for _, index := range w.wrong {
		if !slices.Contains(w.bad, index) {
			continue // moved, or mended, meanwhile
		}
		e.damaged[w.layout.Segments[w.segment].Slots[index]].Add(1)
	}
}

// lies says whether a drive has given back more damaged shards in this run than it may.
func (e *Engine) lies(slot int) bool {
	return e.cfg.MaxDamagedShards > 0 && e.damaged[slot].Load() > int64(e.cfg.MaxDamagedShards)
}
