// Package nbd is a drive outside of a guest, made to fail: a server of the Network Block Device protocol over
// memory. It can be told to answer with errors, slowly, or not at all, and to lose what a guest did not flush, as a
// drive does whose power is cut. It is for tests, and keeps data only as long as its process runs: a flush means
// that Drop no longer takes the data back, and nothing more.
//
// The protocol: https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md, "fixed newstyle".
package nbd

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Mode is how a drive behaves.
type Mode int

// The modes of a drive.
const (
	Healthy Mode = iota
	Failing      // every request is answered with EIO
	Slow         // every request takes SlowDelay longer
	Hanging      // no request is answered, until the mode changes
	Gone         // connections are closed, and new ones refused
)

// SlowDelay is what Slow adds to a request.
const SlowDelay = 500 * time.Millisecond

// maxUnflushedBytes is the largest cache that a drive is taken to have: at more, all counts as flushed.
const maxUnflushedBytes = 128 << 20

// A Drive is memory that is served. It may be used by several goroutines at once.
type Drive struct {
	file       *os.File
	sizeBytes  int64
	blockBytes int64
	listener   net.Listener
	serving    sync.WaitGroup

	mu        sync.Mutex
	mode      Mode
	changed   chan struct{} // closed, and made anew, when the mode changes
	closed    bool
	conns     map[net.Conn]bool
	unflushed map[int64][]byte // by number of the block: what Drop puts back
	through   func(offset int64, n int) bool
	requests  int64
}

// Serve serves a drive of sizeBytes over a Unix socket. All of it is zero. Blocks of blockBytes are what the drive
// writes whole. Memory is taken for what is written.
func Serve(sizeBytes int64, socket string, blockBytes int) (*Drive, error) {
	if blockBytes < 512 || blockBytes&(blockBytes-1) != 0 || sizeBytes%int64(blockBytes) != 0 {
		return nil, fmt.Errorf("nbd: %d bytes in blocks of %d", sizeBytes, blockBytes)
	}
	fd, err := unix.MemfdCreate("nbd", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "nbd")
	if err := f.Truncate(sizeBytes); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	d := &Drive{file: f, sizeBytes: sizeBytes, blockBytes: int64(blockBytes), listener: l,
		changed: make(chan struct{}), conns: map[net.Conn]bool{}, unflushed: map[int64][]byte{}}
	d.serving.Go(d.accept)
	return d, nil
}

func (d *Drive) accept() {
	for {
		conn, err := d.listener.Accept()
		if err != nil {
			return
		}
		if !d.enter(conn) {
			conn.Close()
			continue
		}
		d.serving.Go(func() {
			defer d.leave(conn)
			d.serve(conn)
		})
	}
}

func (d *Drive) enter(conn net.Conn) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || d.mode == Gone {
		return false
	}
	d.conns[conn] = true
	return true
}

func (d *Drive) leave(conn net.Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	conn.Close()
	delete(d.conns, conn)
}

// Set changes how the drive behaves, from the next request on; requests that hang go on.
func (d *Drive) Set(m Mode) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mode = m
	d.wake()
	if m == Gone {
		d.hangUp()
	}
}

func (d *Drive) wake() {
	close(d.changed)
	d.changed = make(chan struct{})
}

func (d *Drive) hangUp() {
	for conn := range d.conns {
		conn.Close()
	}
}

// WriteThrough names writes that are on the medium at once, besides those that say so (FUA). The NVMe drives of QEMU
// before version 10 drop that bit, and so break the promise that a journal relies on.
func (d *Drive) WriteThrough(is func(offset int64, n int) bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.through = is
}

// Requests counts the reads, writes and flushes that came.
func (d *Drive) Requests() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.requests
}

// Drop cuts the drive's power: of the blocks written since the last flush, each is lost by a toss of rng. It gives
// how many were lost, of how many. Whoever uses the drive has to be gone: connections are closed first.
func (d *Drive) Drop(rng *rand.Rand) (lost, of int, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hangUp()
	of = len(d.unflushed)
	for block, before := range d.unflushed {
		if rng.IntN(2) == 0 {
			continue
		}
		if _, err := d.file.WriteAt(before, block*d.blockBytes); err != nil {
			return lost, of, err
		}
		lost++
	}
	clear(d.unflushed)
	return lost, of, nil
}

// Close ends all connections and frees the memory.
func (d *Drive) Close() error {
	d.mu.Lock()
	d.closed = true
	d.hangUp()
	d.wake()
	d.mu.Unlock()
	err := d.listener.Close()
	d.serving.Wait()
	return errors.Join(err, d.file.Close())
}

// behave waits as the mode wants, and says whether the request is to be done, failed, or left without an answer.
func (d *Drive) behave() (Mode, bool) {
	d.mu.Lock()
	d.requests++
	d.mu.Unlock()
	for {
		d.mu.Lock()
		mode, changed, closed := d.mode, d.changed, d.closed
		d.mu.Unlock()
		switch {
		case closed || mode == Gone:
			return mode, false
		case mode == Hanging:
			<-changed
			continue
		case mode == Slow:
			select {
			case <-changed:
			case <-time.After(SlowDelay):
			}
		}
		return mode, true
	}
}

// inside says whether a range is on the drive, in whole blocks.
func (d *Drive) inside(offset uint64, n uint32) bool {
	return offset <= uint64(d.sizeBytes) && uint64(n) <= uint64(d.sizeBytes)-offset &&
		offset%512 == 0 && n%512 == 0
}

func (d *Drive) read(p []byte, offset int64) error {
	_, err := d.file.ReadAt(p, offset)
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// write keeps what it is about to change, unless that is kept already.
func (d *Drive) write(p []byte, offset int64, through bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	through = through || d.through != nil && d.through(offset, len(p))
	if int64(len(d.unflushed))*d.blockBytes > maxUnflushedBytes {
		clear(d.unflushed)
	}
	for b := offset / d.blockBytes; b*d.blockBytes < offset+int64(len(p)); b++ {
		if through { // a FUA write is on the medium at once, and with it the whole block
			delete(d.unflushed, b)
			continue
		}
		if _, kept := d.unflushed[b]; kept {
			continue
		}
		before := make([]byte, d.blockBytes)
		if err := d.read(before, b*d.blockBytes); err != nil {
			return err
		}
		d.unflushed[b] = before
	}
	_, err := d.file.WriteAt(p, offset)
	return err
}

func (d *Drive) flush() {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.unflushed)
}
