package libibverbs

import (
	"os"
	"syscall"
	"time"
)

// Poller waits for one of the library's descriptors by way of Go's poller, so that no thread is kept.
type Poller struct {
	file *os.File
	raw  syscall.RawConn
}

// NewPoller waits for a copy of fd: the library closes its own. It makes both non-blocking.
func NewPoller(fd int) (*Poller, error) {
	file, err := pollable(fd)
	if err != nil {
		return nil, err
	}
	raw, err := file.SyscallConn()
	if err != nil {
		_ = file.Close()
		return nil, err
	}
	return &Poller{file: file, raw: raw}, nil
}

// Wait calls get until it returns true, each time when there may be something to read. It gives os.ErrDeadlineExceeded after
// Expire, and another error once the poller is closed.
func (p *Poller) Wait(get func(fd uintptr) bool) error { return p.raw.Read(get) }

// Expire has Wait end after this time.
func (p *Poller) Expire(after time.Duration) { _ = p.file.SetReadDeadline(time.Now().Add(after)) }

// Close ends Wait.
func (p *Poller) Close() { _ = p.file.Close() }
