package shardstore

import (
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
)

// maxSublevels is how many tables on top of each other a read may have to look at before commits
// wait for compactions.
const maxSublevels = 24

// backlog makes commits wait while there is too much to compact. Pebble could do so too, but a commit
// that waits inside Pebble can't be called back when the drive dies, and on a dead drive nothing is
// compacted any more.
type backlog struct {
	dead    <-chan struct{}
	db      atomic.Pointer[pebble.DB] // once it is open
	full    atomic.Bool
	changed chan struct{} // has an item after a flush or a compaction

	mu   sync.Mutex
	room chan struct{} // closed when it is no longer full; nil while it isn't
}

func (b *backlog) init(dead <-chan struct{}) {
	b.dead, b.changed = dead, make(chan struct{}, 1)
}

// touch is called by Pebble, with its lock held, when the number of tables has changed.
func (b *backlog) touch() {
	select {
	case b.changed <- struct{}{}:
	default:
	}
}

// run looks after each change until stop is closed.
func (b *backlog) run(g *gate, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-b.changed:
		}
		if g.enter() {
			b.look()
			g.leave()
		}
	}
}

// look asks Pebble, and lets commits through or not.
func (b *backlog) look() {
	db := b.db.Load()
	if db == nil {
		return
	}
	full := db.Metrics().Levels[0].Sublevels >= maxSublevels
	b.mu.Lock()
	defer b.mu.Unlock()
	if full == (b.room != nil) {
		return
	}
	b.full.Store(full)
	if full {
		b.room = make(chan struct{})
		return
	}
	close(b.room)
	b.room = nil
}

// wait returns when a commit may go on, or an error if the drive has died.
func (b *backlog) wait() error {
	if !b.full.Load() {
		return nil
	}
	b.mu.Lock()
	room := b.room
	b.mu.Unlock()
	if room == nil {
		return nil
	}
	select {
	case <-room:
		return nil
	case <-b.dead:
		return ErrDead
	}
}
