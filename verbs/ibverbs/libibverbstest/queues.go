package libibverbstest

import (
	"slices"
	"syscall"
	"time"
	"unsafe"

	lib "github.com/millrace/millrace/verbs/ibverbs/libibverbs"
)

type completionQueue struct {
	channel *pipe
	list    []lib.WC
	armed   bool
}

func (q *completionQueue) put(wc lib.WC) {
	q.list = append(q.list, wc)
	if q.armed {
		q.armed = false
		q.channel.wake()
	}
}

func (m *Machine) completionCalls(c *lib.Calls) {
	c.CreateCompChannel = func(lib.Context) (lib.Channel, int, error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		p, err := newPipe()
		if err != nil {
			return 0, 0, fails("ibv_create_comp_channel", err.(syscall.Errno))
		}
		ch := lib.Channel(m.handle())
		m.pipes[ch] = p
		return ch, p.fds[0], nil
	}
	c.DestroyCompChannel = func(ch lib.Channel) error {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.pipes[ch].close()
		delete(m.pipes, ch)
		m.Objects.Add(-1)
		return nil
	}
	c.CreateCQ = func(_ lib.Context, _ int, ch lib.Channel) (lib.CQ, error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		cq := lib.CQ(m.handle())
		m.cqs[cq] = &completionQueue{channel: m.pipes[ch]}
		return cq, nil
	}
	c.DestroyCQ = func(cq lib.CQ) error {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.cqs, cq)
		m.Objects.Add(-1)
		return nil
	}
	c.ReqNotifyCQ = func(cq lib.CQ) error {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.cqs[cq].armed = true
		return nil
	}
	c.PollCQ = func(cq lib.CQ, wcs []lib.WC) (int, error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		q := m.cqs[cq]
		n := copy(wcs, q.list)
		q.list = slices.Delete(q.list, 0, n)
		return n, nil
	}
	again := fails("ibv_get_cq_event", syscall.EAGAIN)
	c.GetCQEvent = func(ch lib.Channel, _ *lib.CQEvent) error {
		m.mu.Lock()
		p := m.pipes[ch]
		m.mu.Unlock()
		switch err := p.take(); err {
		case nil:
			return nil
		case syscall.EAGAIN:
			return again
		default:
			return fails("ibv_get_cq_event", err.(syscall.Errno))
		}
	}
	c.AckCQEvents = func(lib.CQ, uint32) {}
}

type queuePair struct {
	m       *Machine
	handle  lib.QP
	context lib.Context
	number  uint32
	dest    uint32
	state   uint32
	cq      *completionQueue
	caps    lib.QPCap
	sends   []work
	recvs   []work
	doing   work
	ended   chan struct{}
	dead    bool
}

// work is a work request, or the binding of a window.
type work struct {
	id       uint64
	op       uint32
	signaled bool
	list     [maxElements]lib.SGE
	n        int32
	imm      uint32
	addr     uint64
	key      uint32
	window   *window
	bind     window
}

// maxElements is the most of one work request; the device's limit must not be higher.
const maxElements = 32

// sges are the elements of its list.
func (w *work) sges() []lib.SGE { return w.list[:w.n] }

func (w *work) take(list uintptr, n int32) {
	if w.n = n; n > 0 {
		copy(w.list[:], unsafe.Slice(at[lib.SGE](list), n))
	}
}

func (w *work) bytes() uint64 {
	var n uint64
	for _, s := range w.sges() {
		n += uint64(s.Length)
	}
	return n
}

func (m *Machine) queuePairCalls(c *lib.Calls) {
	c.CreateQP = func(pd lib.PD, a *lib.QPInitAttr) (lib.QP, uint32, error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		h := lib.QP(m.handle())
		qp := &queuePair{
			m: m, handle: h, context: m.pds[pd], number: uint32(h) + 100, cq: m.cqs[a.SendCQ], caps: a.Cap,
			ended: make(chan struct{}),
		}
		m.qps[h] = qp
		go qp.run()
		return h, qp.number, nil
	}
	c.ModifyQP = func(h lib.QP, a *lib.QPAttr, mask uint32) error {
		m.mu.Lock()
		defer m.mu.Unlock()
		qp := m.qps[h]
		if mask&lib.MaskState == 0 || a.QPState != lib.StateErr && a.QPState != qp.state+1 {
			return fails("ibv_modify_qp", syscall.EINVAL)
		}
		if a.QPState == lib.StateRTR {
			if qp.dest = a.DestQPNum; a.AH.GRH.SGIDIndex%2 != 1 { // an entry of RoCE v1
				return fails("ibv_modify_qp", syscall.EINVAL)
			}
		}
		qp.state = a.QPState
		m.moved.Broadcast()
		return nil
	}
	c.DestroyQP = func(h lib.QP) error {
		m.mu.Lock()
		qp := m.qps[h]
		delete(m.qps, h)
		qp.dead = true
		m.moved.Broadcast()
		m.mu.Unlock()
		<-qp.ended
		m.Objects.Add(-1)
		return nil
	}
	c.PostSend = m.postSend
	c.PostRecv = func(h lib.QP, wr *lib.RecvWR, bad *uintptr) error {
		m.mu.Lock()
		defer m.mu.Unlock()
		qp := m.qps[h]
		if len(qp.recvs) >= int(qp.caps.MaxRecvWR) || wr.NumSGE > int32(qp.caps.MaxRecvSGE) || wr.Next != 0 {
			*bad = uintptr(unsafe.Pointer(wr))
			return fails("ibv_post_recv", syscall.ENOMEM)
		}
		qp.recvs = append(qp.recvs, work{id: wr.WRID})
		qp.recvs[len(qp.recvs)-1].take(wr.SGList, wr.NumSGE)
		m.moved.Broadcast()
		return nil
	}
}

func (m *Machine) postSend(h lib.QP, wr *lib.SendWR, bad *uintptr) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	qp := m.qps[h]
	n, err := -1, error(nil) // -1: all
	if m.Posted != nil {
		var list []lib.SendWR
		for w := wr; w != nil; w = at[lib.SendWR](w.Next) {
			list = append(list, *w)
		}
		n, err = m.Posted(list)
	}
	for w := wr; w != nil; w = at[lib.SendWR](w.Next) {
		if *bad = uintptr(unsafe.Pointer(w)); n == 0 {
			break
		}
		n--
		if len(qp.sends) >= int(qp.caps.MaxSendWR) || w.NumSGE > int32(qp.caps.MaxSendSGE) {
			return fails("ibv_post_send", syscall.ENOMEM)
		}
		qp.sends = append(qp.sends, work{
			id: w.WRID, op: w.Opcode, signaled: w.SendFlags&lib.SendSignaled != 0, imm: w.Imm, addr: w.RemoteAddr, key: w.RKey,
		})
		qp.sends[len(qp.sends)-1].take(w.SGList, w.NumSGE)
	}
	m.moved.Broadcast()
	return err
}

// run does the work requests of a queue pair until it is destroyed. It holds the machine's lock but for while it
// waits, and between pieces.
func (q *queuePair) run() {
	m := q.m
	m.mu.Lock()
	defer m.mu.Unlock()
	defer close(q.ended)
	for !q.dead {
		switch {
		case m.Frozen.Load():
		case q.state == lib.StateErr:
			if !m.NoFlush.Load() {
				q.flush()
			}
		case q.state == lib.StateRTS && len(q.sends) > 0:
			q.one()
			continue
		}
		m.moved.Wait()
	}
}

func (q *queuePair) flush() {
	for _, list := range []*[]work{&q.sends, &q.recvs} {
		for _, w := range *list {
			q.cq.put(lib.WC{WRID: w.id, Status: lib.WCWRFlushErr, QPNum: q.number})
		}
		*list = (*list)[:0]
	}
}

// one does the first work request, or a part of it.
func (q *queuePair) one() {
	w := &q.doing
	*w = q.sends[0]
	status, done := q.do(w)
	if !done || q.dead || status == lib.WCSuccess && q.state != lib.StateRTS {
		return
	}
	q.sends = slices.Delete(q.sends, 0, 1)
	if w.signaled || status != lib.WCSuccess {
		q.cq.put(lib.WC{WRID: w.id, Status: status, VendorErr: uint32(status), QPNum: q.number})
	}
	if status != lib.WCSuccess {
		q.fail()
	}
}

func (q *queuePair) fail() {
	q.state = lib.StateErr
	q.m.moved.Broadcast()
}

// pause lets others have the machine.
func (q *queuePair) pause(d time.Duration) {
	q.m.mu.Unlock()
	time.Sleep(d)
	q.m.mu.Lock()
}

// do does a work request; done is false if it has to be begun again, or the queue pair has ended.
func (q *queuePair) do(w *work) (status lib.WCStatus, done bool) {
	if w.window != nil {
		return w.window.rebind(w.bind), true
	}
	for _, s := range w.sges() {
		if !q.m.local(s) {
			return lib.WCLocProtErr, true
		}
	}
	peer := q.peer()
	if peer == nil || peer.state == lib.StateErr {
		q.pause(5 * time.Millisecond) // the retries
		return lib.WCRetryExcErr, true
	}
	if peer.state < lib.StateRTR {
		q.pause(100 * time.Microsecond)
		return 0, false
	}
	if w.op == lib.WRSend || w.op == lib.WRWriteImm {
		if len(peer.recvs) == 0 {
			q.pause(100 * time.Microsecond)
			return 0, false
		}
	}
	switch w.op {
	case lib.WRSend:
		return peer.receive(w), true
	case lib.WRRead, lib.WRWrite, lib.WRWriteImm:
		status, done := q.remote(peer, w)
		if done && status == lib.WCSuccess && w.op == lib.WRWriteImm {
			peer.immediate(w)
		}
		return status, done
	}
	return lib.WCLocQPOpErr, true
}

func (q *queuePair) peer() *queuePair {
	for _, p := range q.m.qps {
		if p.number == q.dest && (p.dest == q.number || p.state < lib.StateRTR) {
			return p
		}
	}
	return nil
}

// receive puts a message into the next RECV.
func (q *queuePair) receive(w *work) lib.WCStatus {
	r := q.recvs[0]
	q.recvs = slices.Delete(q.recvs, 0, 1)
	if w.bytes() > r.bytes() {
		q.cq.put(lib.WC{WRID: r.id, Status: lib.WCLocLenErr})
		q.fail()
		return lib.WCRemInvReqErr
	}
	var from, to []byte
	sources, rest := w.sges(), r.sges()
	for {
		for len(from) == 0 && len(sources) > 0 {
			from, sources = bytesAt(sources[0].Addr, int(sources[0].Length)), sources[1:]
		}
		for len(to) == 0 && len(rest) > 0 {
			to, rest = bytesAt(rest[0].Addr, int(rest[0].Length)), rest[1:]
		}
		n := copy(to, from)
		if n == 0 {
			break
		}
		from, to = from[n:], to[n:]
	}
	q.cq.put(lib.WC{WRID: r.id, Opcode: 1 << 7, ByteLen: uint32(w.bytes())})
	return lib.WCSuccess
}

func (q *queuePair) immediate(w *work) {
	r := q.recvs[0]
	q.recvs = slices.Delete(q.recvs, 0, 1)
	q.cq.put(lib.WC{
		WRID: r.id, Opcode: lib.WCRecvWriteImm, ByteLen: uint32(w.bytes()), Imm: w.imm, WCFlags: lib.WCWithImm,
	})
}

// pieceBytes is what moves at once.
const pieceBytes = 64 << 10

// remote does a WRITE or READ, and looks at the rights anew for each piece.
func (q *queuePair) remote(peer *queuePair, w *work) (lib.WCStatus, bool) {
	right := uint32(lib.AccessRemoteWrite)
	if w.op == lib.WRRead {
		right = lib.AccessRemoteRead
	}
	there, left := w.addr, w.bytes()
	for _, s := range w.sges() {
		here := bytesAt(s.Addr, int(s.Length))
		for len(here) > 0 {
			if !q.m.reach(w.key, there, left, right) {
				peer.fail()
				q.m.events[peer.context].put(lib.AsyncEvent{Element: uintptr(peer.handle), Type: lib.EventQPAccessErr})
				return lib.WCRemAccessErr, true
			}
			n := min(len(here), pieceBytes)
			if w.op == lib.WRRead {
				copy(here[:n], bytesAt(there, n))
			} else {
				copy(bytesAt(there, n), here[:n])
			}
			here, there, left = here[n:], there+uint64(n), left-uint64(n)
			q.pause(0)
			if q.dead || q.state != lib.StateRTS {
				return 0, false
			}
			if peer.dead || peer.state == lib.StateErr {
				return lib.WCRetryExcErr, true
			}
		}
	}
	return lib.WCSuccess, true
}
