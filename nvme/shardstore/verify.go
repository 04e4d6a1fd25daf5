package shardstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/millrace/millrace/nvme/blockdev"
)

// maxProblems bounds the list in a Report.
const maxProblems = 100

// verifyBufferBytes is how much a deep Verify reads at once.
const verifyBufferBytes = 1 << 20

// Report is what Verify found.
type Report struct {
	Shards       int64
	UsedBytes    int64   // space that the shard records refer to
	LeakedBytes  int64   // space that neither a record nor the free map has; negative: counted twice
	ReadBytes    int64   // shard bytes read by a deep check
	SpaceChecked bool    // no commit got in the way of comparing records and free map
	Problems     []error // at most 100; empty means sound
}

func (r *Report) add(err error) {
	if len(r.Problems) < maxProblems {
		r.Problems = append(r.Problems, err)
	}
}

// Verify checks that no two shards overlap, that all lie in the data area, and that what they
// leave is free: nothing leaked, nothing handed out twice. A deep check reads every block too.
// It may run beside other work; the free map is compared only if no commit ran meanwhile. The error
// says why it could not finish; what it found is in the report.
func (s *Store) Verify(ctx context.Context, deep bool) (Report, error) {
	var report Report
	if err := s.enter(); err != nil {
		return report, err
	}
	defer s.leave()
	commits, idle := s.busy.state()
	before := s.space.usage()
	snapshot := s.db.NewSnapshot()
	defer snapshot.Close()

	records := newAllocator(reservedBytes, s.label.DataBytes-reservedBytes)
	var free []error
	err := s.eachRecord(ctx, snapshot, ShardID{}, func(id ShardID, r *shardRecord) error {
		report.Shards++
		for _, e := range r.extents {
			report.UsedBytes += e.LengthBytes
			if err := records.reserve(e); err != nil {
				report.add(fmt.Errorf("shard %s: %w", id, err))
			}
			if s.space.anyFree(e) && len(free) < maxProblems {
				free = append(free, corruptf("shard %s: extent %d+%d is in the free map",
					id, e.OffsetBytes, e.LengthBytes))
			}
		}
		return nil
	})
	if err != nil {
		return report, err
	}
	after := s.space.usage()
	if now, stillIdle := s.busy.state(); idle && stillIdle && now == commits && after == before {
		report.SpaceChecked = true
		spoken := after.free + after.reserved + after.pending + report.UsedBytes/AllocUnitBytes
		report.LeakedBytes = (s.space.totalUnits - spoken) * AllocUnitBytes
		if report.LeakedBytes != 0 {
			report.add(corruptf("%d bytes leaked", report.LeakedBytes))
		}
		for _, err := range free {
			report.add(err)
		}
	}
	if deep {
		err = s.verifyBlocks(ctx, &report)
	}
	return report, err
}

// verifyBlocks reads every block of every shard.
func (s *Store) verifyBlocks(ctx context.Context, report *Report) error {
	buf := blockdev.AlignedBuffer(verifyBufferBytes)
	snapshot := s.db.NewSnapshot()
	defer snapshot.Close()
	return s.eachRecord(ctx, snapshot, ShardID{}, func(id ShardID, r *shardRecord) error {
		for off := int64(0); off < r.sizeBytes; off += verifyBufferBytes {
			if err := ctx.Err(); err != nil {
				return err
			}
			n := min(verifyBufferBytes, r.sizeBytes-off)
			err := s.ReadShard(id, off, [][]byte{buf[:n]})
			switch {
			case err == nil:
				report.ReadBytes += n
			case errors.Is(err, ErrDead), errors.Is(err, ErrClosed):
				return err
			case !errors.Is(err, ErrNotFound): // deleted meanwhile
				report.add(err)
			}
		}
		return nil
	})
}

// state gives how many commits with shards there were, and whether none is running.
func (l *busyShards) state() (commits uint64, idle bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.commits, len(l.ids) == 0
}
