package shardstore

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/minio/crc64nvme"

	"github.com/millrace/millrace/nvme/blockdev"
)

// ShardWriter fills the space of one new shard. Its blocks are written once each, in any order,
// also from several goroutines at once. A writer ends by a commit or by Abort.
type ShardWriter struct {
	s   *Store
	id  ShardID
	rec shardRecord

	mu      sync.Mutex
	claimed []uint64 // bit per block: a WriteAt has it
	left    int      // blocks not wholly written
	state   writerState
}

type writerState uint8

const (
	writerOpen writerState = iota
	writerCommitting
	writerCommitted
	writerAborted
)

// NewShard reserves space for a shard of sizeBytes, a multiple of AllocUnitBytes up to
// MaxShardBytes. Errors: ErrFull, ErrInvalid, ErrTooLarge, ErrDead, ErrClosed. The shard takes the
// place of one with the same ID when it is committed.
func (s *Store) NewShard(ctx context.Context, id ShardID, sizeBytes int64) (*ShardWriter, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if sizeBytes > MaxShardBytes {
		return nil, fmt.Errorf("shard of %d bytes: %w", sizeBytes, ErrTooLarge)
	}
	if sizeBytes <= 0 || sizeBytes%AllocUnitBytes != 0 || id.Segment == (SegmentID{}) {
		return nil, fmt.Errorf("%w: shard %s of %d bytes", ErrInvalid, id, sizeBytes)
	}
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.leave()
	if !s.hasRoom(0) {
		return nil, fmt.Errorf("metadata: %w", ErrFull) // what it would need later
	}
	extents, err := s.reserve(ctx, sizeBytes)
	if err != nil {
		return nil, err
	}
	n := blockCount(sizeBytes)
	words := make([]uint64, n+(n+63)/64) // one allocation for checksums and bits
	return &ShardWriter{
		s:       s,
		id:      id,
		rec:     shardRecord{sizeBytes: sizeBytes, extents: extents, crcs: words[:n:n]},
		claimed: words[n:],
		left:    n,
	}, nil
}

// reserve finds space. What waits for a durable commit is worth one before the drive is full.
func (s *Store) reserve(ctx context.Context, sizeBytes int64) ([]Extent, error) {
	extents := s.space.alloc(sizeBytes)
	if extents == nil && s.space.pendingUnits.Load() > 0 {
		if err := s.Commit(ctx, s.NewBatch(), true); err != nil {
			return nil, err
		}
		extents = s.space.alloc(sizeBytes)
	}
	if extents == nil {
		return nil, fmt.Errorf("shard of %d bytes: %w", sizeBytes, ErrFull)
	}
	return extents, nil
}

// ID gives the shard's ID.
func (w *ShardWriter) ID() ShardID { return w.id }

// SizeBytes gives the shard's size.
func (w *ShardWriter) SizeBytes() int64 { return w.rec.sizeBytes }

// Dead is Dead of the shard's store.
func (w *ShardWriter) Dead() <-chan struct{} { return w.s.Dead() }

// WriteAt writes bufs, in order, at off of the shard. off is a multiple of BlockBytes; the length is one
// too, or reaches the shard's end. crcs has the CRC64NVME of every block, taken when its bytes came to be:
// reads hold what the drive gives against it, so a block that does not match is as good as damaged. The
// buffers are aligned as blockdev.Device asks, but may be cut anywhere it allows. A device that fails the
// write is dead. The bytes are not durable before a commit.
func (w *ShardWriter) WriteAt(bufs [][]byte, off int64, crcs []uint64) error {
	n := totalBytes(bufs)
	if err := checkBlocks(off, n, w.rec.sizeBytes); err != nil {
		return err
	}
	if n == 0 {
		return nil
	}
	s := w.s
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	first, count := int(off/BlockBytes), blockCount(n)
	if len(crcs) != count {
		return fmt.Errorf("%w: %d checksums of %d blocks", ErrInvalid, len(crcs), count)
	}
	if err := w.claim(first, count); err != nil {
		return err
	}
	copy(w.rec.crcs[first:], crcs)
	op := s.ops.Start()
	err := transfer(w.rec.extents, bufs, off, n, s.data.WriteAt)
	s.ops.End(op)
	if errors.Is(err, blockdev.ErrUnaligned) {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if err != nil {
		return s.kill(fmt.Errorf("write shard: %w", err))
	}
	s.writtenBytes.Add(uint64(n))
	w.mu.Lock()
	w.left -= count
	w.mu.Unlock()
	return nil
}

// claim takes the blocks for one WriteAt; each can be taken once.
func (w *ShardWriter) claim(first, count int) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.state != writerOpen {
		return fmt.Errorf("%w: write to an ended shard writer", ErrInvalid)
	}
	for i := first; i < first+count; i++ {
		if w.claimed[i/64]&(1<<(i%64)) != 0 {
			return fmt.Errorf("%w: block %d of shard %s written twice", ErrInvalid, i, w.id)
		}
	}
	for i := first; i < first+count; i++ {
		w.claimed[i/64] |= 1 << (i % 64)
	}
	return nil
}

// Abort gives the space back. It does nothing after a commit, or when called again. No WriteAt
// may be running.
func (w *ShardWriter) Abort() {
	if w.advance(writerOpen, writerAborted) != nil {
		return
	}
	w.s.space.abort(w.rec.extents)
}

// advance moves the writer from one state to another. A commit needs all blocks.
func (w *ShardWriter) advance(from, to writerState) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.state != from {
		return fmt.Errorf("%w: shard writer of %s has ended", ErrInvalid, w.id)
	}
	if to == writerCommitting && w.left > 0 {
		return fmt.Errorf("%w: %d blocks of shard %s not written", ErrInvalid, w.left, w.id)
	}
	w.state = to
	return nil
}

func totalBytes(bufs [][]byte) int64 {
	n := 0
	for _, b := range bufs {
		n += len(b)
	}
	return int64(n)
}

// checkBlocks judges a range of a shard: whole blocks, or up to its end.
func checkBlocks(off, n, sizeBytes int64) error {
	if off < 0 || off%BlockBytes != 0 || n > sizeBytes-off || n%BlockBytes != 0 && off+n != sizeBytes {
		return fmt.Errorf("%w: range %d+%d of a shard of %d bytes", ErrInvalid, off, n, sizeBytes)
	}
	return nil
}

// eachBlock calls fn with the number and checksum of every block of bufs, which start at a block.
func eachBlock(bufs [][]byte, fn func(i int, crc uint64)) {
	i, have, crc := 0, 0, uint64(0)
	for _, b := range bufs {
		for len(b) > 0 {
			n := min(len(b), BlockBytes-have)
			crc = crc64nvme.Update(crc, b[:n])
			b, have = b[n:], have+n
			if have == BlockBytes {
				fn(i, crc)
				i, have, crc = i+1, 0, 0
			}
		}
	}
	if have > 0 {
		fn(i, crc)
	}
}

// transfer reads or writes [off, off+n) of a shard, one device call for each extent.
func transfer(extents []Extent, bufs [][]byte, off, n int64, io func([][]byte, int64) error) error {
	if len(extents) == 1 {
		return io(bufs, extents[0].OffsetBytes+off)
	}
	return eachRange(extents, off, n, func(deviceOff, length int64) error {
		var part [][]byte
		part, bufs = splitBufs(bufs, length)
		return io(part, deviceOff)
	})
}

// splitBufs cuts bufs after n bytes.
func splitBufs(bufs [][]byte, n int64) (head, tail [][]byte) {
	for i, b := range bufs {
		if int64(len(b)) < n {
			n -= int64(len(b))
			continue
		}
		head = append(append(head, bufs[:i]...), b[:n])
		if int64(len(b)) > n {
			tail = append(tail, b[n:])
		}
		return head, append(tail, bufs[i+1:]...)
	}
	return bufs, nil
}
