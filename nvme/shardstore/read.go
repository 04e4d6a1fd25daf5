package shardstore

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"
)

// ShardInfo is what a shard's record says. It is the caller's.
type ShardInfo struct {
	SizeBytes int64
	Extents   []Extent // where the bytes lie, in order
	BlockCRCs []uint64 // CRC64NVME of every block of BlockBytes; the last may be shorter
}

// keyBuffer holds a key, and a value where one is needed, on their way to Pebble.
type keyBuffer struct{ key, value []byte }

// record gives a shard's record. The caller must not change it.
func (s *Store) record(id ShardID) (*shardRecord, error) {
	rec, epoch := s.records.get(id)
	if rec != nil {
		return rec, nil
	}
	rec, err := s.loadRecord(id)
	if err != nil {
		return nil, err
	}
	s.records.put(id, rec, epoch)
	return rec, nil
}

// loadRecord reads a shard's record from Pebble.
func (s *Store) loadRecord(id ShardID) (*shardRecord, error) {
	kb := s.keys.Get().(*keyBuffer)
	defer s.keys.Put(kb)
	kb.key = appendShardKey(kb.key[:0], id)
	value, closer, err := s.db.Get(kb.key)
	if err != nil {
		return nil, s.metaError(err)
	}
	rec := new(shardRecord)
	failed := rec.decode(kb.key, value)
	if err := closer.Close(); err != nil { // Pebble tells only here that it could not read the value
		return nil, s.metaError(err)
	}
	if failed != nil {
		return nil, s.kill(fmt.Errorf("shard %s: %w", id, failed))
	}
	return rec, nil
}

// metaError judges an error of a Pebble read. A drive whose metadata can't be read is dead.
func (s *Store) metaError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, pebble.ErrNotFound):
		return ErrNotFound
	case pebble.IsCorruptionError(err):
		return s.kill(fmt.Errorf("read metadata: %w: %w", ErrCorrupt, err))
	}
	return s.kill(fmt.Errorf("read metadata: %w", err))
}

// readTries bounds how often a read follows a shard that is being replaced.
const readTries = 3

// ReadShard reads from off, a multiple of BlockBytes, into bufs, which hold whole blocks or reach
// the shard's end, and are aligned as blockdev.Device asks. It returns nil only if every block
// matches its checksum. Errors: ErrNotFound, ErrInvalid, *ChecksumError, the device's own (which
// do not kill the drive: one sector may be bad), ErrDead, ErrClosed. After an error the buffers
// hold anything.
func (s *Store) ReadShard(id ShardID, off int64, bufs [][]byte) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	s.shardReads.Add(1)
	rec, err := s.record(id)
	for range readTries {
		if err != nil {
			return err
		}
		if err = s.readBlocks(id, rec, off, bufs); err == nil || !errors.Is(err, ErrCorrupt) {
			return err
		}
		// The shard may have been deleted or replaced, and its space written anew, since its
		// record was looked up: then the drive is not to blame.
		now, loadErr := s.loadRecord(id)
		if loadErr != nil {
			return loadErr
		}
		if now.equal(rec) {
			break
		}
		rec, err = now, nil
	}
	var bad *ChecksumError
	if errors.As(err, &bad) {
		s.checksumErrors.Add(uint64(len(bad.Blocks)))
		return err
	}
	return fmt.Errorf("shard %s replaced again and again: %w", id, ErrNotFound)
}

func (r *shardRecord) equal(o *shardRecord) bool {
	return r.sizeBytes == o.sizeBytes && slices.Equal(r.extents, o.extents) && slices.Equal(r.crcs, o.crcs)
}

// readBlocks reads and checks one range of a shard.
func (s *Store) readBlocks(id ShardID, rec *shardRecord, off int64, bufs [][]byte) error {
	n := totalBytes(bufs)
	if err := checkBlocks(off, n, rec.sizeBytes); err != nil {
		return err
	}
	if n == 0 {
		return nil
	}
	op := s.ops.Start()
	err := transfer(rec.extents, bufs, off, n, s.data.ReadAt)
	s.ops.End(op)
	if err != nil {
		s.readErrors.Add(1)
		return fmt.Errorf("read shard %s: %w", id, err)
	}
	s.readBytes.Add(uint64(n))
	first := int(off / BlockBytes)
	var bad []int
	eachBlock(bufs, func(i int, crc uint64) {
		if crc != rec.crcs[first+i] {
			bad = append(bad, first+i)
		}
	})
	if len(bad) > 0 {
		return &ChecksumError{Shard: id, Blocks: bad}
	}
	return nil
}

// ShardInfo gives what the shard's record says, or ErrNotFound.
func (s *Store) ShardInfo(id ShardID) (ShardInfo, error) {
	if err := s.enter(); err != nil {
		return ShardInfo{}, err
	}
	defer s.leave()
	rec, err := s.record(id)
	if err != nil {
		return ShardInfo{}, err
	}
	return rec.info(), nil
}

// Shards calls fn for every shard that was there at the time of the call and comes after the
// given one (the zero ID: for every shard), in the order of their IDs, until fn returns an error,
// which it then returns.
func (s *Store) Shards(after ShardID, fn func(ShardID, ShardInfo) error) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	return s.eachRecord(context.Background(), s.db, after, func(id ShardID, r *shardRecord) error {
		return fn(id, r.info())
	})
}

// eachRecord calls fn for every shard record after the given ID. The record holds until fn returns.
func (s *Store) eachRecord(ctx context.Context, from pebble.Reader, after ShardID,
	fn func(ShardID, *shardRecord) error) error {
	lower := appendShardKey(nil, after)
	it, err := from.NewIter(&pebble.IterOptions{
		LowerBound: append(lower, 0), // the next key
		UpperBound: []byte{prefixShard + 1},
	})
	if err != nil {
		return s.metaError(err)
	}
	defer it.Close()
	var rec shardRecord
	for it.First(); it.Valid(); it.Next() {
		if err := ctx.Err(); err != nil {
			return err
		}
		id, ok := decodeShardKey(it.Key())
		if !ok {
			return corruptf("shard key %x", it.Key())
		}
		value, err := it.ValueAndErr()
		if err != nil {
			return s.metaError(err)
		}
		if err := rec.decode(it.Key(), value); err != nil {
			return fmt.Errorf("shard %s: %w", id, err)
		}
		if err := fn(id, &rec); err != nil {
			return err
		}
	}
	return s.metaError(it.Error())
}

// Get appends the value of the engine's record to dst, or gives ErrNotFound.
func (s *Store) Get(key, dst []byte) ([]byte, error) {
	if err := s.enter(); err != nil {
		return dst, err
	}
	defer s.leave()
	kb := s.keys.Get().(*keyBuffer)
	defer s.keys.Put(kb)
	kb.key = append(append(kb.key[:0], prefixEngine), key...)
	value, closer, err := s.db.Get(kb.key)
	if err != nil {
		return dst, s.metaError(err)
	}
	had := len(dst)
	dst = append(dst, value...)
	if err := closer.Close(); err != nil { // Pebble tells only here that it could not read the value
		return dst[:had], s.metaError(err)
	}
	return dst, nil
}
