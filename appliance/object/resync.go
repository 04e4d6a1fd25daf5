package object

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/millrace/millrace/appliance/placement"
	"github.com/millrace/millrace/appliance/record"
	"github.com/millrace/millrace/nvme/shardstore"
)

// maxResync bounds the keys of a resync, which are held in memory; beyond it a fill is as good.
const maxResync = 4 * opLogKeep

// resync brings a drive that was away up to date from the op-logs: it gets the present state of every key
// that a mutation touched since, here or on the drive itself. It says whether that could be done.
//
// The drive's watermark W says that all mutations up to W are on it, and all that were acknowledged
// by the time it left are on it too, since a drive that misses one is out before that is acknowledged.
func (e *Engine) resync(ctx context.Context, slot int) (done bool, err error) {
	s := e.stores[slot]
	last, err := readMap(s)
	if err != nil {
		return false, nil // it is new here
	}
	v := e.view.Load()
	mark, err := readWatermark(s)
	if err != nil {
		return false, err
	}
	if v.Slots[slot].State != placement.Out || last.Slots[slot].Filled != placement.In ||
		last.NeedsFill() || v.NeedsFill() || !v.DiffersOnlyIn(last, slot) || !e.reachesBack(mark.Seq) {
		return false, nil
	}
	e.buckets.change.Lock()
	defer e.buckets.change.Unlock()
	if err := e.copyConfig(ctx, s); err != nil {
		return false, err
	}
	// Before the next map: from then on there may be pending marks of writes that have not ended yet.
	if err := e.resolvePending(uint8(slot)); err != nil {
		return false, err
	}
	// From the next map on it gets all mutations; what it lacks is what was logged up to then.
	upTo := e.seq.Load()
	if err := e.changeMap(func(m *placement.Map) *placement.Map { return m.With(slot) }); err != nil {
		return false, err
	}
	keys, err := e.touchedSince(ctx, mark.Seq)
	if err != nil || len(keys) > maxResync {
		return false, errors.Join(err, e.drop(slot, errors.New("not to be brought up to date from the op-logs")))
	}
	if err := e.copyTouched(ctx, uint8(slot), keys); err != nil {
		return false, err
	}
	// Its own entries may be of mutations that nobody else has: they are undone now.
	b := s.NewBatch()
	b.DeleteRange(record.OpLogKey(mark.Seq+1), record.OpLogKey(upTo+1))
	if err := s.Commit(ctx, b, true); err != nil {
		return false, err
	}
	err = e.changeMap(func(m *placement.Map) *placement.Map { return m.Restore(slot) })
	if err != nil {
		return false, err
	}
	e.counters.Resynced.Add(1)
	e.log.Info("drive is back, brought up to date", "slot", slot, "keys", len(keys))
	return true, nil
}

// reachesBack says whether the op-logs of all drives have every entry after seq.
func (e *Engine) reachesBack(seq uint64) bool {
	for _, slot := range e.view.Load().AllIn() {
		w, err := readWatermark(e.stores[slot])
		if err != nil || w.Trimmed > seq+1 {
			return false
		}
	}
	return true
}

// touchedSince gives the keys of all op-log entries after seq, of every drive that is in, each with
// its group.
func (e *Engine) touchedSince(ctx context.Context, seq uint64) (map[string]int, error) {
	keys := map[string]int{}
	for _, slot := range e.view.Load().AllIn() {
		err := eachOp(e.stores[slot], seq, func(_ uint64, op *record.Op) error {
			for _, k := range op.Keys {
				if len(keys) <= maxResync {
					keys[string(k)] = op.Group
				}
			}
			return ctx.Err()
		})
		if err != nil {
			return nil, fmt.Errorf("slot %d: op-log: %w", slot, err)
		}
	}
	return keys, nil
}

// eachOp calls f with the op-log entries of a drive after seq, in order.
func eachOp(s *shardstore.Store, seq uint64, f func(uint64, *record.Op) error) error {
	it, err := s.Scan(record.OpLogKey(seq+1), record.PrefixEnd(record.OpLogPrefix()))
	if err != nil {
		return err
	}
	defer it.Close()
	for it.First(); it.Valid(); it.Next() {
		n, err := record.ParseOpLogKey(it.Key())
		if err != nil {
			return err
		}
		value, err := it.Value()
		if err != nil {
			return err
		}
		op, err := record.DecodeOp(value)
		if err != nil {
			return err
		}
		if err := f(n, op); err != nil {
			return err
		}
	}
	return it.Err()
}

// copyTouched gives a drive the present state of the keys that it should have.
func (e *Engine) copyTouched(ctx context.Context, slot uint8, keys map[string]int) error {
	v := e.view.Load()
	byGroup := map[int][][]byte{}
	for k, group := range keys {
		if group < v.Groups && slices.Contains(v.Members(group), slot) {
			byGroup[group] = append(byGroup[group], []byte(k))
		}
	}
	f := &filler{e: e, view: v}
	for group, keys := range byGroup {
		if err := ctx.Err(); err != nil {
			return err
		}
		lead := v.Lead(group)
		if lead < 0 || lead == int(slot) {
			return fmt.Errorf("group %d has no other member", group)
		}
		if err := e.copyGroup(f, group, uint8(lead), slot, keys); err != nil {
			return err
		}
	}
	return nil
}

// copyGroup copies keys of a group. Clearing up is in no op-log: what the others have cleared up of an upload
// meanwhile goes too, as far as the keys or the drive's own records name it.
func (e *Engine) copyGroup(f *filler, group int, from, to uint8, keys [][]byte) error {
	e.gates[group].Lock()
	defer e.gates[group].Unlock()
	uploads, err := e.uploadsOf(to, keys)
	if err != nil {
		return err
	}
	for some := range slices.Chunk(keys, copyBatch) {
		if err := f.copyKeys(from, to, some); err != nil {
			return err
		}
	}
	for u := range uploads {
		if err := e.clearUpload(group, u, from, to); err != nil {
			return err
		}
	}
	return nil
}

// uploadsOf gives the uploads that keys name, or a drive's records of them.
func (e *Engine) uploadsOf(slot uint8, keys [][]byte) (map[record.UploadID]bool, error) {
	uploads := map[record.UploadID]bool{}
	for _, k := range keys {
		u, err := e.uploadOf(slot, k)
		if err != nil {
			return nil, err
		}
		uploads[u] = true
	}
	delete(uploads, record.UploadID{})
	return uploads, nil
}

// uploadOf gives the upload that a key, or a drive's record of it, names, if any.
func (e *Engine) uploadOf(slot uint8, key []byte) (u record.UploadID, err error) {
	kind := record.KindOf(key)
	switch kind {
	case record.UploadRecord:
		_, _, u, err = record.ParseUploadKey(key)
		return u, err
	case record.ManifestRecord:
		_, u, err = record.ParseManifestKey(key)
		return u, err
	case record.ObjectRecord, record.FreeRecord:
	default:
		return u, nil
	}
	value, err := e.stores[slot].Get(key, nil)
	if errors.Is(err, shardstore.ErrNotFound) {
		return u, nil
	}
	if err != nil {
		return u, err
	}
	if kind == record.FreeRecord {
		f, err := record.DecodeFree(value)
		if err != nil {
			return u, err
		}
		return f.Upload, nil
	}
	o, err := record.DecodeObject(value)
	if err != nil {
		return u, err
	}
	return o.Upload, nil
}

// clearUpload deletes from a drive the parts and the manifest of an upload that the other has no more.
func (e *Engine) clearUpload(group int, u record.UploadID, from, to uint8) error {
	b := e.stores[to].NewBatch()
	forget := func(key []byte, body *record.Layout) error {
		_, err := e.stores[from].Get(key, nil)
		if !errors.Is(err, shardstore.ErrNotFound) {
			return err
		}
		b.Delete(key)
		if body != nil && body.Inline {
			b.Delete(record.BodyKey(group, body.Instance))
		}
		return nil
	}
	failed := forget(record.ManifestKey(group, u), nil)
	err := eachPartOn(e.stores[to], group, u, 0, func(p *record.Part) bool {
		failed = errors.Join(failed, forget(record.PartKey(group, u, p.Part.Number), &p.Layout))
		return failed == nil
	})
	if err := errors.Join(failed, err); err != nil {
		b.Close()
		return err
	}
	if err := e.stores[to].Commit(context.Background(), b, false); err != nil {
		return errors.Join(err, e.drop(int(to), err))
	}
	return nil
}
