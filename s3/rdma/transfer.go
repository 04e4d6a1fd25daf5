package rdma

import (
	"context"
	"fmt"
	"io"
	"unsafe"

	"github.com/millrace/millrace/verbs"
)

// span is a range of addresses.
type span struct{ start, end uintptr }

func spanOf(b []byte) span {
	start := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	return span{start, start + uintptr(len(b))}
}

func (s span) holds(b []byte) bool {
	part := spanOf(b)
	return s.start <= part.start && part.end <= s.end
}

// transfer implements gateway.RDMATransfer.
type transfer struct {
	t      *Transport
	ctx    context.Context // bounds the whole of it
	window verbs.Window
	size   int64 // what will be moved
	at     int64 // what was
	fenced bool  // the client has everything that was written
	lease  *verbs.Lease
	req    *verbs.Requester
	local  [1][]byte
	err    error // of a work request; none is posted after it
}

// Write implements io.Writer. The last write of the transfer waits for the client to have everything, so
// that no work request is needed for that alone.
func (x *transfer) Write(p []byte) (n int, err error) {
	if int64(len(p)) > x.size-x.at {
		return 0, fmt.Errorf("write beyond the %d bytes of the transfer: %w", x.size, verbs.ErrRange)
	}
	start := x.at
	if x.t.memory.holds(p) {
		err = x.post(p, true)
	} else {
		for rest := p; len(rest) > 0 && err == nil; {
			err = x.bounced(len(rest), func(buf []byte) error {
				rest = rest[copy(buf, rest):]
				return x.post(buf, true)
			})
		}
	}
	return int(x.at - start), err
}

// Read implements io.Reader.
func (x *transfer) Read(p []byte) (int, error) {
	n := int(min(int64(len(p)), x.size-x.at))
	switch {
	case x.size == x.at:
		return 0, io.EOF
	case x.t.memory.holds(p[:n]):
		if err := x.post(p[:n], false); err != nil {
			return 0, err
		}
		return n, nil
	}
	err := x.bounced(n, func(buf []byte) error {
		if err := x.post(buf, false); err != nil {
			return err
		}
		n = copy(p, buf)
		return nil
	})
	if err != nil {
		return 0, err
	}
	return n, nil
}

// bounced calls move with a registered buffer of at most n bytes.
func (x *transfer) bounced(n int, move func([]byte) error) error {
	select {
	case buf := <-x.t.bounce:
		defer func() { x.t.bounce <- buf }()
		n = min(n, len(buf))
		if err := move(buf[:n]); err != nil {
			return err
		}
		x.t.copied.Add(uint64(n))
		return nil
	case <-x.ctx.Done():
		return x.ctx.Err()
	}
}

// post moves one run of registered memory, and waits until it is done.
func (x *transfer) post(p []byte, write bool) error {
	if x.err == nil {
		x.err = x.ctx.Err()
	}
	if x.err != nil || len(p) == 0 {
		return x.err
	}
	x.local[0] = p
	if write {
		x.fenced = x.at+int64(len(p)) == x.size
		x.err = x.req.Write(x.ctx, x.lease, x.window, x.at, x.local[:], !x.fenced)
	} else {
		x.err = x.req.Read(x.ctx, x.lease, x.window, x.at, x.local[:])
	}
	x.local[0] = nil
	if x.err == nil {
		x.at += int64(len(p))
	}
	return x.err
}

// Flush implements gateway.RDMATransfer.
func (x *transfer) Flush() error {
	if x.err == nil && x.at > 0 && !x.fenced {
		x.err = x.req.Write(x.ctx, x.lease, x.window, x.at, nil, false)
		x.fenced = x.err == nil
	}
	return x.err
}

// Close implements gateway.RDMATransfer. Nothing is under way when it is called: every work request was
// waited for. A requester that has seen an error is not used again.
func (x *transfer) Close() {
	if x.req != nil && x.err == nil {
		x.t.free.Put(x.req)
	}
	if x.lease != nil {
		x.t.cache.Put(x.lease)
	}
	x.req, x.lease = nil, nil
	<-x.t.slots
}
