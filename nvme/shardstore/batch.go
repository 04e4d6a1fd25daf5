package shardstore

import (
	"bytes"
	"fmt"
	"slices"
	"sync"

	"github.com/cockroachdb/pebble/v2"
)

// Limits of the engine's records.
const (
	// MaxKeyBytes is the longest key.
	MaxKeyBytes = 8 << 10
	// MaxValueBytes is the longest value.
	MaxValueBytes = 1 << 20
	// MaxBatchBytes is the largest batch, and bounds the shards in one too.
	MaxBatchBytes = 16 << 20

	maxBatchShards = 4096
)

// Batch gathers changes that are committed together, or not at all. It is for one goroutine, and
// for one Commit. A batch that is not committed must be closed.
type Batch struct {
	s       *Store
	pb      *pebble.Batch
	puts    []*ShardWriter
	deletes []ShardID
	grows   bool // it holds more than deletes
	frees   bool // it may use the reserve all the same
	shrinks bool // it deletes something
	err     error
	one     [1]*ShardWriter // room for the usual case
}

// NewBatch returns an empty batch.
func (s *Store) NewBatch() *Batch {
	b := &Batch{s: s}
	b.puts = b.one[:0]
	if s.gate.enter() {
		b.pb = s.db.NewBatch()
		s.gate.leave()
	} else {
		b.err = ErrClosed
	}
	return b
}

// PutShard adds a shard, all blocks of which are written by the time of the commit. One of the same
// ID that exists then is deleted by the same commit.
func (b *Batch) PutShard(w *ShardWriter) {
	b.puts = append(b.puts, w)
	b.grows = true
	b.checkShards()
}

// DeleteShard deletes a shard; one that is not there is no error. Its space is free again once
// the commit is durable: for one without sync, after the next with sync. A batch that also puts
// the shard leaves the new one, whatever the order of the calls.
func (b *Batch) DeleteShard(id ShardID) {
	b.deletes = append(b.deletes, id)
	b.shrinks = true
	b.checkShards()
}

func (b *Batch) checkShards() {
	if len(b.puts)+len(b.deletes) > maxBatchShards && b.err == nil {
		b.err = fmt.Errorf("batch of %d shards: %w", maxBatchShards+1, ErrTooLarge)
	}
}

// Set sets a record of the engine. Both slices are copied. What is wrong with them is told by
// Commit.
func (b *Batch) Set(key, value []byte) {
	if !b.check(len(key), len(value)) {
		return
	}
	b.grows = true
	op := b.pb.SetDeferred(1+len(key), len(value))
	putEngineKey(op.Key, key)
	copy(op.Value, value)
	b.note(op.Finish())
}

// UseReserve lets the batch be committed though the metadata is full: it is part of what frees space, and what
// it sets is little.
func (b *Batch) UseReserve() { b.frees = true }

// Delete deletes a record of the engine; one that is not there is no error.
func (b *Batch) Delete(key []byte) {
	if !b.check(len(key), 0) {
		return
	}
	b.shrinks = true
	op := b.pb.DeleteDeferred(1 + len(key))
	putEngineKey(op.Key, key)
	b.note(op.Finish())
}

// DeleteRange deletes the engine's records from lo up to, not including, hi; a nil hi means up
// to the last.
func (b *Batch) DeleteRange(lo, hi []byte) {
	if !b.check(len(lo), len(hi)) {
		return
	}
	lower, upper := engineBounds(nil, lo, hi)
	if bytes.Compare(lower, upper) < 0 {
		b.shrinks = true
		b.note(b.pb.DeleteRange(lower, upper, nil))
	}
}

// Close gives up a batch. It does nothing after Commit. Its shard writers stay the caller's.
func (b *Batch) Close() {
	if b.pb != nil {
		b.pb.Close()
		b.pb = nil
	}
	b.note(errBatchUsed)
}

func (b *Batch) check(keyBytes, valueBytes int) bool {
	if keyBytes > MaxKeyBytes || valueBytes > MaxValueBytes {
		b.note(fmt.Errorf("record of %d and %d bytes: %w", keyBytes, valueBytes, ErrTooLarge))
	}
	if b.err == nil && b.pb.Len()+keyBytes+valueBytes > MaxBatchBytes {
		b.note(fmt.Errorf("batch of more than %d bytes: %w", MaxBatchBytes, ErrTooLarge))
	}
	return b.err == nil
}

func (b *Batch) note(err error) {
	if b.err == nil {
		b.err = err
	}
}

// ids gives the shards that the batch names, each once.
func (b *Batch) ids() []ShardID {
	switch {
	case len(b.puts) == 0 && len(b.deletes) == 1:
		return b.deletes
	case len(b.puts) == 1 && len(b.deletes) == 0:
		return []ShardID{b.puts[0].id}
	}
	ids := slices.Clone(b.deletes)
	for _, w := range b.puts {
		ids = append(ids, w.id)
	}
	slices.SortFunc(ids, ShardID.Compare)
	return slices.Compact(ids)
}

// putEngineKey fills dst with the key as Pebble has it.
func putEngineKey(dst, key []byte) {
	dst[0] = prefixEngine
	copy(dst[1:], key)
}

// engineBounds gives the bounds of a range of the engine's records, both in buf. A range that is
// upside down is empty.
func engineBounds(buf, lo, hi []byte) (lower, upper []byte) {
	buf = append(append(buf, prefixEngine), lo...)
	n := len(buf)
	if hi == nil {
		buf = append(buf, prefixEngine+1)
	} else {
		buf = append(append(buf, prefixEngine), hi...)
	}
	if lower, upper = buf[:n:n], buf[n:]; bytes.Compare(lower, upper) > 0 {
		upper = lower
	}
	return lower, upper
}

// busyShards are the shards that a running commit names. Two commits that name the same shard
// run one after the other, or they would both free what it occupied.
type busyShards struct {
	mu   sync.Mutex
	cond sync.Cond
	ids  map[ShardID]struct{}

	commits uint64 // how often lock was called
}

func (l *busyShards) init() {
	l.cond.L = &l.mu
	l.ids = make(map[ShardID]struct{})
}

// lock takes all of the ids at once, so there is no order to keep.
func (l *busyShards) lock(ids []ShardID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for slices.ContainsFunc(ids, l.has) {
		l.cond.Wait()
	}
	l.commits++
	for _, id := range ids {
		l.ids[id] = struct{}{}
	}
}

func (l *busyShards) has(id ShardID) bool {
	_, busy := l.ids[id]
	return busy
}

func (l *busyShards) unlock(ids []ShardID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range ids {
		delete(l.ids, id)
	}
	l.cond.Broadcast()
}
