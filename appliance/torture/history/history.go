// Package history records what concurrent callers asked of a few keys of a store and what they were answered,
// and judges whether one order of the calls explains all of it: whether the history is linearizable, key by key.
//
// It calls no store itself, and knows nothing of drives or of HTTP. It is used by tests alone.
//
// Invariant: the clock of a Recorder gives no two events the same time, and an event that ended before another
// began has the smaller time. So a history that is refused has no explanation.
package history

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/anishathalye/porcupine"
)

// Kind is what a call does.
type Kind uint8

// The kinds of calls.
const (
	Get      Kind = iota // reads the current version, or finds none; a listing is a Get of each key in its range
	Put                  // makes Call.Value the current version
	Delete               // leaves no current version
	Create               // begins the upload Call.Upload
	Complete             // makes Call.Value, the parts of Call.Upload, the current version
	Abort                // ends Call.Upload
)

// String names a kind.
func (k Kind) String() string {
	return [...]string{"get", "put", "delete", "create upload", "complete", "abort"}[k]
}

// Absent, as Call.Match, is met by a key that has no current version.
const Absent = "*absent*"

// Call is a call on one key.
type Call struct {
	Kind   Kind
	Key    string
	Value  string // what it writes; no other call of the history writes the same
	Upload string // of Create, Complete and Abort
	// Match is the precondition of a Put, Delete or Complete: "" for none, Absent, or the value that must be current.
	Match string
}

// Status is how a call ended.
type Status uint8

// The ways in which a call ends.
const (
	OK       Status = iota
	NoKey           // there is no current version
	Refused         // the precondition did not hold
	NoUpload        // there is no such upload
	Unknown         // it failed: it may have happened, at any time from its beginning on, or never
)

// String names a status.
func (s Status) String() string {
	return [...]string{"ok", "no such key", "precondition failed", "no such upload", "unknown"}[s]
}

// Outcome is the answer of a call.
type Outcome struct {
	Status Status
	Value  string // what a Get has found, or a Complete says that it made
}

// Recorder gathers the calls of a history. Its methods may be called from many goroutines.
type Recorder struct {
	clock atomic.Int64
	mu    sync.Mutex
	calls []porcupine.Operation
}

// Now gives the time, to be taken before a call.
func (r *Recorder) Now() int64 { return r.clock.Add(1) }

// Ended notes a call of a client that began at the given time, and ends now.
func (r *Recorder) Ended(client int, began int64, c Call, o Outcome) {
	r.Note(client, began, r.Now(), c, o)
}

// Note notes a call that began and ended at the given times. What is Unknown never ends; a Get that failed says
// nothing.
func (r *Recorder) Note(client int, began, ended int64, c Call, o Outcome) {
	if o.Status == Unknown {
		if c.Kind == Get {
			return
		}
		ended = math.MaxInt64
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, porcupine.Operation{ClientId: client, Input: c, Output: o, Call: began, Return: ended})
}

// Len gives the number of calls noted.
func (r *Recorder) Len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.calls)
}

// Check judges the history. Its error tells the calls on the first key that can't be explained; one that
// took longer than limit to judge is an error, too.
func (r *Recorder) Check(limit time.Duration) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	byKey := map[string][]porcupine.Operation{}
	for _, op := range r.calls {
		key := op.Input.(Call).Key
		byKey[key] = append(byKey[key], op)
	}
	for key, ops := range byKey {
		switch result, info := porcupine.CheckOperationsVerbose(model(), ops, limit); result {
		case porcupine.Illegal:
			return fmt.Errorf("key %q: no order of its %d calls explains the answers; %s", key, len(ops), stuck(ops, &info))
		case porcupine.Unknown:
			return fmt.Errorf("key %q: %d calls not judged in %v", key, len(ops), limit)
		}
	}
	return nil
}

// maxShown bounds the calls that an error tells of, on either side of where the explanation ends.
const maxShown = 16

// stuck tells where the longest explanation ends: the last calls of it, in its order, and the calls after it that
// ended first.
func stuck(ops []porcupine.Operation, info *porcupine.LinearizationInfo) string {
	var longest []porcupine.Operation
	for _, partition := range info.PartialLinearizationsOperations() {
		for _, order := range partition {
			if len(order) > len(longest) {
				longest = order
			}
		}
	}
	explained := map[int64]bool{}
	for _, op := range longest {
		explained[op.Call] = true
	}
	rest := slices.DeleteFunc(slices.Clone(ops), func(op porcupine.Operation) bool { return explained[op.Call] })
	slices.SortFunc(rest, func(x, y porcupine.Operation) int { return cmp.Compare(x.Return, y.Return) })
	return fmt.Sprintf("this far it goes:\n%sand then one of these must be:\n%s",
		describe(longest[max(0, len(longest)-maxShown):]), describe(rest[:min(len(rest), maxShown)]))
}

func describe(ops []porcupine.Operation) string {
	var b strings.Builder
	for _, op := range ops {
		end := "…"
		if op.Return != math.MaxInt64 {
			end = fmt.Sprint(op.Return)
		}
		fmt.Fprintf(&b, "  %6d-%-6s client %d: %s\n", op.Call, end, op.ClientId, describeCall(op.Input.(Call), op.Output.(Outcome)))
	}
	return b.String()
}

func describeCall(c Call, o Outcome) string {
	text := c.Kind.String()
	for _, word := range []struct{ name, value string }{{"", c.Value}, {"upload ", c.Upload}, {"if ", c.Match}} {
		if word.value != "" {
			text += " " + word.name + word.value
		}
	}
	return text + " = " + strings.TrimSpace(o.Status.String()+" "+o.Value)
}
