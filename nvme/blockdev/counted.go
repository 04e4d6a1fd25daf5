package blockdev

import "sync/atomic"

// Counters are what has gone through a Device so far. Failed calls are not counted.
type Counters struct {
	ReadBytes, WrittenBytes, DiscardedBytes int64
	ReadOps, WriteOps, DiscardOps, Flushes  int64
}

// Counted is a Device that counts what goes through another one.
type Counted struct {
	Device
	readBytes, writtenBytes, discardedBytes atomic.Int64
	readOps, writeOps, discardOps, flushes  atomic.Int64
}

// NewCounted returns dev with counters that start at 0.
func NewCounted(dev Device) *Counted { return &Counted{Device: dev} }

// Stats reads the counters.
func (c *Counted) Stats() Counters {
	return Counters{
		ReadBytes: c.readBytes.Load(), WrittenBytes: c.writtenBytes.Load(), DiscardedBytes: c.discardedBytes.Load(),
		ReadOps: c.readOps.Load(), WriteOps: c.writeOps.Load(), DiscardOps: c.discardOps.Load(),
		Flushes: c.flushes.Load(),
	}
}

// ReadAt implements Device.
func (c *Counted) ReadAt(bufs [][]byte, off int64) error {
	err := c.Device.ReadAt(bufs, off)
	if err == nil {
		c.readOps.Add(1)
		c.readBytes.Add(lenOf(bufs))
	}
	return err
}

// WriteAt implements Device.
func (c *Counted) WriteAt(bufs [][]byte, off int64) error {
	err := c.Device.WriteAt(bufs, off)
	if err == nil {
		c.writeOps.Add(1)
		c.writtenBytes.Add(lenOf(bufs))
	}
	return err
}

// Flush implements Device.
func (c *Counted) Flush() error {
	err := c.Device.Flush()
	if err == nil {
		c.flushes.Add(1)
	}
	return err
}

// Discard implements Device.
func (c *Counted) Discard(off, n int64) error {
	err := c.Device.Discard(off, n)
	if err == nil {
		c.discardOps.Add(1)
		c.discardedBytes.Add(n)
	}
	return err
}

func lenOf(bufs [][]byte) int64 {
	var n int64
	for _, b := range bufs {
		n += int64(len(b))
	}
	return n
}
