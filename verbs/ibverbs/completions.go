package ibverbs

import (
	"errors"
	"syscall"
	"time"

	lib "github.com/millrace/millrace/verbs/ibverbs/libibverbs"
)

// completions is a completion queue, its channel, and what waits for it.
type completions struct {
	calls *lib.Calls
	ch    lib.Channel
	cq    lib.CQ
	poll  *lib.Poller
	wcs   []lib.WC

	// Of the goroutine in run alone.
	event   lib.CQEvent
	events  uint32 // not acknowledged yet
	waitErr error
	get     func(uintptr) bool // made once, so that waiting allocates nothing
}

func (d *Device) newCompletions(entries int) (*completions, error) {
	c := &completions{calls: d.calls, wcs: make([]lib.WC, 16)}
	var fd int
	var err error
	if c.ch, fd, err = d.calls.CreateCompChannel(d.ctx); err != nil {
		return nil, err
	}
	if c.poll, err = lib.NewPoller(fd); err == nil {
		c.cq, err = d.calls.CreateCQ(d.ctx, entries, c.ch)
	}
	if err != nil {
		c.destroy()
		return nil, err
	}
	c.get = func(uintptr) bool {
		c.waitErr = c.calls.GetCQEvent(c.ch, &c.event)
		return !errors.Is(c.waitErr, syscall.EAGAIN)
	}
	return c, nil
}

// run hands every completion to handle until ended says so, the deadline of expire has passed, or the device fails.
func (c *completions) run(handle func(*lib.WC), ended func() bool) error {
	for {
		// Asked for first and looked at then, so that none comes unnoticed in between.
		if err := c.calls.ReqNotifyCQ(c.cq); err != nil {
			return err
		}
		if err := c.drain(handle); err != nil {
			return err
		}
		if ended() {
			return nil
		}
		if err := c.poll.Wait(c.get); err != nil {
			return err
		}
		if c.waitErr == nil {
			c.events++
		} else if !errors.Is(c.waitErr, syscall.EINTR) {
			return c.waitErr
		}
	}
}

// drain hands out what the queue holds.
func (c *completions) drain(handle func(*lib.WC)) error {
	for {
		n, err := c.calls.PollCQ(c.cq, c.wcs)
		if err != nil {
			return err
		}
		for i := range n {
			handle(&c.wcs[i])
		}
		if n < len(c.wcs) {
			return nil
		}
	}
}

// expire has run end after this time, if nothing ends it before.
func (c *completions) expire(after time.Duration) { c.poll.Expire(after) }

// destroy gives everything back. Queue pairs that use it must be gone.
func (c *completions) destroy() {
	if c.cq != 0 {
		if c.events > 0 {
			c.calls.AckCQEvents(c.cq, c.events)
		}
		_ = c.calls.DestroyCQ(c.cq)
	}
	if c.poll != nil {
		c.poll.Close()
	}
	_ = c.calls.DestroyCompChannel(c.ch)
}
