package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRead(t *testing.T) {
	const two = "--- PASS: TestA (0.1s)\n--- PASS: TestB (0.2s)\nPASS\n"
	const parts = "--- PASS: TestA (0.1s)\n    --- PASS: TestA/one (0.2s)\n    --- FAIL: TestA/two (0.2s)\n"
	for _, tt := range []struct {
		out, passes string
		want        tally
	}{
		{"", "", tally{}},
		{"", "absences", tally{}},
		{"    a_test.go:7: tally: kills=3 calls=70\nPASS\n", "", tally{"kills": 3, "calls": 70}},
		{"x tally: kills=3\nx tally: kills=4\n", "", tally{"kills": 7}},
		{"x tally: kills=3 and more\n", "", tally{}},
		{"x tally: kills=99999999999999999999\n", "", tally{}},
		{two, "", tally{}},
		{two, "absences", tally{"absences": 2}},
		{parts, "faults", tally{"faults": 1}},
		{"--- FAIL: TestA (0.1s)\n", "faults", tally{}},
	} {
		if diff := cmp.Diff(tt.want, read(tt.out, tt.passes)); diff != "" {
			t.Errorf("read(%q, %q): -want +got\n%s", tt.out, tt.passes, diff)
		}
	}
}

func TestTally(t *testing.T) {
	sum := tally{"kills": 2}
	sum.add(tally{"kills": 1, "crash_points": 5})
	if got, want := sum.String(), "crash points 5, kills 3"; got != want {
		t.Errorf("tally = %q; want %q", got, want)
	}
}
