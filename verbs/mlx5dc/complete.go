package mlx5dc

import (
	"errors"
	"syscall"

	lib "github.com/millrace/millrace/verbs/ibverbs/libibverbs"
)

// completions is the completion queue of all DCIs, and the descriptor that tells of new ones.
type completions struct {
	calls *lib.Calls
	ch    lib.Channel
	cq    lib.CQ
	poll  *lib.Poller
}

func (s *Initiators) newCompletions(entries int) (*completions, error) {
	q := &completions{calls: s.host.Verbs}
	var fd int
	var err error
	if q.ch, fd, err = q.calls.CreateCompChannel(s.host.Context); err != nil {
		return nil, err
	}
	if q.poll, err = lib.NewPoller(fd); err == nil {
		q.cq, err = q.calls.CreateCQ(s.host.Context, entries, q.ch)
	}
	if err != nil {
		return nil, errors.Join(err, q.destroy())
	}
	return q, nil
}

// stop makes watch end.
func (q *completions) stop() { q.poll.Close() }

func (q *completions) destroy() error {
	var err error
	if q.cq != 0 {
		err = q.calls.DestroyCQ(q.cq)
	}
	if q.poll != nil {
		q.poll.Close()
	}
	return errors.Join(err, q.calls.DestroyCompChannel(q.ch))
}

// watch takes completions until the pool is closed or the device fails.
func (s *Initiators) watch() {
	var event lib.CQEvent
	var err error
	get := func(uintptr) bool {
		err = s.cq.calls.GetCQEvent(s.cq.ch, &event)
		return !errors.Is(err, syscall.EAGAIN)
	}
	wcs := make([]lib.WC, 64)
	for {
		// Asked for first and looked at then, so that none comes unnoticed in between.
		if err := s.cq.calls.ReqNotifyCQ(s.cq.cq); err != nil {
			s.Fail(err)
			return
		}
		if err := s.drain(wcs); err != nil {
			s.Fail(err)
			return
		}
		if s.cq.poll.Wait(get) != nil {
			return // closed
		}
		switch {
		case err == nil:
			s.cq.calls.AckCQEvents(s.cq.cq, 1)
		case !errors.Is(err, syscall.EINTR):
			s.Fail(err)
			return
		}
	}
}

func (s *Initiators) drain(wcs []lib.WC) error {
	for {
		n, err := s.cq.calls.PollCQ(s.cq.cq, wcs)
		if err != nil {
			return err
		}
		s.mu.Lock()
		for i := range n {
			s.take(&wcs[i])
		}
		s.mu.Unlock()
		if n < len(wcs) {
			return nil
		}
	}
}

// take handles a completion. A DCI gives them in order, so it is of the oldest work request that it has. The lock is held.
func (s *Initiators) take(wc *lib.WC) {
	index := int(wc.WRID >> 48)
	if index >= len(s.dcis) {
		return
	}
	x := s.dcis[index]
	c := x.conn
	if c == nil || x.flying == 0 || wc.WRID != x.workID(c.head) {
		return // from before a reset
	}
	var err error
	if wc.Status != lib.WCSuccess {
		// What is flushed has the error of whatever failed before it.
		if err = c.err; wc.Status != lib.WCWRFlushErr || err == nil {
			err = &lib.StatusError{Status: wc.Status, Vendor: wc.VendorErr}
		}
		s.fail(c, err)
	}
	x.flying--
	s.complete(c, err)
	if x.flying > 0 {
		if c.err == nil {
			s.issue(c)
		}
		return
	}
	switch {
	case c.err != nil:
		close(x.drained)
	case c.issued == c.tail || len(s.queue) > 0:
		c.dci, x.conn = nil, nil
		s.give(x)
		s.issue(c) // to the end of the queue, if there is more
	default:
		s.issue(c)
	}
}
