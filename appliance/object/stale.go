package object

import (
	"context"
	"fmt"
	"slices"

	"github.com/millrace/millrace/appliance/placement"
	"github.com/millrace/millrace/appliance/record"
)

// dropStale takes out drives that are not what they were when the pool ran last: somebody has put back an old copy of
// one. By the map it would be believed. But its watermark is behind, and between that and the highest it lacks op-log
// entries of mutations that were never acknowledged without it. The mender asks it in again, as one that was away.
func (e *Engine) dropStale(ctx context.Context) error {
	if e.readOnly {
		return nil
	}
	slots := e.view.Load().AllIn()
	marks := make([]record.Watermark, len(e.stores))
	high := uint64(0)
	for _, slot := range slots {
		var err error
		if marks[slot], err = readWatermark(e.stores[slot]); err != nil {
			return fmt.Errorf("slot %d: %w", slot, err)
		}
		high = max(high, marks[slot].Seq)
	}
	var stale []int
	for _, slot := range slots {
		if marks[slot].Seq == high {
			continue
		}
		lacks, err := e.lacksEntries(ctx, slot, marks, high)
		if err != nil {
			return err
		}
		if lacks {
			stale = append(stale, int(slot))
		}
	}
	if len(stale) == 0 {
		return nil
	}
	if err := e.changeMap(func(m *placement.Map) *placement.Map { return m.Without(stale...) }); err != nil {
		e.log.Error("drives are older than the pool, and can't be spared", "slots", stale, "err", err)
		return nil
	}
	for _, slot := range stale {
		e.dropped[slot].Store(false)
	}
	e.log.Warn("drives are older than the pool: they are brought up to date", "slots", stale)
	return nil
}

// lacksEntries says whether a drive has not all entries after its own watermark, up to the highest, that other drives
// have and it should, or whether nobody knows any more.
func (e *Engine) lacksEntries(ctx context.Context, slot uint8, marks []record.Watermark, high uint64) (bool, error) {
	v, need := e.view.Load(), map[uint64]bool{}
	from := marks[slot].Seq
	for _, other := range v.AllIn() {
		if other == slot {
			continue
		}
		if marks[other].Trimmed > from+1 {
			return true, nil
		}
		err := eachOp(e.stores[other], from, func(seq uint64, op *record.Op) error {
			if seq <= high && (op.Group == record.AllSlots || op.Group < v.Groups && slices.Contains(v.Reads(op.Group), slot)) {
				need[seq] = true
			}
			return ctx.Err()
		})
		if err != nil {
			return false, fmt.Errorf("slot %d: op-log: %w", other, err)
		}
	}
	err := eachOp(e.stores[slot], from, func(seq uint64, _ *record.Op) error {
		delete(need, seq)
		return ctx.Err()
	})
	if err != nil {
		return false, fmt.Errorf("slot %d: op-log: %w", slot, err)
	}
	return len(need) > 0, nil
}
