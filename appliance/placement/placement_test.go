package placement

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/millrace/millrace/appliance/erasure"
)

func testMap(data, parity, slots int) *Map {
	m := &Map{Epoch: 1, Pool: "p", Scheme: erasure.Scheme{Data: data, Parity: parity}, Groups: 256}
	for i := range slots {
		m.Slots = append(m.Slots, Slot{Drive: fmt.Sprint(i), CapacityBytes: 1 << 40, State: In, Filled: In})
	}
	return m
}

func TestMembersOfAHealthyMap(t *testing.T) {
	v := NewView(testMap(4, 2, 8), nil)
	count := make([]int, 8)
	for g := range v.Groups {
		if len(v.Members(g)) != 3 || !slices.Equal(v.Members(g), v.Reads(g)) || !slices.Equal(v.Members(g), v.Targets(g)) {
			t.Fatalf("group %d: members %v, reads %v, targets %v; want three, all the same", g, v.Members(g), v.Reads(g), v.Targets(g))
		}
		count[v.Lead(g)]++
	}
	for slot, n := range count {
		if n < 10 || n > 70 {
			t.Errorf("slot %d leads %d of 256 groups; want about 32", slot, n)
		}
	}
}

func TestCapacityWeighs(t *testing.T) {
	m := testMap(2, 1, 6)
	m.Groups = 4096
	m.Slots[0].CapacityBytes *= 4
	v := NewView(m, nil)
	leads := make([]int, 6)
	for g := range m.Groups {
		leads[v.Lead(g)]++
	}
	if leads[0] < 3*leads[1] || leads[0] > 5*leads[1] {
		t.Errorf("a slot of 4 times the capacity leads %d groups, another %d; want about 4 times", leads[0], leads[1])
	}
}

func TestSlotGoesOutComesBack(t *testing.T) {
	m := testMap(4, 2, 8)
	healthy := NewView(m, nil)
	out := NewView(m.Without(3), healthy)
	back := NewView(out.Map.With(3), out)
	filled := NewView(out.Map.FilledNow(), out)
	for g := range m.Groups {
		was := slices.Contains(healthy.Members(g), 3)
		if slices.Contains(out.Members(g), 3) || len(out.Members(g)) != 3 {
			t.Fatalf("group %d: members %v without slot 3; want three others", g, out.Members(g))
		}
		if was != (len(out.Reads(g)) == 2) {
			t.Errorf("group %d: %v believed with slot 3 out; want the two that stayed", g, out.Reads(g))
		}
		if slices.Contains(back.Reads(g), 3) {
			t.Errorf("group %d: a slot that came back is believed before a fill", g)
		}
		if was && !slices.Contains(back.Targets(g), 3) {
			t.Errorf("group %d: mutations don't go to the slot that came back: %v", g, back.Targets(g))
		}
		if !slices.Equal(filled.Members(g), filled.Reads(g)) {
			t.Errorf("group %d: after the fill members %v, believed %v; want the same", g, filled.Members(g), filled.Reads(g))
		}
	}
}

// TestBelievedNeverWrong plays random changes of the map with mutations in between against
// a model that remembers which slots have seen every mutation of a group.
func TestBelievedNeverWrong(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	v := NewView(testMap(2, 2, 7), nil)
	v.Map.Groups = 64
	v = NewView(v.Map, nil)
	whole := make([]map[uint8]bool, v.Groups) // by group: the slots that have all of it
	for g := range whole {
		whole[g] = map[uint8]bool{}
		for _, s := range v.Members(g) {
			whole[g][s] = true
		}
	}
	for range 2000 {
		slot := rng.IntN(len(v.Slots))
		switch s := v.Slots[slot]; {
		case rng.IntN(3) == 0: // a complete fill
			if !v.Complete() {
				break
			}
			for g := range whole {
				for _, s := range v.Members(g) {
					whole[g][s] = true
				}
			}
			v = NewView(v.Map.FilledNow(), v)
		case s.State == In && v.CountIn() > 3:
			v = NewView(v.Without(slot), v)
		case s.State == Out:
			for g := range whole {
				delete(whole[g], uint8(slot)) // it comes back wiped
			}
			v = NewView(v.With(slot), v)
		}
		for g := range whole { // a mutation of each group
			for _, s := range v.Reads(g) {
				if !whole[g][s] {
					t.Fatalf("epoch %d, group %d: slot %d is believed and lacks something", v.Epoch, g, s)
				}
			}
			for s := range whole[g] {
				if len(v.Reads(g)) > 0 && !slices.Contains(v.Targets(g), s) {
					delete(whole[g], s)
				}
			}
		}
	}
}

func TestSegmentSlots(t *testing.T) {
	v := NewView(testMap(4, 2, 6), nil)
	for _, tt := range []struct {
		out  []int
		want erasure.Scheme
		ok   bool
	}{
		{nil, erasure.Scheme{Data: 4, Parity: 2}, true},
		{[]int{1}, erasure.Scheme{Data: 3, Parity: 2}, true},
		{[]int{1, 4}, erasure.Scheme{Data: 2, Parity: 2}, true},
		{[]int{1, 4, 5}, erasure.Scheme{Data: 1, Parity: 2}, true},
		{[]int{0, 1, 4, 5}, erasure.Scheme{}, false},
	} {
		w := NewView(v.Without(tt.out...), v)
		s, slots, ok := w.SegmentSlots([]byte("some segment"), nil)
		if s != tt.want || ok != tt.ok || len(slots) != tt.want.Shards() {
			t.Errorf("SegmentSlots with %v out = %v on %v, %v; want %v, %v", tt.out, s, slots, ok, tt.want, tt.ok)
		}
	}
	s, slots, ok := v.SegmentSlots([]byte("x"), func(slot int) bool { return slot == 2 })
	if !ok || s.Data != 3 || slices.Contains(slots, 2) {
		t.Errorf("SegmentSlots with slot 2 full = %v on %v, %v; want 3+2 on others", s, slots, ok)
	}
}

func TestDefaultScheme(t *testing.T) {
	for drives := 1; drives <= 24; drives++ {
		s := DefaultScheme(drives)
		if err := s.Validate(); err != nil || s.Shards() > drives {
			t.Errorf("DefaultScheme(%d) = %v, %v; want one that fits", drives, s, err)
		}
		if drives >= 4 && s.Parity < 2 {
			t.Errorf("DefaultScheme(%d) = %v; want two drives to be spare", drives, s)
		}
	}
}

func TestValidate(t *testing.T) {
	bad := map[string]func(*Map){
		"no slots":      func(m *Map) { m.Slots = nil },
		"many slots":    func(m *Map) { m.Slots = make([]Slot, MaxSlots+1) },
		"no groups":     func(m *Map) { m.Groups = 0 },
		"many groups":   func(m *Map) { m.Groups = 1 << 20 },
		"scheme":        func(m *Map) { m.Scheme.Data = 0 },
		"state":         func(m *Map) { m.Slots[0].State = "odd" },
		"filled":        func(m *Map) { m.Slots[0].Filled = "" },
		"capacity":      func(m *Map) { m.Slots[0].CapacityBytes = 0 },
		"huge capacity": func(m *Map) { m.Slots[0].CapacityBytes = 1 << 60 },
	}
	if err := testMap(4, 2, 6).Validate(); err != nil {
		t.Errorf("Validate of a good map = %v; want nil", err)
	}
	for name, spoil := range bad {
		m := testMap(4, 2, 6)
		spoil(m)
		if m.Validate() == nil {
			t.Errorf("%s: Validate = nil; want an error", name)
		}
	}
}
