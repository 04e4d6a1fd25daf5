package object

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/millrace/millrace/appliance/placement"
	"github.com/millrace/millrace/appliance/record"
	"github.com/millrace/millrace/nvme/shardstore"
	"github.com/millrace/millrace/s3/store"
)

// mutation is a set of changes to the records of one group, applied to every target in one
// commit each, with its op-log entry.
type mutation struct {
	group   int // or record.AllSlots
	seq     uint64
	sets    []pair
	deletes [][]byte
	cleared [][]byte        // keys that go with its free records, later: they are in its op-log entry only
	unused  []record.Layout // to be freed with the version that the mutation removes
	frees   bool            // it removes more than it adds: full metadata is no obstacle
}

type pair struct{ key, value []byte }

func (m *mutation) set(key, value []byte) { m.sets = append(m.sets, pair{key, value}) }
func (m *mutation) delete(key []byte)     { m.deletes = append(m.deletes, key) }

func (m *mutation) op() *record.Op {
	keys := make([][]byte, 0, len(m.sets)+len(m.deletes)+len(m.cleared))
	for _, p := range m.sets {
		keys = append(keys, p.key)
	}
	return &record.Op{Group: m.group, Keys: append(append(keys, m.deletes...), m.cleared...)}
}

// newMutation starts a mutation and gives it its place in the sequence. It must end in apply or cancel.
func (e *Engine) newMutation(group int) *mutation {
	return &mutation{group: group, seq: e.inflight.begin(&e.seq)}
}

func (e *Engine) cancel(m *mutation) { e.inflight.end(m.seq) }

// apply commits a mutation to all targets of its group. A target that fails is dropped, durably,
// and the mutation goes to the one that takes its place, until every target of the map in force has it.
// applied says whether any drive has it: after an error with applied true, it may show or not.
func (e *Engine) apply(m *mutation) (applied bool, err error) {
	defer func() {
		// One that is on some drives only is never settled: the next start completes it.
		if err == nil || !applied {
			e.inflight.end(m.seq)
		}
	}()
	gate := &e.gates[min(m.group, len(e.gates)-1)]
	gate.RLock()
	defer gate.RUnlock()
	logKey, logValue := record.OpLogKey(m.seq), record.AppendOp(nil, m.op())
	var done []uint8
	for {
		v := e.view.Load()
		targets, err := e.targets(v, m.group)
		if err != nil {
			return len(done) > 0, err
		}
		todo := slices.DeleteFunc(slices.Clone(targets), func(s uint8) bool { return slices.Contains(done, s) })
		if len(todo) == 0 {
			return true, nil // v was in force after the last commit
		}
		if len(done) == 0 && !e.haveRoom(todo, m.frees) {
			return false, fmt.Errorf("metadata: %w", store.ErrFull)
		}
		errs := e.commitTo(todo, func(b *shardstore.Batch) {
			if m.frees {
				b.UseReserve()
			}
			b.Set(logKey, logValue)
			for _, p := range m.sets {
				b.Set(p.key, p.value)
			}
			for _, k := range m.deletes {
				b.Delete(k)
			}
		})
		for i, slot := range todo {
			if errs[i] == nil {
				done = append(done, slot)
			}
		}
		full := false
		for i, slot := range todo {
			switch {
			case errs[i] == nil:
			case errors.Is(errs[i], shardstore.ErrFull):
				full = true // no fault of the drive
			default:
				if err := e.drop(int(slot), errs[i]); err != nil {
					return len(done) > 0, err
				}
			}
		}
		if full && len(done) == 0 {
			return false, fmt.Errorf("metadata: %w", store.ErrFull)
		}
		m.frees = m.frees || full // some have it: the others must, out of their reserve
	}
}

// haveRoom says whether all slots take new records, or, for a mutation that frees, have enough of their reserve left. It is
// asked before any has the mutation, since then the others must take it out of their reserve, and one that is fuller than
// the others would use that up.
func (e *Engine) haveRoom(slots []uint8, frees bool) bool {
	for _, s := range slots {
		if st := e.stores[s]; frees && !st.HasReserve() || !frees && !st.HasRoom() {
			return false
		}
	}
	return true
}

// targets returns where a mutation of the group goes, if enough drives are in to take it.
func (e *Engine) targets(v *placement.View, group int) ([]uint8, error) {
	if e.readOnly || v.CountIn() < v.Copies() {
		return nil, fmt.Errorf("%w: %d drives in, writes need %d", store.ErrUnavailable, v.CountIn(), v.Copies())
	}
	if group == record.AllSlots {
		return v.AllIn(), nil
	}
	if len(v.Reads(group)) == 0 {
		return nil, fmt.Errorf("%w: group %d has no member left", store.ErrUnavailable, group)
	}
	return v.Targets(group), nil
}

// commitTo commits, in parallel and synced, what fill puts in a batch, to each of the slots.
func (e *Engine) commitTo(slots []uint8, fill func(*shardstore.Batch)) []error {
	errs := make([]error, len(slots))
	commit := func(i int) {
		s := e.stores[slots[i]]
		b := s.NewBatch()
		fill(b)
		errs[i] = s.Commit(context.Background(), b, true)
	}
	var wg sync.WaitGroup
	for i := 1; i < len(slots); i++ {
		wg.Go(func() { commit(i) })
	}
	commit(0)
	wg.Wait()
	return errs
}

// get reads a record of a group from the first of its drives that gives an answer, the slow ones last.
func (e *Engine) get(group int, key []byte) ([]byte, error) {
	var asked uint64 // by place among the drives, of which there are m+1 at most
	reads := e.view.Load().Reads(group)
	for _, all := range [2]bool{false, true} {
		for i, slot := range reads {
			if asked>>i&1 != 0 || !all && e.paces[slot].isSlow() {
				continue
			}
			asked |= 1 << i
			value, err := e.stores[slot].Get(key, nil)
			if err == nil || errors.Is(err, shardstore.ErrNotFound) {
				return value, err
			}
			e.log.Warn("read of a record failed", "slot", slot, "err", err)
		}
	}
	return nil, fmt.Errorf("%w: group %d has no member left", store.ErrUnavailable, group)
}
