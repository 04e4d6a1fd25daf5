package ibverbs

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/millrace/millrace/verbs"
	lib "github.com/millrace/millrace/verbs/ibverbs/libibverbs"
)

// watchEvents reads what the device has to tell, until the device is closed or gone.
func (d *Device) watchEvents() {
	var e lib.AsyncEvent
	var err error
	get := func(uintptr) bool {
		err = d.calls.GetAsyncEvent(d.ctx, &e)
		return !errors.Is(err, syscall.EAGAIN)
	}
	for {
		if d.events.Wait(get) != nil {
			return // closed
		}
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil {
			d.gone(err)
			return
		}
		d.take(&e)
		d.calls.AckAsyncEvent(&e)
	}
}

// take does what an event asks for. Its object lives at least until it is acknowledged.
func (d *Device) take(e *lib.AsyncEvent) {
	switch e.Type {
	case lib.EventQPAccessErr:
		d.meter.Refused.Add(d.endOf(func(c *conn) bool { return c.has(e.Element) }, e.Type))
	case lib.EventQPFatal, lib.EventQPReqErr:
		d.endOf(func(c *conn) bool { return c.has(e.Element) }, e.Type)
	case lib.EventCQErr:
		d.endOf(func(c *conn) bool { return uintptr(c.done.CQ()) == e.Element }, e.Type)
	case lib.EventDeviceFatal:
		d.gone(fmt.Errorf("%v", e.Type))
	case lib.EventPortErr, lib.EventPortActive, lib.EventLIDChange, lib.EventGIDChange, lib.EventClientReregister:
		d.gids.forget()
		if e.Type != lib.EventGIDChange && e.Port() == int(d.port) {
			d.portChanged(e.Type)
		}
	}
}

func (c *conn) has(qp uintptr) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return uintptr(c.qp) == qp
}

// endOf ends the connections that are meant, and tells how many they were.
func (d *Device) endOf(meant func(*conn) bool, why lib.EventType) (n uint64) {
	for _, c := range d.conns.All() {
		if meant(c) {
			n++
			c.fail(fmt.Errorf("%v: %w", why, verbs.ErrPeer))
		}
	}
	return n
}

func (d *Device) portChanged(event lib.EventType) {
	var port lib.PortAttr
	if err := d.calls.QueryPort(d.ctx, d.port, &port); err == nil {
		d.portState(&port)
	}
	if event == lib.EventPortErr {
		d.endOf(func(*conn) bool { return true }, event)
	}
}

func (d *Device) portState(port *lib.PortAttr) {
	d.mtu.Store(min(max(port.ActiveMTU, 1), 5))
	d.lid.Store(uint32(port.LID))
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.dead:
	case port.State == lib.PortActive:
		d.fault = nil
	default:
		d.fault = fmt.Errorf("port %d of %s is down: %w", d.port, d.name, verbs.ErrUnreachable)
	}
}

// gone ends everything: the device has failed or was taken away.
func (d *Device) gone(why error) {
	d.mu.Lock()
	d.dead = true
	d.fault = fmt.Errorf("device %s is gone: %w", d.name, why)
	fault := d.fault
	d.mu.Unlock()
	d.conns.Stop(fmt.Errorf("%w: %w", verbs.ErrUnreachable, fault))
	err := fmt.Errorf("%w: %w", verbs.ErrClosed, fault)
	for _, c := range d.conns.All() {
		c.abandon(err)
	}
	if d.dc != nil {
		d.dc.Fail(err)
	}
	if c := d.windows.current(); c != nil {
		c.abandon(err)
	}
}

// watchStalls looks at all connections now and then and ends those on which nothing completes.
func (d *Device) watchStalls() {
	tick := time.NewTicker(max(d.cfg.StallTimeout/8, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-d.life.Done():
			return
		case now := <-tick.C:
			conns := d.conns.All()
			if c := d.windows.current(); c != nil {
				conns = append(conns, c)
			}
			for _, c := range conns {
				if c.stalled(now) {
					c.fail(fmt.Errorf("no progress: %w", verbs.ErrPeer))
				}
			}
		}
	}
}

func (c *conn) stalled(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sends.n == 0 || c.sends.first != c.seen || c.seenAt.IsZero() {
		c.seen, c.seenAt = c.sends.first, now
	}
	return now.Sub(c.seenAt) > c.dev.cfg.StallTimeout
}
