package history

import (
	"strings"
	"testing"
	"time"
)

// event is a call with its times.
type event struct {
	began, ended int64
	call         Call
	outcome      Outcome
}

func ok(value string) Outcome { return Outcome{Value: value} }

func put(value string) Call           { return Call{Kind: Put, Value: value} }
func putIf(match, value string) Call  { return Call{Kind: Put, Value: value, Match: match} }
func complete1(value, up string) Call { return Call{Kind: Complete, Value: value, Upload: up} }

func TestCheck(t *testing.T) {
	get, del := Call{Kind: Get}, Call{Kind: Delete}
	create, abort := Call{Kind: Create, Upload: "u"}, Call{Kind: Abort, Upload: "u"}
	none, refused, noUpload, unknown := Outcome{Status: NoKey}, Outcome{Status: Refused}, Outcome{Status: NoUpload}, Outcome{Status: Unknown}
	for _, test := range []struct {
		name   string
		events []event
		want   bool
	}{
		{"nothing", nil, true},
		{"read after write", []event{{1, 2, put("a"), ok("")}, {3, 4, get, ok("a")}}, true},
		{"lost write", []event{{1, 2, put("a"), ok("")}, {3, 4, get, none}}, false},
		{"old or new during an overwrite", []event{{1, 2, put("a"), ok("")}, {3, 8, put("b"), ok("")}, {4, 5, get, ok("a")},
			{6, 7, get, ok("b")}}, true},
		{"back in time", []event{{1, 2, put("a"), ok("")}, {3, 8, put("b"), ok("")}, {4, 5, get, ok("b")}, {6, 7, get, ok("a")}}, false},
		{"deleted and read", []event{{1, 2, put("a"), ok("")}, {3, 4, del, ok("")}, {5, 6, get, ok("a")}}, false},
		{"two first ones", []event{{1, 4, putIf(Absent, "a"), ok("")}, {2, 3, putIf(Absent, "b"), ok("")}}, false},
		{"one first one", []event{{1, 4, putIf(Absent, "a"), ok("")}, {2, 3, putIf(Absent, "b"), refused}}, true},
		{"refused for no reason", []event{{1, 2, putIf(Absent, "a"), refused}}, false},
		{"swapped twice", []event{{1, 2, put("a"), ok("")}, {3, 6, putIf("a", "b"), ok("")}, {4, 5, putIf("a", "c"), ok("")}}, false},
		{"unknown, and it shows late", []event{{1, 2, put("a"), unknown}, {3, 4, get, none}, {5, 6, get, ok("a")}}, true},
		{"unknown, and it goes again", []event{{1, 2, put("a"), unknown}, {3, 4, get, ok("a")}, {5, 6, get, none}}, false},
		{"unknown get", []event{{1, 2, put("a"), ok("")}, {3, 4, get, unknown}}, true},
		{"completed twice", []event{{1, 2, create, ok("")}, {3, 6, complete1("a", "u"), ok("a")}, {4, 5, complete1("a", "u"), ok("a")}}, true},
		{"completed and aborted", []event{{1, 2, create, ok("")}, {3, 6, complete1("a", "u"), ok("a")}, {4, 5, abort, ok("")}}, false},
		{"aborted before", []event{{1, 2, create, ok("")}, {3, 4, abort, ok("")}, {5, 6, complete1("a", "u"), noUpload}, {7, 8, get, none}}, true},
		{"second completion refused", []event{{1, 2, create, ok("")}, {3, 6, complete1("a", "u"), ok("a")},
			{4, 5, complete1("a", "u"), noUpload}}, false},
		{"gone, and refused besides", []event{{1, 2, complete1("a", "u"), noUpload}, {3, 4, put("b"), ok("")},
			{5, 6, Call{Kind: Complete, Value: "a", Upload: "u", Match: Absent}, refused}}, true},
		{"gone, and not refused", []event{{1, 2, Call{Kind: Complete, Value: "a", Upload: "u", Match: Absent}, refused}}, false},
		{"completed, overwritten, completed", []event{{1, 2, create, ok("")}, {3, 4, complete1("a", "u"), ok("a")}, {5, 6, put("b"), ok("")},
			{7, 8, complete1("a", "u"), noUpload}, {9, 10, get, ok("b")}}, true},
	} {
		r := &Recorder{}
		for i, e := range test.events {
			r.Note(i, e.began, e.ended, e.call, e.outcome)
		}
		if err := r.Check(time.Minute); (err == nil) != test.want {
			t.Errorf("%s: Check() = %v; want explained: %v", test.name, err, test.want)
		}
	}
}

func TestCheckTellsTheKey(t *testing.T) {
	r := &Recorder{}
	began := r.Now()
	r.Ended(3, began, Call{Kind: Get, Key: "k"}, ok("a"))
	err := r.Check(time.Minute)
	if err == nil || !strings.Contains(err.Error(), `key "k"`) || !strings.Contains(err.Error(), "client 3: get = ok a") {
		t.Errorf("Check() = %v; want the key and its calls", err)
	}
	if n := r.Len(); n != 1 {
		t.Errorf("Len() = %d; want 1", n)
	}
}
