package object

import (
	"context"
	"errors"

	"github.com/millrace/millrace/appliance/placement"
	"github.com/millrace/millrace/appliance/record"
	"github.com/millrace/millrace/nvme/shardstore"
)

// rejoin asks a drive in that was away. Its shards are worth keeping, unless nothing refers to them any more:
// they are never overwritten. Its records are brought up to date from the op-logs if those reach back far
// enough and nothing else has changed since it left; else they are thrown away, and a fill gives it all anew.
func (e *Engine) rejoin(ctx context.Context, slot int) error {
	resumed, err := e.resync(ctx, slot)
	if err != nil || resumed {
		return err
	}
	s := e.stores[slot]
	b := s.NewBatch()
	for _, r := range record.UnseatedRanges() {
		b.DeleteRange(r.Lower, r.Upper)
	}
	if err := s.Commit(ctx, b, true); err != nil {
		return err
	}
	if err := e.resolvePending(uint8(slot)); err != nil {
		return err
	}
	if err := e.sweepShards(ctx, uint8(slot)); err != nil {
		return err
	}
	e.buckets.change.Lock()
	defer e.buckets.change.Unlock()
	if err := e.copyConfig(ctx, s); err != nil {
		return err
	}
	if err := e.changeMap(func(m *placement.Map) *placement.Map { return m.With(slot) }); err != nil {
		return err
	}
	e.log.Info("drive is back, to be filled", "slot", slot)
	return nil
}

// sweepShards frees the shards of a drive that no record refers to.
func (e *Engine) sweepShards(ctx context.Context, slot uint8) error {
	s := e.stores[slot]
	c := chunks{s: s}
	defer c.close()
	err := s.Shards(shardstore.ShardID{}, func(id shardstore.ShardID, _ shardstore.ShardInfo) error {
		referred, err := e.isReferred(slot, id.Segment, int(id.Index))
		if err != nil || referred {
			return err
		}
		e.counters.OrphanShards.Add(1)
		return errors.Join(ctx.Err(), c.add(func(b *shardstore.Batch) {
			b.DeleteShard(id)
			b.Delete(record.OwnerKey(id.Segment, int(id.Index)))
		}))
	})
	if err != nil {
		return err
	}
	return c.end()
}

func (e *Engine) copyConfig(ctx context.Context, to *shardstore.Store) error {
	slots := e.configSlots()
	if len(slots) == 0 {
		return errors.New("no drive has the configuration")
	}
	prefix := record.ConfigKey("")
	it, err := e.stores[slots[0]].Scan(prefix, record.PrefixEnd(prefix))
	if err != nil {
		return err
	}
	defer it.Close()
	c := chunks{s: to}
	defer c.close()
	if err := c.add(func(b *shardstore.Batch) { b.DeleteRange(prefix, record.PrefixEnd(prefix)) }); err != nil {
		return err
	}
	for it.First(); it.Valid() && ctx.Err() == nil; it.Next() {
		value, err := it.Value()
		if err == nil {
			err = c.add(func(b *shardstore.Batch) { b.Set(it.Key(), value) })
		}
		if err != nil {
			return err
		}
	}
	if err := errors.Join(it.Err(), ctx.Err()); err != nil {
		return err
	}
	return c.end()
}
