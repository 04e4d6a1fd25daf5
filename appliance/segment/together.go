package segment

import (
	"errors"
	"sync"
	"time"
)

// Mortal is a ShardReader or a ShardWriter on a drive that may stop answering. It is optional.
type Mortal interface {
	// Dead returns a channel that is closed when a call under way may never end. It is left behind then:
	// it keeps its buffers until it ends, and what it returns does not matter.
	Dead() <-chan struct{}
}

// ErrLeft is the error of a shard whose call was left behind because its drive is dead.
var ErrLeft = errors.New("drive stopped answering")

// lookEvery is how often those who wait for calls look whether a drive is dead.
const lookEvery = 50 * time.Millisecond

// isDead says whether a shard is a Mortal that is dead.
func isDead(shard any) bool {
	m, ok := shard.(Mortal)
	if !ok {
		return false
	}
	select {
	case <-m.Dead():
		return true
	default:
		return false
	}
}

// waiters lends out timers for waits that are short as a rule.
type waiters struct{ timers sync.Pool }

func (w *waiters) take(d time.Duration) *time.Timer {
	if t, _ := w.timers.Get().(*time.Timer); t != nil {
		t.Reset(d)
		return t
	}
	return time.NewTimer(d)
}

func (w *waiters) give(t *time.Timer) {
	t.Stop()
	w.timers.Put(t)
}

// together makes a call for each of list at once and puts their errors into errs, by what list holds. It
// waits for all, but for those whose shard is dead: their error is ErrLeft, and left is true. Each call
// holds the memory until it ends.
func (w *waiters) together(list []int, memory *hold, shard func(int) any, call func(int) error, errs []error,
) (left bool) {
	type result struct {
		j   int
		err error
	}
	results := make(chan result, len(list))
	for _, j := range list {
		memory.refs.Add(1)
		go func() {
			err := call(j)
			memory.leave()
			results <- result{j, err}
		}()
	}
	timer := w.take(lookEvery)
	defer w.give(timer)
	waiting := append(make([]int, 0, len(list)), list...)
	for len(waiting) > 0 {
		select {
		case r := <-results:
			errs[r.j] = r.err
			waiting = without(waiting, r.j)
		case <-timer.C:
			for _, j := range append([]int(nil), waiting...) {
				if isDead(shard(j)) {
					errs[j], left = ErrLeft, true
					waiting = without(waiting, j)
				}
			}
			timer.Reset(lookEvery)
		}
	}
	return left
}

// without takes j out of list, in place.
func without(list []int, j int) []int {
	for i := range list {
		if list[i] == j {
			list[i] = list[len(list)-1]
			return list[:len(list)-1]
		}
	}
	return list
}
