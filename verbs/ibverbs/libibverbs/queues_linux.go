//go:build amd64 || arm64

package libibverbs

import (
	"syscall"
	"unsafe"

	"github.com/ebitengine/purego"
)

func (l *library) queueCalls(c *Calls) {
	c.CreateCompChannel = func(ctx Context) (Channel, int, error) {
		ch, err := l.create("ibv_create_comp_channel", uintptr(ctx))
		if err != nil {
			return 0, 0, err
		}
		return Channel(ch), int(at[channelHead](ch).fd), nil
	}
	c.DestroyCompChannel = func(ch Channel) error { return l.do("ibv_destroy_comp_channel", uintptr(ch)) }
	c.CreateCQ = func(ctx Context, entries int, ch Channel) (CQ, error) {
		cq, err := l.create("ibv_create_cq", uintptr(ctx), uintptr(entries), 0, uintptr(ch), 0)
		return CQ(cq), err
	}
	c.DestroyCQ = func(cq CQ) error { return l.do("ibv_destroy_cq", uintptr(cq)) }
	c.AckCQEvents = func(cq CQ, n uint32) {
		purego.SyscallN(l.sym["ibv_ack_cq_events"], uintptr(cq), uintptr(n))
	}
	c.CreateQP = func(pd PD, a *QPInitAttr) (QP, uint32, error) {
		qp, err := l.create("ibv_create_qp", uintptr(pd), uintptr(unsafe.Pointer(a)))
		if err != nil {
			return 0, 0, err
		}
		return QP(qp), at[qpHead](qp).number, nil
	}
	c.ModifyQP = func(qp QP, a *QPAttr, mask uint32) error {
		return l.do("ibv_modify_qp", uintptr(qp), uintptr(unsafe.Pointer(a)), uintptr(mask))
	}
	c.DestroyQP = func(qp QP) error { return l.do("ibv_destroy_qp", uintptr(qp)) }
}

// dataCalls are those of the data path: they allocate nothing.
func (l *library) dataCalls(c *Calls) {
	c.ReqNotifyCQ = func(cq CQ) error {
		if r := l.call(opsOf(uintptr(cq)).reqNotifyCQ, uintptr(cq), 0, 0); r != 0 {
			return failure("ibv_req_notify_cq", r)
		}
		return nil
	}
	c.PollCQ = func(cq CQ, wc []WC) (int, error) {
		n := l.call(opsOf(uintptr(cq)).pollCQ, uintptr(cq), uintptr(len(wc)), uintptr(unsafe.Pointer(unsafe.SliceData(wc))))
		if n < 0 {
			return 0, failure("ibv_poll_cq", n)
		}
		return int(n), nil
	}
	again := &Error{Call: "ibv_get_cq_event", Errno: syscall.EAGAIN}
	c.GetCQEvent = func(ch Channel, e *CQEvent) error {
		return l.event(again, uintptr(ch), uintptr(unsafe.Pointer(&e.CQ)), uintptr(unsafe.Pointer(&e.Context)))
	}
	c.PostSend = func(qp QP, wr *SendWR, bad *uintptr) error {
		r := l.call(opsOf(uintptr(qp)).postSend, uintptr(qp), uintptr(unsafe.Pointer(wr)), uintptr(unsafe.Pointer(bad)))
		if r != 0 {
			return failure("ibv_post_send", r)
		}
		return nil
	}
	c.PostRecv = func(qp QP, wr *RecvWR, bad *uintptr) error {
		r := l.call(opsOf(uintptr(qp)).postRecv, uintptr(qp), uintptr(unsafe.Pointer(wr)), uintptr(unsafe.Pointer(bad)))
		if r != 0 {
			return failure("ibv_post_recv", r)
		}
		return nil
	}
}
