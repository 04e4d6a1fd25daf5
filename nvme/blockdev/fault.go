package blockdev

import (
	"errors"
	"sync"
	"time"
)

// OpKind is a kind of operation on a Device.
type OpKind uint8

// The kinds of operations. AnyOp is only for rules and counts: it means all of them.
const (
	AnyOp OpKind = iota
	ReadOp
	WriteOp
	FlushOp
	DiscardOp
	opKinds
)

// String gives the name that OpError uses.
func (k OpKind) String() string {
	return [opKinds]string{"operation", "read", "write", "flush", "discard"}[k]
}

// Op is one operation on a Fault.
type Op struct {
	Kind     OpKind
	Off, Len int64 // bytes; 0 for a flush
	// Nth counts the operations of this Kind, and Total all of them, from 1, this one included.
	Nth, Total int64
}

// ErrInjected is a handy error for rules: the drive's own word for a failed transfer.
var ErrInjected = errors.New("injected input/output error")

// Rule is one fault. Kind, Nth and Match say which operations it meets (all that are set must
// hold); the other fields say what happens to them. The effects of one rule go together: a
// rule with Hold and Err waits, then fails. A rule with no effect does nothing.
type Rule struct {
	Kind  OpKind        // AnyOp meets all kinds
	Nth   int64         // the k-th operation of Kind since NewFault; 0 meets every one
	Match func(Op) bool // nil meets every one
	Times int           // how often the rule acts before it is used up; 0 means always

	Delay time.Duration
	Hold  <-chan struct{} // the operation is stuck until this is closed
	// Gone: the device vanishes for good; this operation and all later ones give ErrGone.
	Gone bool
	// Err is returned. The operation is not carried out, except what Torn lets through.
	Err error
	// Torn: of a write only the first LandBytes land, which need not be aligned. With no Err
	// that is reported as success, so LandBytes 0 is a lost write. A torn flush or discard is
	// acknowledged and not carried out.
	Torn      bool
	LandBytes int64
	// ShiftBytes makes a write land so far from where it should, reported as success.
	ShiftBytes int64
	// FlipAt are offsets of bytes in which a read that covers them finds one bit inverted.
	FlipAt []int64
}

// Fault is a Device that does wrong, by rules, what another one does right.
type Fault struct {
	dev Device

	mu     sync.Mutex
	rules  []Rule
	counts [opKinds]int64
	gone   bool
	before func(Op)
}

var _ Device = (*Fault)(nil)

// NewFault returns dev with the faults that the rules describe. Of several rules that meet an
// operation the first one acts.
func NewFault(dev Device, rules ...Rule) *Fault {
	f := &Fault{dev: dev}
	f.Add(rules...)
	return f
}

// Add puts further rules after those that there are.
func (f *Fault) Add(rules ...Rule) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules = append(f.rules, rules...)
}

// Heal drops all rules, and brings a device back that was gone. It releases nothing that is held.
func (f *Fault) Heal() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules, f.gone = nil, false
}

// Vanish makes the device be gone from now on.
func (f *Fault) Vanish() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gone = true
}

// Before sets a hook that is called before each operation, also those that will fail, with no
// lock held: it may look at the device below and change the rules. nil removes it.
func (f *Fault) Before(hook func(Op)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before = hook
}

// Count is the number of operations of a kind that have begun; AnyOp counts all.
func (f *Fault) Count(kind OpKind) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.counts[kind]
}

// ReadAt implements Device.
func (f *Fault) ReadAt(bufs [][]byte, off int64) error {
	rule, err := f.begin(ReadOp, off, lenOf(bufs))
	if err != nil {
		return err
	}
	if err := f.dev.ReadAt(bufs, off); err != nil {
		return err
	}
	for _, at := range rule.FlipAt {
		rest := at - off
		for _, b := range bufs {
			if rest >= 0 && rest < int64(len(b)) {
				b[rest] ^= 1
			}
			rest -= int64(len(b))
		}
	}
	return nil
}

// WriteAt implements Device.
func (f *Fault) WriteAt(bufs [][]byte, off int64) error {
	rule, err := f.begin(WriteOp, off, lenOf(bufs))
	switch {
	case rule.Torn:
		return errors.Join(err, f.land(bufs, off+rule.ShiftBytes, rule.LandBytes))
	case err != nil:
		return err
	}
	return f.dev.WriteAt(bufs, off+rule.ShiftBytes)
}

// Flush implements Device.
func (f *Fault) Flush() error {
	rule, err := f.begin(FlushOp, 0, 0)
	if err != nil || rule.Torn {
		return err
	}
	return f.dev.Flush()
}

// Discard implements Device.
func (f *Fault) Discard(off, n int64) error {
	rule, err := f.begin(DiscardOp, off, n)
	if err != nil || rule.Torn {
		return err
	}
	return f.dev.Discard(off, n)
}

// SizeBytes implements Device.
func (f *Fault) SizeBytes() int64 { return f.dev.SizeBytes() }

// Close implements Device. No rule meets it.
func (f *Fault) Close() error { return f.dev.Close() }

// begin counts an operation, calls the hook, and plays the rule up to its error.
func (f *Fault) begin(kind OpKind, off, n int64) (Rule, error) {
	f.mu.Lock()
	f.counts[kind]++
	f.counts[AnyOp]++
	op := Op{Kind: kind, Off: off, Len: n, Nth: f.counts[kind], Total: f.counts[AnyOp]}
	hook := f.before
	f.mu.Unlock()
	if hook != nil {
		hook(op)
	}
	rule, gone := f.pick(op)
	if gone {
		return Rule{}, f.fail(op, ErrGone)
	}
	time.Sleep(rule.Delay)
	if rule.Hold != nil {
		<-rule.Hold
	}
	if rule.Err != nil {
		return rule, f.fail(op, rule.Err)
	}
	return rule, nil
}

// pick finds the rule that acts on an operation, and reports whether the device is gone.
func (f *Fault) pick(op Op) (Rule, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.gone {
		return Rule{}, true
	}
	for i := range f.rules {
		r := &f.rules[i]
		if !r.meets(op) {
			continue
		}
		if r.Times > 0 {
			if r.Times--; r.Times == 0 {
				r.Times = -1
			}
		}
		f.gone = f.gone || r.Gone
		return *r, f.gone
	}
	return Rule{}, false
}

func (r *Rule) meets(op Op) bool {
	if r.Times < 0 || r.Kind != AnyOp && r.Kind != op.Kind {
		return false
	}
	nth := op.Nth
	if r.Kind == AnyOp {
		nth = op.Total
	}
	return (r.Nth == 0 || r.Nth == nth) && (r.Match == nil || r.Match(op))
}

func (f *Fault) fail(op Op, err error) error {
	return &OpError{Op: op.Kind.String(), Path: "faulty device", Off: op.Off, Err: err}
}

// land writes the first n bytes of bufs; the block in which they end keeps its old rest.
func (f *Fault) land(bufs [][]byte, off, n int64) error {
	whole := AlignedBuffer(int(lenOf(bufs)))
	at := 0
	for _, b := range bufs {
		at += copy(whole[at:], b)
	}
	n = min(n, int64(len(whole)))
	full := n &^ (AlignBytes - 1)
	if full < n {
		last := AlignedBuffer(AlignBytes)
		if err := f.dev.ReadAt([][]byte{last}, off+full); err != nil {
			return err
		}
		copy(whole[n:full+AlignBytes], last[n-full:])
		full += AlignBytes
	}
	if full == 0 {
		return nil
	}
	return f.dev.WriteAt([][]byte{whole[:full]}, off)
}
