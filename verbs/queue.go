package verbs

import (
	"context"
	"sync/atomic"
)

// Completion is the end of one work request.
type Completion struct {
	ID     uint64
	Op     Opcode
	Bytes  int64  // bytes moved; of a RECV, the length of the message
	Imm    uint32 // of a RECV that an immediate value consumed
	HasImm bool
	Err    error // nil if it was done
}

// Queue collects completions. Its depth bounds the work requests that use it and have not been taken
// out by Wait or Poll, so that a provider never waits for a reader.
type Queue struct {
	ready chan Completion
	used  atomic.Int64
}

// NewQueue returns a queue for depth work requests at once; at least one.
func NewQueue(depth int) *Queue {
	return &Queue{ready: make(chan Completion, max(depth, 1))}
}

// Reserve books room for one completion. Providers call it in Post; false means that the queue is full.
func (q *Queue) Reserve() bool {
	if q.used.Add(1) > int64(cap(q.ready)) {
		q.used.Add(-1)
		return false
	}
	return true
}

// Cancel gives back what Reserve booked, for a work request that was not posted after all.
func (q *Queue) Cancel() { q.used.Add(-1) }

// Complete puts in a completion, for which Reserve has booked. Providers call it; it does not block.
func (q *Queue) Complete(c Completion) { q.ready <- c }

// Outstanding is the number of work requests that were posted and not taken out yet.
func (q *Queue) Outstanding() int { return int(q.used.Load()) }

// Depth is the most that can be outstanding.
func (q *Queue) Depth() int { return cap(q.ready) }

// Poll takes out a completion, if there is one.
func (q *Queue) Poll() (Completion, bool) {
	select {
	case c := <-q.ready:
		q.used.Add(-1)
		return c, true
	default:
		return Completion{}, false
	}
}

// Wait takes out a completion, and waits for one until ctx ends.
func (q *Queue) Wait(ctx context.Context) (Completion, error) {
	select {
	case c := <-q.ready:
		q.used.Add(-1)
		return c, nil
	case <-ctx.Done():
		return Completion{}, ctx.Err()
	}
}
