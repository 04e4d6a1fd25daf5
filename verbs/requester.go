package verbs

import (
	"context"
	"errors"
	"fmt"
)

// Requester does transfers of any size: it cuts them into work requests that a device takes, keeps several
// in flight, and waits for all. It is used by one goroutine at a time and can be reused; it allocates
// nothing once it has warmed up.
type Requester struct {
	queue    *Queue
	maxBytes int64
	maxSegs  int
	wr       WorkRequest
	// pieces is a ring of as many lists of slices as work requests can be in flight.
	pieces [][][]byte
	next   int
	imm    uint32
	hasImm bool // imm goes with the last work request
}

// NewRequester returns a Requester for connections of a device, with up to depth work requests in flight.
func NewRequester(info DeviceInfo, depth int) *Requester {
	depth = max(1, min(depth, info.SendDepth))
	return &Requester{
		queue: NewQueue(depth), pieces: make([][][]byte, depth), maxBytes: max(1, info.MaxMessageBytes),
		maxSegs: max(1, info.MaxSegments),
	}
}

// Write writes local into the window from its byte off on, and returns when the peer has the bytes. With
// unfenced it returns when local may be reused: then a later Write on the same connection without it, which
// may be of no bytes at all, tells that the peer has everything. When ctx ends first, the connection is
// closed, since only that stops what was posted. In any case local is no longer used after the return.
func (r *Requester) Write(ctx context.Context, c Conn, w Window, off int64, local [][]byte, unfenced bool) error {
	return r.run(ctx, c, OpWrite, w, off, local, unfenced)
}

// WriteImm is Write, fenced, with an immediate value behind the last byte, which consumes a RECV of the peer.
func (r *Requester) WriteImm(ctx context.Context, c Conn, w Window, off int64, local [][]byte, imm uint32) error {
	r.imm, r.hasImm = imm, true
	defer func() { r.hasImm = false }()
	return r.run(ctx, c, OpWrite, w, off, local, false)
}

// Read fills local from the window, from its byte off on. It ends as Write does.
func (r *Requester) Read(ctx context.Context, c Conn, w Window, off int64, local [][]byte) error {
	return r.run(ctx, c, OpRead, w, off, local, false)
}

func (r *Requester) run(
	ctx context.Context, c Conn, op Opcode, w Window, off int64, local [][]byte, unfenced bool,
) error {
	var n int64
	for _, s := range local {
		n += int64(len(s))
	}
	part, err := w.Part(off, n)
	if err != nil {
		return err
	}
	rest := cutter{segs: local}
	r.wr = WorkRequest{Op: op, Addr: part.Addr, RKey: part.RKey}
	run := max(1, r.queue.Depth()/4)
	for first := true; err == nil && (first || n > 0); first = false {
		if r.queue.Outstanding() == r.queue.Depth() {
			if err = r.waitReady(ctx, c); err != nil {
				break
			}
		}
		took := r.fill(&rest, min(n, r.maxBytes))
		n -= took
		// One fence at the end covers all that went before it.
		r.wr.Unfenced = unfenced || n > 0
		if r.hasImm && n == 0 {
			r.wr.Op, r.wr.Imm = OpWriteImm, r.imm
		}
		// Runs of a quarter of the queue, so that there is always one under way while another completes.
		r.wr.More = n > 0 && r.wr.ID%uint64(run) != 0 && r.queue.Outstanding()+1 < r.queue.Depth()
		if err = c.Post(&r.wr, r.queue); errors.Is(err, ErrQueueFull) && r.queue.Outstanding() > 0 {
			if err = r.wait(ctx, c); err == nil {
				err = c.Post(&r.wr, r.queue)
			}
		}
		r.wr.Addr += uint64(took)
	}
	for r.queue.Outstanding() > 0 {
		if e := r.wait(ctx, c); err == nil {
			err = e
		}
	}
	r.wr = WorkRequest{}
	return err
}

// fill puts the next slices, n bytes of them at most, into the work request.
func (r *Requester) fill(rest *cutter, n int64) int64 {
	list := r.pieces[r.next][:0]
	var took int64
	for took < n && len(list) < r.maxSegs {
		s := rest.take(n - took)
		list = append(list, s)
		took += int64(len(s))
	}
	r.pieces[r.next] = list
	r.next = (r.next + 1) % len(r.pieces)
	r.wr.Local = list
	r.wr.ID++
	return took
}

// wait takes one completion. When ctx ends it closes the connection, which completes everything.
func (r *Requester) wait(ctx context.Context, c Conn) error {
	done, err := r.queue.Wait(ctx)
	if err == nil {
		return done.Err
	}
	_ = c.Close()
	if _, e := r.queue.Wait(context.WithoutCancel(ctx)); e != nil {
		return e
	}
	return fmt.Errorf("%w: connection closed", err)
}

// waitReady takes one completion, and those that are there besides: work requests of a run complete together.
func (r *Requester) waitReady(ctx context.Context, c Conn) error {
	err := r.wait(ctx, c)
	for {
		done, ok := r.queue.Poll()
		if !ok {
			return err
		}
		if err == nil {
			err = done.Err
		}
	}
}

// cutter gives out the slices of a list piece by piece, without changing the list.
type cutter struct {
	segs [][]byte
	off  int
}

func (c *cutter) take(n int64) []byte {
	for len(c.segs[0]) == c.off {
		c.segs, c.off = c.segs[1:], 0
	}
	s := c.segs[0][c.off:]
	if int64(len(s)) > n {
		s = s[:n]
	}
	c.off += len(s)
	return s
}
