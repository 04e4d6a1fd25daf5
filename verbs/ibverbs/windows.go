package ibverbs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/millrace/millrace/verbs"
	lib "github.com/millrace/millrace/verbs/ibverbs/libibverbs"
)

// windows binds memory windows of type 1, by a queue pair that is connected to itself. It makes a window when none is
// free; otherwise nothing of the kernel is made for a binding.
type windows struct {
	dev *Device

	mu     sync.Mutex
	conn   *conn // nil until needed; one that has ended is replaced
	free   []lib.MW
	made   int
	closed bool
	queues sync.Pool // of *verbs.Queue, each for one completion
}

// opBind is the operation of binding a window; it is not of package verbs.
const opBind verbs.Opcode = 0

// spareWindows are how many windows are made before one is used again: a key has 8 bits that change with each use, and
// the longer it takes until it comes again, the better.
const spareWindows = 256

// connection returns the queue pair that binds.
func (w *windows) connection() (*conn, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || w.dev.isDead() {
		return nil, verbs.ErrClosed
	}
	if w.conn == nil || w.conn.Err() != nil {
		c, err := w.dev.loopback()
		if err != nil {
			return nil, err
		}
		w.conn = c
	}
	return w.conn, nil
}

// loopback makes a connection of a queue pair to itself. It is not counted.
func (d *Device) loopback() (*conn, error) {
	gid, err := d.gidTowards(netip.Addr{})
	if err != nil {
		return nil, err
	}
	s, err := d.prepare(gid, false)
	if err != nil {
		return nil, err
	}
	c, err := s.connect(s.local, path{mtu: uint8(d.mtu.Load()), inits: 1, reads: 1}, verbs.Peer{}, func() {})
	if err != nil {
		_ = s.Close()
		return nil, err
	}
	go c.run()
	return c, nil
}

func (w *windows) take() (lib.MW, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.free) > 0 && w.made >= spareWindows {
		mw := w.free[0]
		w.free = w.free[1:]
		return mw, nil
	}
	mw, err := w.dev.calls.AllocMW(w.dev.pd)
	if err == nil {
		w.made++
		return mw, nil
	}
	if len(w.free) > 0 {
		mw := w.free[0]
		w.free = w.free[1:]
		return mw, nil
	}
	return 0, fmt.Errorf("%w: %w", verbs.ErrLimit, err)
}

func (w *windows) put(mw lib.MW) {
	w.mu.Lock()
	w.free = append(w.free, mw)
	w.mu.Unlock()
}

// bind opens memory of a region by a window and returns it with its key.
func (w *windows) bind(mr lib.MR, addr uint64, sizeBytes int64, access uint32) (lib.MW, uint32, error) {
	mw, err := w.take()
	if err != nil {
		return 0, 0, err
	}
	key, err := w.post(mw, &lib.MWBind{MR: mr, Addr: addr, LengthBytes: uint64(sizeBytes), Access: access})
	if err != nil {
		// What state it is in is not known: it is not used again.
		_ = w.dev.calls.DeallocMW(mw)
		return 0, 0, err
	}
	return mw, key, nil
}

// unbind takes the right away: no bytes are bound. A region must be named all the same, since the library's driver
// of soft-RoCE looks into it. If the queue pair fails at that, the window is destroyed instead.
func (w *windows) unbind(mw lib.MW, mr lib.MR) error {
	if _, err := w.post(mw, &lib.MWBind{MR: mr}); err != nil {
		return w.dev.calls.DeallocMW(mw)
	}
	w.put(mw)
	return nil
}

// post binds and waits until it is done. A full queue means that many do this at once.
func (w *windows) post(mw lib.MW, b *lib.MWBind) (uint32, error) {
	q, _ := w.queues.Get().(*verbs.Queue)
	if q == nil {
		q = verbs.NewQueue(1)
	}
	defer w.queues.Put(q)
	for {
		c, err := w.connection()
		if err != nil {
			return 0, err
		}
		key, err := c.bind(mw, b, q)
		if errors.Is(err, verbs.ErrQueueFull) {
			time.Sleep(100 * time.Microsecond)
			continue
		}
		if err != nil {
			return 0, err
		}
		done, err := q.Wait(context.Background())
		if err == nil {
			err = done.Err
		}
		return key, err
	}
}

// bind posts the binding of a window.
func (c *conn) bind(mw lib.MW, b *lib.MWBind, q *verbs.Queue) (uint32, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return 0, c.err
	}
	if c.sends.full() || !q.Reserve() {
		return 0, verbs.ErrQueueFull
	}
	b.WRID, b.SendFlags = c.sends.push(posted{op: opBind, queue: q}), lib.SendSignaled
	key, err := c.dev.calls.BindMW(c.qp, mw, b)
	if err != nil {
		c.sends.n--
		q.Cancel()
	}
	return key, err
}

func (w *windows) close() {
	w.mu.Lock()
	w.closed = true
	c := w.conn
	w.mu.Unlock()
	if c != nil {
		_ = c.Close()
	}
	for _, mw := range w.free {
		_ = w.dev.calls.DeallocMW(mw)
	}
}

// current is the queue pair that binds, if there is one.
func (w *windows) current() *conn {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.conn
}

// hold tells whether the device has memory windows that hold. The kernel's soft-RoCE lets peers reach all of the
// region through a window to a part of it (measured on Linux 6.1).
func (w *windows) hold() bool {
	d := w.dev
	r, err := d.register(make([]byte, 3*pageBytes))
	if err != nil {
		return false
	}
	defer func() { _ = r.Deregister() }()
	mw, key, err := w.bind(r.mr, uint64(r.Start())+pageBytes, pageBytes, lib.AccessRemoteRead)
	if err != nil {
		return false
	}
	at := uint64(r.Start()) + pageBytes
	inside := d.readSelf(r, at, key)
	outside := d.readSelf(r, at+pageBytes-4, key)
	return w.unbind(mw, r.mr) == nil && inside == nil && errors.Is(outside, verbs.ErrAccess)
}

const pageBytes = 4096

// readSelf reads 8 bytes through a window of this device.
func (d *Device) readSelf(r *region, addr uint64, key uint32) error {
	c, err := d.loopback()
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	q := verbs.NewQueue(1)
	wr := verbs.WorkRequest{Op: verbs.OpRead, Local: [][]byte{r.Bytes()[:8]}, Addr: addr, RKey: key}
	if err := c.Post(&wr, q); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), d.cfg.StartTimeout)
	defer cancel()
	done, err := q.Wait(ctx)
	if err == nil {
		err = done.Err
	}
	return err
}
