package shardstore

import (
	"errors"
	"math/rand/v2"
	"testing"
)

const testUnits = zoneUnits + 20000

func newTestAllocator() *allocator {
	return newAllocator(reservedBytes, reservedBytes+testUnits*AllocUnitBytes)
}

// check looks at everything that the allocator keeps, against a map of the units in use.
func (a *allocator) check(t *testing.T, used []bool) {
	t.Helper()
	free := int64(0)
	for zi, z := range a.zones {
		longest, end := uint32(0), int64(-1)
		for _, r := range z.free {
			if int64(r.start) <= end || r.length == 0 {
				t.Fatalf("zone %d: run %v after %d", zi, r, end)
			}
			end = int64(r.start) + int64(r.length)
			longest = max(longest, r.length)
			free += int64(r.length)
			for u := r.start; u < r.start+r.length; u++ {
				if used[zi*zoneUnits+int(u)] {
					t.Fatalf("zone %d: unit %d is free and in use", zi, u)
				}
			}
		}
		if a.longest[a.leaves+zi] != longest {
			t.Fatalf("zone %d: longest %d; want %d", zi, a.longest[a.leaves+zi], longest)
		}
	}
	for i := 1; i < a.leaves; i++ {
		if a.longest[i] != max(a.longest[2*i], a.longest[2*i+1]) {
			t.Fatalf("tree node %d is wrong", i)
		}
	}
	inUse := int64(0)
	for _, u := range used {
		if u {
			inUse++
		}
	}
	if free != a.freeUnits.Load() || free+inUse != a.totalUnits {
		t.Fatalf("%d free, %d counted, %d in use of %d", free, a.freeUnits.Load(), inUse, a.totalUnits)
	}
}

// mark notes what an extent takes or gives back.
func mark(t *testing.T, used []bool, extents []Extent, value bool) {
	t.Helper()
	for _, e := range extents {
		first := (e.OffsetBytes - reservedBytes) / AllocUnitBytes
		for u := first; u < first+e.LengthBytes/AllocUnitBytes; u++ {
			if used[u] == value {
				t.Fatalf("unit %d: in use = %v already", u, value)
			}
			used[u] = value
		}
	}
}

func TestAllocatorRandom(t *testing.T) {
	rng := testRand(t)
	a, used := newTestAllocator(), make([]bool, testUnits)
	var held [][]Extent
	for i := range 3000 {
		n := int64(1 + rng.IntN(64))
		if rng.IntN(4) == 0 {
			n = int64(1 + rng.IntN(MaxShardBytes/AllocUnitBytes))
		}
		if extents := a.alloc(n * AllocUnitBytes); extents != nil {
			if units(extents) != n {
				t.Fatalf("alloc of %d units gave %d", n, units(extents))
			}
			if len(extents) == 1 && n >= alignUnits && i < 5 && extents[0].OffsetBytes%BlockBytes != 0 {
				t.Errorf("alloc of %d units in an empty area at %d; want it aligned", n, extents[0].OffsetBytes)
			}
			mark(t, used, extents, true)
			held = append(held, extents)
		} else if a.freeUnits.Load() > int64(len(a.zones))*MaxShardBytes/AllocUnitBytes*4 {
			t.Fatalf("alloc of %d units failed with %d free", n, a.freeUnits.Load())
		}
		for len(held) > 0 && (rng.IntN(3) == 0 || a.freeUnits.Load() < 1000) {
			j := rng.IntN(len(held))
			mark(t, used, held[j], false)
			a.release(held[j])
			held[j] = held[len(held)-1]
			held = held[:len(held)-1]
		}
		if i%400 == 0 {
			a.check(t, used)
		}
	}
	rebuilt := newTestAllocator()
	rng.Shuffle(len(held), func(i, j int) { held[i], held[j] = held[j], held[i] })
	for _, extents := range held {
		for _, e := range extents {
			if err := rebuilt.reserve(e); err != nil {
				t.Fatal(err)
			}
		}
	}
	rebuilt.check(t, used)
	for _, extents := range held {
		mark(t, used, extents, false)
		a.release(extents)
	}
	a.check(t, used)
	if a.longest[1] != zoneUnits {
		t.Errorf("longest run %d after all is free; want a whole zone", a.longest[1])
	}
}

// TestAllocatorFragmented: with every other unit in use a shard of up to MaxExtents units fits.
func TestAllocatorFragmented(t *testing.T) {
	a := newTestAllocator()
	for u := int64(0); u < testUnits; u += 2 {
		if err := a.reserve(Extent{reservedBytes + u*AllocUnitBytes, AllocUnitBytes}); err != nil {
			t.Fatal(err)
		}
	}
	before := a.freeUnits.Load()
	if got := a.alloc((MaxExtents + 1) * AllocUnitBytes); got != nil {
		t.Errorf("alloc of more pieces than allowed = %v; want none", got)
	}
	if got := a.freeUnits.Load(); got != before {
		t.Errorf("free units after a failed alloc = %d; want %d", got, before)
	}
	if got := a.alloc(MaxExtents * AllocUnitBytes); len(got) != MaxExtents {
		t.Errorf("alloc in pieces gave %d extents; want %d", len(got), MaxExtents)
	}
}

func TestAllocatorRefuses(t *testing.T) {
	a := newTestAllocator()
	end := reservedBytes + int64(testUnits)*AllocUnitBytes
	if err := a.reserve(Extent{reservedBytes + BlockBytes, BlockBytes}); err != nil {
		t.Fatal(err)
	}
	for _, e := range []Extent{
		{0, AllocUnitBytes}, {reservedBytes - AllocUnitBytes, BlockBytes}, {end, AllocUnitBytes},
		{end - AllocUnitBytes, 2 * AllocUnitBytes}, {reservedBytes + 1, AllocUnitBytes},
		{reservedBytes, 0}, {reservedBytes, -AllocUnitBytes}, {reservedBytes, 100},
		{reservedBytes, 1 << 62}, {1 << 62, 1 << 62},
		{reservedBytes + BlockBytes, AllocUnitBytes}, {reservedBytes, 2 * BlockBytes},
		{reservedBytes + 2*BlockBytes - AllocUnitBytes, BlockBytes},
		{reservedBytes + (zoneUnits-1)*AllocUnitBytes, 2 * AllocUnitBytes}, // crosses zones
	} {
		if err := a.reserve(e); !errors.Is(err, ErrCorrupt) {
			t.Errorf("reserve(%v) = %v; want ErrCorrupt", e, err)
		}
	}
}

func BenchmarkAllocator(b *testing.B) {
	const total = 4 << 40
	a := newAllocator(reservedBytes, total)
	rng := rand.New(rand.NewPCG(1, 1))
	var held [][]Extent
	for a.freeUnits.Load() > a.totalUnits/2 { // a drive half full
		held = append(held, a.alloc(int64(1+rng.IntN(4096))*AllocUnitBytes))
	}
	b.ReportMetric(float64(len(held)), "shards")
	for b.Loop() {
		i := rng.IntN(len(held))
		a.release(held[i])
		held[i] = a.alloc(int64(1+rng.IntN(4096)) * AllocUnitBytes)
	}
}
