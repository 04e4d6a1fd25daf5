// Package placement decides where things live: which slots hold a placement group's index records,
// and which slots a new segment's shards go to. It is pure computation over a Map; it does no I/O
// and keeps no state of its own.
//
// A pool has a fixed number of groups. Each group has its own order of all slots, by weighted
// rendezvous hashing, so that a change of one slot moves only what that slot held.
//
// Invariant: a View's answers depend on its Map alone, and two Views of equal Maps agree.
package placement

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/zeebo/xxh3"

	"github.com/millrace/millrace/appliance/erasure"
)

const (
	// MaxSlots is the most slots of a pool; a slot number fits a byte.
	MaxSlots = 200
	// DefaultGroups is the number of placement groups of a new pool.
	DefaultGroups = 512
	maxGroups     = 1 << 14
	maxCapacity   = 1 << 50 // 1 PiB a drive
)

// State says how a slot stands.
type State string

const (
	// In: the slot takes part.
	In State = "in"
	// Out: the slot's drive is missing, failed, or not yet asked in. What is freed meanwhile is
	// remembered for it.
	Out State = "out"
	// Lost: it has been out for so long that its shards are made anew elsewhere, and nothing is
	// remembered for it.
	Lost State = "lost"
	// Stale is used in Map.Filled only: the slot was in at the last fill and has been out since,
	// so it keeps its place in the order but can't be believed.
	Stale State = "stale"
)

// Slot is one place for a drive.
type Slot struct {
	Drive         string `json:"drive"` // the drive's UUID
	CapacityBytes int64  `json:"capacityBytes"`
	State         State  `json:"state"`
	// Filled is the state as of the last complete fill (Stale if it went out since).
	Filled State `json:"filled"`
}

// Map is the state of a pool's slots at an epoch. It is stored as JSON on every drive that is in.
type Map struct {
	Epoch  uint64         `json:"epoch"`
	Pool   string         `json:"pool"` // the pool's UUID
	Scheme erasure.Scheme `json:"scheme"`
	Groups int            `json:"groups"`
	Slots  []Slot         `json:"slots"`
	// Unswept: drives may hold records of groups that are theirs no more.
	Unswept bool `json:"unswept,omitempty"`
}

// ErrInvalidMap marks a map that can't be one.
var ErrInvalidMap = errors.New("invalid map")

// Validate checks the limits of a map that comes from a drive.
func (m *Map) Validate() error {
	switch {
	case m.Groups < 1 || m.Groups > maxGroups:
		return fmt.Errorf("%w: %d groups", ErrInvalidMap, m.Groups)
	case len(m.Slots) < 1 || len(m.Slots) > MaxSlots:
		return fmt.Errorf("%w: %d slots", ErrInvalidMap, len(m.Slots))
	}
	if err := m.Scheme.Validate(); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidMap, err)
	}
	for i, s := range m.Slots {
		if s.CapacityBytes <= 0 || s.CapacityBytes > maxCapacity {
			return fmt.Errorf("%w: slot %d: capacity %d", ErrInvalidMap, i, s.CapacityBytes)
		}
		if s.State != In && s.State != Out && s.State != Lost {
			return fmt.Errorf("%w: slot %d: state %q", ErrInvalidMap, i, s.State)
		}
		if s.Filled != In && s.Filled != Out && s.Filled != Stale {
			return fmt.Errorf("%w: slot %d: filled %q", ErrInvalidMap, i, s.Filled)
		}
	}
	return nil
}

// Clone returns a copy that shares nothing.
func (m *Map) Clone() *Map {
	c := *m
	c.Slots = slices.Clone(m.Slots)
	return &c
}

// Without returns the map of the next epoch, with those slots out.
func (m *Map) Without(slots ...int) *Map {
	c := m.Clone()
	c.Epoch++
	for _, i := range slots {
		c.Slots[i].State = Out
		if c.Slots[i].Filled == In {
			c.Slots[i].Filled = Stale
		}
	}
	return c
}

// Lose returns the map of the next epoch, with that slot given up.
func (m *Map) Lose(slot int) *Map {
	c := m.Clone()
	c.Epoch++
	c.Slots[slot].State = Lost
	return c
}

// Replace returns the map of the next epoch, with another drive in that slot: out, as one that is to be asked in. The
// capacity stays, whatever the drive has: the order of all slots depends on it.
func (m *Map) Replace(slot int, drive string) *Map {
	c := m.Without(slot)
	c.Slots[slot].Drive = drive
	return c
}

// Restore returns the map of the next epoch, with that slot in and believed: its drive has all
// that it should. Others may have what was its while it was away.
func (m *Map) Restore(slot int) *Map {
	c := m.With(slot)
	c.Slots[slot].Filled = In
	c.Unswept = true
	return c
}

// Swept returns the map of the next epoch, once every drive holds records of its own groups only.
func (m *Map) Swept() *Map {
	c := m.Clone()
	c.Epoch++
	c.Unswept = false
	return c
}

// DiffersOnlyIn says whether the slots of two maps of one pool stand alike, but for that one.
func (m *Map) DiffersOnlyIn(other *Map, slot int) bool {
	for i, s := range m.Slots {
		if o := other.Slots[i]; i != slot && (s.State == In) != (o.State == In) {
			return false
		}
	}
	return len(m.Slots) == len(other.Slots)
}

// With returns the map of the next epoch, with that slot in but not filled.
func (m *Map) With(slot int) *Map {
	c := m.Clone()
	c.Epoch++
	c.Slots[slot].State = In
	return c
}

// FilledNow returns the map of the next epoch, after a fill of m is complete. Who was believed until then need
// not be a member any more.
func (m *Map) FilledNow() *Map {
	c := m.Clone()
	c.Epoch++
	c.Unswept = true
	for i := range c.Slots {
		c.Slots[i].Filled = filled(c.Slots[i].State)
	}
	return c
}

// NeedsFill says whether some group may have a member without its records.
func (m *Map) NeedsFill() bool {
	for _, s := range m.Slots {
		if filled(s.State) != s.Filled {
			return true
		}
	}
	return false
}

// filled is what Filled is after a fill.
func filled(s State) State {
	if s == In {
		return In
	}
	return Out
}

// CountIn returns the number of slots that are in.
func (m *Map) CountIn() int {
	n := 0
	for _, s := range m.Slots {
		if s.State == In {
			n++
		}
	}
	return n
}

// View is a Map with the answers worked out. It is immutable.
type View struct {
	*Map
	order   [][]uint8 // by group: all slots, best first
	members [][]uint8 // by group: the first m+1 slots that are in
	reads   [][]uint8 // by group: the slots that can be believed
	targets [][]uint8 // by group: members and reads together
}

// NewView works out a map's answers. The order of slots is taken from prev, when prev has the
// same slots.
func NewView(m *Map, prev *View) *View {
	v := &View{Map: m}
	if prev != nil && sameShape(prev.Map, m) {
		v.order = prev.order
	} else {
		v.order = make([][]uint8, m.Groups)
		for g := range v.order {
			v.order[g] = groupOrder(m, g)
		}
	}
	v.members = make([][]uint8, m.Groups)
	v.reads = make([][]uint8, m.Groups)
	v.targets = make([][]uint8, m.Groups)
	for g := range v.order {
		v.members[g] = v.firstIn(g, m.Copies())
		v.reads[g] = v.believed(g)
		v.targets[g] = union(v.members[g], v.reads[g])
	}
	return v
}

// Copies is the number of drives that hold each index record: m+1.
func (m *Map) Copies() int { return m.Scheme.Parity + 1 }

// GroupOf returns the placement group of a key of a bucket.
func (v *View) GroupOf(bucket uint64, key string) int {
	return int(xxh3.HashStringSeed(key, bucket) % uint64(v.Groups))
}

// GroupOfBytes is GroupOf for a key that is at hand as bytes.
func (v *View) GroupOfBytes(bucket uint64, key []byte) int {
	return int(xxh3.HashSeed(key, bucket) % uint64(v.Groups))
}

// Complete says whether every group has a member that can be believed.
func (v *View) Complete() bool {
	return !slices.ContainsFunc(v.reads, func(r []uint8) bool { return len(r) == 0 })
}

// Members returns the slots that hold the group's records once a fill is complete.
func (v *View) Members(group int) []uint8 { return v.members[group] }

// Reads returns the slots that hold all of the group's records now, the leader first. It is
// empty when none is left.
func (v *View) Reads(group int) []uint8 { return v.reads[group] }

// Targets returns the slots to which a mutation of the group must go.
func (v *View) Targets(group int) []uint8 { return v.targets[group] }

// AllIn returns the slots that are in.
func (v *View) AllIn() []uint8 {
	var in []uint8
	for i, s := range v.Slots {
		if s.State == In {
			in = append(in, uint8(i))
		}
	}
	return in
}

// Lead returns the slot that speaks for the group in a listing, or -1.
func (v *View) Lead(group int) int {
	if r := v.reads[group]; len(r) > 0 {
		return int(r[0])
	}
	return -1
}

// SegmentSlots returns the scheme and the slots for a new segment, from the order of the group
// that the segment's identity falls in; skip names slots to pass over (full ones, say). With too
// few slots for the pool's scheme it is the widest k'+m that fits; ok is false below 1+m.
func (v *View) SegmentSlots(id []byte, skip func(slot int) bool) (erasure.Scheme, []uint8, bool) {
	order := v.order[xxh3.Hash(id)%uint64(v.Groups)]
	want := v.Scheme.Data + v.Scheme.Parity
	slots := make([]uint8, 0, want)
	for _, s := range order {
		if len(slots) < want && v.Slots[s].State == In && (skip == nil || !skip(int(s))) {
			slots = append(slots, s)
		}
	}
	if len(slots) < 1+v.Scheme.Parity {
		return erasure.Scheme{}, nil, false
	}
	return erasure.Scheme{Data: len(slots) - v.Scheme.Parity, Parity: v.Scheme.Parity}, slots, true
}

// SegmentOrder returns all slots that are in, in the order in which they are to take a shard of the segment.
func (v *View) SegmentOrder(id []byte) []uint8 {
	return slices.DeleteFunc(slices.Clone(v.order[xxh3.Hash(id)%uint64(v.Groups)]), func(s uint8) bool {
		return v.Slots[s].State != In
	})
}

func (v *View) firstIn(group, n int) []uint8 {
	first := make([]uint8, 0, n)
	for _, s := range v.order[group] {
		if v.Slots[s].State == In && len(first) < n {
			first = append(first, s)
		}
	}
	return first
}

// believed takes the members as of the last fill, and of those the ones that were in ever since.
func (v *View) believed(group int) []uint8 {
	var b []uint8
	n := 0
	for _, s := range v.order[group] {
		if v.Slots[s].Filled == Out || n == v.Copies() {
			continue
		}
		n++
		if v.Slots[s].Filled == In && v.Slots[s].State == In {
			b = append(b, s)
		}
	}
	return b
}

func union(a, b []uint8) []uint8 {
	u := slices.Clone(a)
	for _, s := range b {
		if !slices.Contains(u, s) {
			u = append(u, s)
		}
	}
	return u
}

func sameShape(a, b *Map) bool {
	return a.Groups == b.Groups && slices.EqualFunc(a.Slots, b.Slots, func(x, y Slot) bool {
		return x.CapacityBytes == y.CapacityBytes
	})
}

// groupOrder sorts the slots by weighted rendezvous hashing: slot s scores -w/ln(u) with u
// uniform in (0,1) from the hash of group and slot, and w the capacity.
func groupOrder(m *Map, group int) []uint8 {
	scores := make([]float64, len(m.Slots))
	order := make([]uint8, len(m.Slots))
	var b [16]byte
	for i, s := range m.Slots {
		binary.BigEndian.PutUint64(b[:], uint64(group))
		binary.BigEndian.PutUint64(b[8:], uint64(i))
		u := (float64(xxh3.Hash(b[:])>>11) + 0.5) / (1 << 53)
		scores[i] = -float64(s.CapacityBytes) / math.Log(u)
		order[i] = uint8(i)
	}
	slices.SortStableFunc(order, func(a, b uint8) int {
		switch {
		case scores[a] > scores[b]:
			return -1
		case scores[a] < scores[b]:
			return 1
		}
		return int(a) - int(b)
	})
	return order
}
