package libibverbs

import (
	"errors"
	"os"
	"syscall"
	"time"
)

// Completions is a completion queue, its channel, and what waits for it. All but Expire and Stop is for one goroutine at a time.
type Completions struct {
	calls *Calls
	ch    Channel
	cq    CQ
	poll  *Poller
	wcs   []WC

	event   CQEvent
	events  uint32 // not acknowledged yet
	waitErr error
	get     func(uintptr) bool // made once, so that waiting allocates nothing
}

// NewCompletions makes a queue of so many entries, from which at most batch are taken at once.
func NewCompletions(calls *Calls, ctx Context, entries, batch int) (*Completions, error) {
	c := &Completions{calls: calls, wcs: make([]WC, batch)}
	var fd int
	var err error
	if c.ch, fd, err = calls.CreateCompChannel(ctx); err != nil {
		return nil, err
	}
	if c.poll, err = NewPoller(fd); err == nil {
		c.cq, err = calls.CreateCQ(ctx, entries, c.ch)
	}
	if err != nil {
		return nil, errors.Join(err, c.Destroy())
	}
	c.get = func(uintptr) bool {
		c.waitErr = c.calls.GetCQEvent(c.ch, &c.event)
		return !errors.Is(c.waitErr, syscall.EAGAIN)
	}
	return c, nil
}

// CQ is the queue.
func (c *Completions) CQ() CQ { return c.cq }

// Run hands every completion to handle until ended says so. Errors are of the device, os.ErrDeadlineExceeded after Expire, or
// os.ErrClosed after Stop.
func (c *Completions) Run(handle func([]WC), ended func() bool) error {
	for {
		// Asked for first and looked at then, so that none comes unnoticed in between.
		if err := c.calls.ReqNotifyCQ(c.cq); err != nil {
			return err
		}
		if err := c.Drain(handle); err != nil {
			return err
		}
		if ended() {
			return nil
		}
		if err := c.poll.Wait(c.get); errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		} else if err != nil {
			return os.ErrClosed
		}
		if c.waitErr == nil {
			c.events++
		} else if !errors.Is(c.waitErr, syscall.EINTR) {
			return c.waitErr
		}
	}
}

// Drain hands out what the queue holds.
func (c *Completions) Drain(handle func([]WC)) error {
	for {
		n, err := c.calls.PollCQ(c.cq, c.wcs)
		if err != nil {
			return err
		}
		handle(c.wcs[:n])
		if n < len(c.wcs) {
			return nil
		}
	}
}

// Expire has Run end after this time, if nothing ends it before.
func (c *Completions) Expire(after time.Duration) { c.poll.Expire(after) }

// Stop has Run end at once.
func (c *Completions) Stop() { c.poll.Close() }

// Destroy gives everything back. Queue pairs that use it must be gone.
func (c *Completions) Destroy() error {
	var err error
	if c.cq != 0 {
		if c.events > 0 {
			c.calls.AckCQEvents(c.cq, c.events)
		}
		err = c.calls.DestroyCQ(c.cq)
	}
	if c.poll != nil {
		c.poll.Close()
	}
	return errors.Join(err, c.calls.DestroyCompChannel(c.ch))
}
