package object

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/appliance/record"
	"github.com/millrace/millrace/nvme/shardstore"
)

// metadata reads every record of the drive once: Pebble verifies the checksums of its tables as it reads them.
func (r *scrubRun) metadata(ctx context.Context) error {
	var next []byte
	for {
		begun := time.Now()
		n, err := r.readRecords(&next)
		if err != nil {
			return err
		}
		if err := r.pause(ctx, n, time.Since(begun)); err != nil || next == nil {
			return err
		}
	}
}

// readRecords reads some records from next on, and sets next to the first one that is left, or to nil.
func (r *scrubRun) readRecords(next *[]byte) (n int64, err error) {
	it, err := r.store.Scan(*next, nil)
	if err != nil {
		return 0, err
	}
	defer it.Close()
	for it.First(); it.Valid(); it.Next() {
		if n >= scrubStep {
			*next = bytes.Clone(it.Key())
			return n, nil
		}
		value, err := it.Value()
		if err != nil {
			return n, err
		}
		n += int64(len(it.Key()) + len(value))
	}
	*next = nil
	return n, it.Err()
}

// scrubIndex compares the index records of each drive with those of the other members of their groups.
func (e *Engine) scrubIndex(ctx context.Context) error {
	e.scrubs.pace.working.Add(1)
	defer e.scrubs.pace.working.Add(-1)
	for _, slot := range e.view.Load().AllIn() {
		for _, keys := range record.GroupedRanges() {
			if err := e.scrubRange(ctx, slot, keys); err != nil {
				return fmt.Errorf("slot %d: %w", slot, err)
			}
		}
	}
	return nil
}

func (e *Engine) scrubRange(ctx context.Context, slot uint8, keys record.KeyRange) error {
	for next := keys.Lower; next != nil; {
		begun := time.Now()
		byGroup, err := e.listKeys(slot, &next, keys.Upper)
		if err != nil {
			return err
		}
		for group, keys := range byGroup {
			if err := e.compareKeys(slot, group, keys); err != nil {
				return err
			}
		}
		if err := e.scrubs.pace.pace(ctx, 0, time.Since(begun)); err != nil {
			return err
		}
	}
	return nil
}

// listKeys gives some keys by their groups, and sets next to the first one that is left, or to nil.
func (e *Engine) listKeys(slot uint8, next *[]byte, upper []byte) (map[int][][]byte, error) {
	it, err := e.stores[slot].Scan(*next, upper)
	if err != nil {
		return nil, err
	}
	defer it.Close()
	f := &filler{e: e, view: e.view.Load()}
	byGroup, n := map[int][][]byte{}, 0
	for it.First(); it.Valid(); it.Next() {
		if n++; n > restRecords {
			*next = bytes.Clone(it.Key())
			return byGroup, nil
		}
		group, err := f.groupOf(it.Key())
		if err != nil {
			return nil, err
		}
		byGroup[group] = append(byGroup[group], bytes.Clone(it.Key()))
	}
	*next = nil
	return byGroup, it.Err()
}

// compareKeys compares records of one group, with its mutations shut out.
func (e *Engine) compareKeys(slot uint8, group int, keys [][]byte) error {
	gate := &e.gates[group]
	gate.Lock()
	defer gate.Unlock()
	reads := e.view.Load().Reads(group)
	if !slices.Contains(reads, slot) {
		return nil
	}
	for _, key := range keys {
		if err := e.compareRecord(key, reads); err != nil {
			return err
		}
	}
	return nil
}

// compareRecord compares what the believed members of a group have under a key, and gives those that differ what the
// others have, if it is plain who is right. The group's mutations are shut out.
func (e *Engine) compareRecord(key []byte, reads []uint8) error {
	values := make([][]byte, len(reads)) // nil: not there
	same := true
	for i, slot := range reads {
		v, err := e.stores[slot].Get(key, []byte{})
		if errors.Is(err, shardstore.ErrNotFound) {
			v = nil
		} else if err != nil {
			return err
		}
		values[i] = v
		same = same && sameRecord(v, values[0])
	}
	if same {
		return nil
	}
	e.counters.ScrubDiffering.Add(1)
	right, plain := judgeRecord(key, values)
	e.log.Error("index record differs between drives", "slots", reads, "record", e.nameOf(key), "mended", plain)
	if !plain {
		return nil
	}
	for i, slot := range reads {
		if sameRecord(values[i], right) {
			continue
		}
		b := e.stores[slot].NewBatch()
		b.UseReserve() // it is little, and the drive has a wrong one
		if right == nil {
			b.Delete(key)
		} else {
			b.Set(key, right)
		}
		if err := e.stores[slot].Commit(context.Background(), b, true); err != nil {
			return errors.Join(err, e.drop(int(slot), err))
		}
	}
	return nil
}

func sameRecord(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) }

// judgeRecord says which of the values is right: what most have, else, of an object's records, the one of the latest
// mutation. With one drive that has a record and one that has none, nobody can say.
func judgeRecord(key []byte, values [][]byte) (right []byte, plain bool) {
	for _, v := range values {
		n := 0
		for _, other := range values {
			if sameRecord(v, other) {
				n++
			}
		}
		if 2*n > len(values) {
			return v, true
		}
	}
	if record.KindOf(key) != record.ObjectRecord {
		return nil, false
	}
	var latest uint64
	for _, v := range values {
		o, err := record.DecodeObject(v)
		if err != nil || o.Seq == latest {
			return nil, false
		}
		if o.Seq > latest {
			right, latest = v, o.Seq
		}
	}
	return right, true
}
