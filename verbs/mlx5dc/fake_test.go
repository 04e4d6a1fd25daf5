package mlx5dc

import (
	"fmt"
	"os"
	"sync"
	"syscall"
	"testing"
	"unsafe"

	"github.com/millrace/millrace/verbs"
	lib "github.com/millrace/millrace/verbs/ibverbs/libibverbs"
	"github.com/millrace/millrace/verbs/mlx5dc/libmlx5"
)

// adapter stands for the two libraries, the driver and the device: DCIs with the states and attributes that the kernel wants, and
// targets of peers whose windows it really writes and reads.
type adapter struct {
	t testing.TB

	mu      sync.Mutex
	dcis    map[lib.QP]*fakeDCI
	handles map[libmlx5.AH]lib.AHAttr
	targets map[uint32]*target
	cqes    []lib.WC
	armed   bool
	next    uintptr
	tell    *os.File // writing wakes the poller
	wake    *os.File
	busy    sync.WaitGroup
	stalled bool // nothing is carried out, but for those that are allowed
	allowed int

	// What is wrong with it.
	noDC        bool
	mute        bool // gives nothing back when it should flush
	noReset     bool // a kernel that refuses to reset a DCI
	noCreate    bool // makes no more DCIs
	noWay       bool // finds no neighbours
	postErr     error
	limits      lib.QPCap
	created     int
	resets      int
	flushed     int // completions of work requests that were not carried out
	madeHandles int
}

type fakeDCI struct {
	state    uint32
	maxReads uint8
	queue    []libmlx5.Work
	running  bool
}

// target is a DC target of a peer, with its windows by key.
type target struct {
	gid     [16]byte
	key     uint64
	windows map[uint32]*window
}

type window struct {
	base   uint64
	mem    []byte
	access verbs.Access
}

func newAdapter(t testing.TB) *adapter {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	a := &adapter{
		t: t, dcis: map[lib.QP]*fakeDCI{}, handles: map[libmlx5.AH]lib.AHAttr{}, targets: map[uint32]*target{}, next: 0x1000,
		wake: r, tell: w,
	}
	t.Cleanup(func() {
		a.busy.Wait()
		_, _ = r.Close(), w.Close()
		if len(a.dcis) > 0 || len(a.handles) > 0 {
			t.Errorf("%d DCIs and %d address handles are left", len(a.dcis), len(a.handles))
		}
	})
	return a
}

func (a *adapter) handle() uintptr {
	a.next += 0x10
	return a.next
}

func failed(call string, n syscall.Errno) error { return &lib.Error{Call: call, Errno: n} }

func (a *adapter) verbs() *lib.Calls {
	fd := int(a.wake.Fd())
	return &lib.Calls{
		CreateCompChannel:  func(lib.Context) (lib.Channel, int, error) { return 7, fd, nil },
		DestroyCompChannel: func(lib.Channel) error { return nil },
		CreateCQ:           func(lib.Context, int, lib.Channel) (lib.CQ, error) { return 9, nil },
		DestroyCQ:          func(lib.CQ) error { return nil },
		AckCQEvents:        func(lib.CQ, uint32) {},
		ReqNotifyCQ:        a.arm,
		PollCQ:             a.poll,
		GetCQEvent: func(lib.Channel, *lib.CQEvent) error {
			var b [1]byte
			if _, err := syscall.Read(fd, b[:]); err != nil {
				return failed("ibv_get_cq_event", err.(syscall.Errno))
			}
			return nil
		},
		ModifyQP:  a.modify,
		DestroyQP: a.destroy,
	}
}

func (a *adapter) mlx5() *libmlx5.Calls {
	return &libmlx5.Calls{
		Supported: func(lib.Context) bool { return !a.noDC },
		CreateDCI: a.create, CreateAH: a.makeHandle, DestroyAH: a.dropHandle, Post: a.post,
	}
}

func (a *adapter) create(_ lib.Context, _ lib.PD, _ lib.CQ, limits lib.QPCap) (libmlx5.DCI, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.noCreate {
		return libmlx5.DCI{}, failed("mlx5dv_create_qp", syscall.ENOMEM)
	}
	a.created++
	a.limits = limits
	qp := lib.QP(a.handle())
	a.dcis[qp] = &fakeDCI{state: lib.StateReset}
	return libmlx5.DCI{QP: qp, Number: uint32(a.created)}, nil
}

// modify takes exactly the attributes that the kernel takes for a DCI.
func (a *adapter) modify(qp lib.QP, attr *lib.QPAttr, mask uint32) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	d := a.dcis[qp]
	refused := failed("ibv_modify_qp", syscall.EINVAL)
	if d == nil {
		return refused
	}
	wants := map[[2]uint32]uint32{
		{lib.StateReset, lib.StateInit}: lib.MaskState | lib.MaskPKeyIndex | lib.MaskPort,
		{lib.StateInit, lib.StateRTR}:   lib.MaskState | lib.MaskPathMTU,
		{lib.StateRTR, lib.StateRTS}: lib.MaskState | lib.MaskTimeout | lib.MaskRetryCnt | lib.MaskRNRRetry | lib.MaskMaxRDAtomic |
			lib.MaskSQPSN,
	}
	want := wants[[2]uint32{d.state, attr.QPState}]
	switch {
	case attr.QPState == lib.StateErr && d.state != lib.StateReset, attr.QPState == lib.StateReset && !a.noReset:
		want = lib.MaskState
	}
	if want == 0 || mask != want || (attr.QPState == lib.StateRTR && (attr.PathMTU < 1 || attr.PathMTU > 5)) {
		return refused
	}
	d.state = attr.QPState
	switch attr.QPState {
	case lib.StateRTS:
		d.maxReads = attr.MaxRDAtomic
	case lib.StateReset: // forgets what it had, also in the completion queue
		a.resets++
		d.queue = nil
	case lib.StateErr:
		a.run(d)
	}
	return nil
}

func (a *adapter) destroy(qp lib.QP) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.dcis[qp] == nil {
		return failed("ibv_destroy_qp", syscall.EINVAL)
	}
	a.dcis[qp].queue = nil
	delete(a.dcis, qp)
	return nil
}

func (a *adapter) makeHandle(_ lib.PD, attr *lib.AHAttr) (libmlx5.AH, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.noWay {
		return 0, failed("ibv_create_ah", syscall.ETIMEDOUT)
	}
	a.madeHandles++
	ah := libmlx5.AH(a.handle())
	a.handles[ah] = *attr
	return ah, nil
}

func (a *adapter) dropHandle(ah libmlx5.AH) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.handles[ah]; !ok {
		a.t.Errorf("an address handle that is none was destroyed")
	}
	delete(a.handles, ah)
	return nil
}

func (a *adapter) post(d *libmlx5.DCI, w *libmlx5.Work) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	f := a.dcis[d.QP]
	switch {
	case a.postErr != nil:
		return a.postErr
	case f == nil || f.state != lib.StateRTS && f.state != lib.StateErr:
		a.t.Errorf("a work request was posted to a DCI that is not ready")
		return failed("ibv_wr_complete", syscall.EINVAL)
	case len(f.queue) >= int(a.limits.MaxSendWR) || len(w.SGEs) > int(a.limits.MaxSendSGE):
		a.t.Errorf("more was posted than the DCI takes: %d, with %d elements", len(f.queue), len(w.SGEs))
		return failed("ibv_wr_complete", syscall.ENOMEM)
	}
	copied := *w
	copied.SGEs = append([]lib.SGE{}, w.SGEs...)
	f.queue = append(f.queue, copied)
	a.run(f)
	return nil
}

// run carries out the queue of a DCI, in a goroutine of its own. The lock is held.
func (a *adapter) run(f *fakeDCI) {
	if f.running {
		return
	}
	f.running = true
	a.busy.Go(func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		for len(f.queue) > 0 {
			if a.stalled && f.state == lib.StateRTS {
				if a.allowed == 0 {
					f.running = false // whoever lets it go on calls run
					return
				}
				a.allowed--
			}
			w := f.queue[0]
			f.queue = f.queue[1:]
			status := lib.WCWRFlushErr
			if f.state == lib.StateRTS {
				status = a.carryOut(&w)
			}
			if status != lib.WCSuccess {
				f.state = lib.StateErr
			}
			if a.mute && status != lib.WCSuccess {
				continue
			}
			if status == lib.WCWRFlushErr {
				a.flushed++
			}
			a.complete(lib.WC{WRID: w.ID, Status: status, VendorErr: uint32(status)})
		}
		f.running = false
	})
}

// complete puts a completion into the queue. The lock is held.
func (a *adapter) complete(wc lib.WC) {
	a.cqes = append(a.cqes, wc)
	if a.armed {
		a.armed = false
		_, _ = a.tell.Write([]byte{1})
	}
}

// stall keeps DCIs from carrying out anything until the function that it returns is called.
func (a *adapter) stall() (resume func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stalled = true
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.stalled = false
		for _, f := range a.dcis {
			a.run(f)
		}
	}
}

// step has one work request carried out while all is stalled.
func (a *adapter) step() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.allowed++
	for _, f := range a.dcis {
		a.run(f)
	}
}

func (a *adapter) carryOut(w *libmlx5.Work) lib.WCStatus {
	attr, ok := a.handles[w.Target]
	tg := a.targets[w.DCTN]
	if !ok || tg == nil || tg.gid != attr.GRH.DGID || attr.IsGlobal != 1 || tg.key != w.DCKey {
		return lib.WCRetryExcErr // nobody answers
	}
	n := uint64(0)
	for _, e := range w.SGEs {
		if e.LKey != localKey {
			return lib.WCLocProtErr
		}
		n += uint64(e.Length)
	}
	win := tg.windows[w.RKey]
	right := verbs.RemoteWrite
	if w.Read {
		right = verbs.RemoteRead
	}
	if n > 0 && (win == nil || win.access&right == 0 || w.Addr < win.base || w.Addr+n > win.base+uint64(len(win.mem))) {
		return lib.WCRemAccessErr
	}
	for _, e := range w.SGEs {
		local := unsafe.Slice(*(**byte)(unsafe.Pointer(&e.Addr)), e.Length)
		there := win.mem[w.Addr-win.base:][:e.Length]
		if w.Read {
			copy(local, there)
		} else {
			copy(there, local)
		}
		w.Addr += uint64(e.Length)
	}
	return lib.WCSuccess
}

func (a *adapter) arm(lib.CQ) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.armed = true
	return nil
}

func (a *adapter) poll(_ lib.CQ, wcs []lib.WC) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := copy(wcs, a.cqes)
	a.cqes = a.cqes[n:]
	return n, nil
}

// addTarget makes a DC target with one window, and names it.
func (a *adapter) addTarget(gid [16]byte, number uint32, size int, access verbs.Access) (*window, verbs.Window) {
	a.mu.Lock()
	defer a.mu.Unlock()
	w := &window{base: 0x7f0000000000 + uint64(number)<<24, mem: make([]byte, size), access: access}
	a.targets[number] = &target{gid: gid, key: DefaultDCKey, windows: map[uint32]*window{number * 3: w}}
	return w, verbs.Window{Endpoint: verbs.Endpoint{GID: gid, QPN: number}, Addr: w.base, RKey: number * 3, SizeBytes: int64(size)}
}

const localKey = 0x1234

// memory is one registered buffer.
type memory struct {
	mu   sync.Mutex
	mem  []byte
	held int
}

func (m *memory) Hold(local [][]byte, sges []lib.SGE) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := 0
	for _, b := range local {
		if len(b) == 0 {
			continue
		}
		at, start := uintptr(unsafe.Pointer(&b[0])), uintptr(unsafe.Pointer(&m.mem[0]))
		if at < start || at+uintptr(len(b)) > start+uintptr(len(m.mem)) {
			return 0, fmt.Errorf("elsewhere: %w", verbs.ErrNotRegistered)
		}
		sges[n] = lib.SGE{Addr: uint64(at), Length: uint32(len(b)), LKey: localKey}
		n++
	}
	m.held++
	return n, nil
}

func (m *memory) Release([][]byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.held--
}
