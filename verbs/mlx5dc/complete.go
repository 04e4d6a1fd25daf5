package mlx5dc

import (
	"errors"
	"os"

	lib "github.com/millrace/millrace/verbs/ibverbs/libibverbs"
)

// watch takes completions until the pool is closed or the device fails.
func (s *Initiators) watch() {
	handle := func(wcs []lib.WC) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for i := range wcs {
			s.take(&wcs[i])
		}
	}
	if err := s.completions.Run(handle, func() bool { return false }); !errors.Is(err, os.ErrClosed) {
		s.Fail(err)
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
