package mlx5dc

import (
	"time"

	"github.com/millrace/millrace/verbs"
	lib "github.com/millrace/millrace/verbs/ibverbs/libibverbs"
	"github.com/millrace/millrace/verbs/mlx5dc/libmlx5"
)

// dci is a DC initiator of the pool. All but calls is under the lock of the pool; calls is changed only while no connection
// has the DCI.
type dci struct {
	calls      libmlx5.DCI
	index      uint16
	generation uint16 // counts resets, so that completions from before are told apart
	conn       *conn  // whose work requests it has; nil: none
	flying     int    // posted and not completed
	drained    chan struct{}
	work       libmlx5.Work // for the call that posts it
}

// workID is the number by which a completion finds its DCI.
func (x *dci) workID(sequence uint64) uint64 {
	return uint64(x.index)<<48 | uint64(x.generation)<<32 | sequence&0xffffffff
}

// create makes a DCI that is ready to send.
func (s *Initiators) create(x *dci) error {
	calls, err := s.host.MLX5.CreateDCI(s.host.Context, s.host.PD, s.completions.CQ(), lib.QPCap{
		MaxSendWR: uint32(s.cfg.SendDepth), MaxSendSGE: uint32(s.cfg.MaxSegments),
	})
	if err != nil {
		return err
	}
	x.calls = calls
	if err := s.raise(x); err != nil {
		_ = s.host.Verbs.DestroyQP(calls.QP)
		x.calls = libmlx5.DCI{}
		return err
	}
	return nil
}

// raise takes a DCI from RESET to RTS. The attributes are exactly those that the kernel wants of a DCI
// (modify_dci_qp_is_ok in drivers/infiniband/hw/mlx5/qp.c): the way to the target is in each work request.
func (s *Initiators) raise(x *dci) error {
	for _, step := range []struct {
		attr lib.QPAttr
		mask uint32
	}{
		{lib.QPAttr{QPState: lib.StateInit, PortNum: s.host.Port}, lib.MaskPKeyIndex | lib.MaskPort},
		{lib.QPAttr{QPState: lib.StateRTR, PathMTU: s.host.PathMTU()}, lib.MaskPathMTU},
		{lib.QPAttr{
			QPState: lib.StateRTS, Timeout: s.cfg.TimeoutExponent, RetryCnt: s.cfg.Retries, RNRRetry: s.cfg.Retries,
			MaxRDAtomic: s.cfg.OutstandingReads,
		}, lib.MaskTimeout | lib.MaskRetryCnt | lib.MaskRNRRetry | lib.MaskSQPSN | lib.MaskMaxRDAtomic},
	} {
		if err := s.host.Verbs.ModifyQP(x.calls.QP, &step.attr, lib.MaskState|step.mask); err != nil {
			return err
		}
	}
	return nil
}

func (s *Initiators) move(x *dci, state uint32) error {
	return s.host.Verbs.ModifyQP(x.calls.QP, &lib.QPAttr{QPState: state}, lib.MaskState)
}

// mend ends the connection of a DCI that has failed or is to stop, and brings the DCI back. What the device does not give
// back in time is over when the DCI is reset or destroyed.
func (s *Initiators) mend(x *dci, c *conn) {
	_ = s.move(x, lib.StateErr) // everything is flushed
	timer := time.NewTimer(s.cfg.FlushTimeout)
	select {
	case <-x.drained:
	case <-timer.C:
	}
	timer.Stop()
	reset := s.move(x, lib.StateReset) == nil
	if !reset { // older kernels refuse it
		_ = s.host.Verbs.DestroyQP(x.calls.QP)
		x.calls = libmlx5.DCI{}
	}
	s.mu.Lock()
	x.conn, x.flying = nil, 0
	x.generation++
	c.dci = nil
	s.finish(c)
	closed := s.closed
	s.mu.Unlock()
	if closed {
		return
	}
	err := s.renew(x, reset)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.give(x)
		return
	}
	s.alive--
	if s.alive > 0 {
		return
	}
	if s.fault == nil {
		s.fault = s.failed("make a DCI", err)
	}
	for _, c := range append([]*conn{}, s.queue...) {
		s.fail(c, s.fault)
	}
}

// renew brings a DCI back into use: by its states after a reset, else, or if that fails, as a new one.
func (s *Initiators) renew(x *dci, reset bool) error {
	if reset {
		if err := s.raise(x); err == nil {
			return nil
		}
		_ = s.host.Verbs.DestroyQP(x.calls.QP)
		x.calls = libmlx5.DCI{}
	}
	return s.create(x)
}

// give hands a DCI to whoever waits longest. The lock is held.
func (s *Initiators) give(x *dci) {
	if len(s.queue) == 0 || s.closed {
		s.free = append(s.free, x)
		return
	}
	c := s.queue[0]
	s.queue = append(s.queue[:0], s.queue[1:]...)
	c.waiting = false
	c.dci, x.conn = x, c
	s.issue(c)
}

// issue posts what a connection has, as long as nobody else waits for a DCI. The lock is held.
func (s *Initiators) issue(c *conn) {
	for c.err == nil && c.issued < c.tail {
		if c.dci == nil {
			if len(s.free) == 0 {
				if !c.waiting {
					c.waiting = true
					s.queue = append(s.queue, c)
				}
				return
			}
			x := s.free[len(s.free)-1]
			s.free = s.free[:len(s.free)-1]
			c.dci, x.conn = x, c
		}
		x := c.dci
		if x.flying > 0 && len(s.queue) > 0 {
			return // when these are done, it is another's turn
		}
		w := c.at(c.issued)
		x.work = libmlx5.Work{
			ID: x.workID(c.issued), Read: w.op == verbs.OpRead, Addr: w.addr, RKey: w.rkey,
			Target: c.address.ah, DCTN: c.to.QPN, DCKey: s.cfg.DCKey, SGEs: w.sges[:w.n],
		}
		if err := s.host.MLX5.Post(&x.calls, &x.work); err != nil {
			s.fail(c, err)
			return
		}
		c.issued++
		x.flying++
	}
}
