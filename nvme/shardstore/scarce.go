package shardstore

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// errNoSpaceFor is why a compaction was not carried out.
var errNoSpaceFor = errors.New("what the compaction writes might not fit into the free space")

// compactionFit refuses compactions for which there may not be space. What a compaction replaces is given back after it has
// written all of what replaces it; one that finds the space used up would take the drive with it. Pebble says what
// it is about to compact, and takes it well if the first file for that can't be made. There is one compaction at a time.
type compactionFit struct {
	room     *metaRoom
	refusing atomic.Bool
	refused  atomic.Bool // the last one
}

// begin is called by Pebble before a compaction, with its lock held.
func (f *compactionFit) begin(inputBytes uint64) {
	if f.room.reserveBytes < 0 {
		return
	}
	f.room.ask()
	free := f.room.freeBytes.Load()
	refuse := free >= 0 && int64(inputBytes) > free-f.room.floorBytes()
	f.refusing.Store(refuse)
	f.refused.Store(refuse)
}

func (f *compactionFit) end() { f.refusing.Store(false) }

// mayCreate is asked before a file is made.
func (f *compactionFit) mayCreate(category vfs.DiskWriteCategory) error {
	if f.refusing.Load() && (category == compactionWrites || category == rewriteWrites) {
		return errNoSpaceFor
	}
	return nil
}

// What Pebble calls the files that it writes in the background, besides those of what was in memory.
const (
	compactionWrites vfs.DiskWriteCategory = "pebble-compaction"
	rewriteWrites    vfs.DiskWriteCategory = "pebble-blob-file-rewrite"
)

func inputBytes(info *pebble.CompactionInfo) (n uint64) {
	for _, level := range info.Input {
		for _, t := range level.Tables {
			n += t.Size
		}
	}
	return n
}

const (
	// scarceWait is how long a commit waits for compactions where space is scarce. So not much is written between two of
	// them, though the store refuses no deletes: who makes many asks HasReserve.
	scarceWait = time.Second
	scarceLook = scarceWait / 20
)

// awaitSpace returns when there is space, or after scarceWait, or when the drive is dead.
func (s *Store) awaitSpace() {
	for end := s.ops.Now() + scarceWait; s.room.scarce(); {
		s.makeRoom()
		select {
		case <-s.guard.Dead():
			return
		case <-time.After(scarceLook):
		}
		now := s.ops.Now()
		if now > end {
			return
		}
		s.room.askEvery(scarceLook, now)
	}
}
