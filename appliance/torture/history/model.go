package history

import (
	"slices"

	"github.com/anishathalye/porcupine"
)

// state is what a key is like.
type state struct {
	value  string   // of the current version; "" if there is none
	upload string   // that made it
	open   []string // the uploads in progress, in order; never changed in place
}

func model() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return state{} },
		Step: func(s, call, outcome any) (bool, any) { return step(s.(state), call.(Call), outcome.(Outcome)) },
		Equal: func(a, b any) bool {
			x, y := a.(state), b.(state)
			return x.value == y.value && x.upload == y.upload && slices.Equal(x.open, y.open)
		},
	}
}

// step says whether a call may have that outcome in a state, and what the state is after it. An unknown
// outcome is any; a call that never happened is one that happens after all others.
func step(s state, c Call, o Outcome) (bool, state) {
	want, next := carryOut(s, c)
	if want.Status == NoUpload && o.Status == Refused {
		return !s.meets(c.Match), next // two reasons, and no rule says which is told
	}
	return o.Status == Unknown || want == o, next
}

func carryOut(s state, c Call) (Outcome, state) {
	switch c.Kind {
	case Get:
		if s.value == "" {
			return Outcome{Status: NoKey}, s
		}
		return Outcome{Value: s.value}, s
	case Create:
		s.open = with(s.open, c.Upload)
		return Outcome{}, s
	case Abort:
		if !slices.Contains(s.open, c.Upload) {
			return Outcome{Status: NoUpload}, s
		}
		s.open = without(s.open, c.Upload)
		return Outcome{}, s
	case Complete:
		return complete(s, c)
	}
	if !s.meets(c.Match) {
		return Outcome{Status: Refused}, s
	}
	s.value, s.upload = c.Value, ""
	return Outcome{}, s
}

// complete makes a version of an upload in progress. One that made the current version is completed again with
// no effect, whatever the precondition.
func complete(s state, c Call) (Outcome, state) {
	if s.upload == c.Upload {
		return Outcome{Value: s.value}, s
	}
	if !slices.Contains(s.open, c.Upload) {
		return Outcome{Status: NoUpload}, s
	}
	if !s.meets(c.Match) {
		return Outcome{Status: Refused}, s
	}
	return Outcome{Value: c.Value}, state{value: c.Value, upload: c.Upload, open: without(s.open, c.Upload)}
}

func (s state) meets(match string) bool {
	switch match {
	case "":
		return true
	case Absent:
		return s.value == ""
	}
	return s.value == match
}

func with(list []string, s string) []string {
	list = append(slices.Clone(list), s)
	slices.Sort(list)
	return list
}

func without(list []string, s string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(t string) bool { return t == s })
}
