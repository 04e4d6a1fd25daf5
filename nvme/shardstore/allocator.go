package shardstore

import (
	"slices"
	"sync"
	"sync/atomic"
)

const (
	// zoneUnits is the size of a zone in allocation units (256 MiB). Free runs never cross zones,
	// which bounds every search and every shift of memory by one zone's fragments.
	zoneUnits = 256 << 20 / AllocUnitBytes
	// alignUnits is where an allocation of at least that size likes to start (64 KiB): it spares
	// drives with large indirection units a read-modify-write.
	alignUnits = BlockBytes / AllocUnitBytes
)

// run is a free run of units inside a zone.
type run struct{ start, length uint32 }

// zone is a fixed part of the data area: its free runs, ordered, never adjacent.
type zone struct{ free []run }

// allocator hands out the data area in units. It is memory only: the shard records say what is
// in use, and Open subtracts them from an allocator that starts all free.
//
// Over the zones lies a tree of the longest free run, so the lowest zone that can hold an
// allocation in one piece is found in O(log zones). First fit keeps the area packed to the front.
type allocator struct {
	mu        sync.Mutex
	baseBytes int64 // device offset of unit 0
	zones     []zone
	longest   []uint32 // binary tree; leaf i is longest[leaves+i]
	leaves    int

	totalUnits    int64
	freeUnits     atomic.Int64
	reservedUnits atomic.Int64 // handed out, and not kept or released yet
	pendingUnits  atomic.Int64
	pending       []Extent // deleted by commits that are not durable yet
	changes       uint64   // counts calls that moved space
}

// newAllocator returns an allocator of [baseBytes, endBytes), all of it free.
func newAllocator(baseBytes, endBytes int64) *allocator {
	units := (endBytes - baseBytes) / AllocUnitBytes
	a := &allocator{baseBytes: baseBytes, totalUnits: units}
	a.zones = make([]zone, (units+zoneUnits-1)/zoneUnits)
	a.leaves = 1
	for a.leaves < len(a.zones) {
		a.leaves *= 2
	}
	a.longest = make([]uint32, 2*a.leaves)
	for i := range a.zones {
		n := uint32(min(zoneUnits, units-int64(i)*zoneUnits))
		a.zones[i].free = []run{{0, n}}
		a.longest[a.leaves+i] = n
	}
	for i := a.leaves - 1; i > 0; i-- {
		a.longest[i] = max(a.longest[2*i], a.longest[2*i+1])
	}
	a.freeUnits.Store(units)
	return a
}

// alloc reserves sizeBytes, in one piece if any free run is long enough, else in the fewest and
// largest pieces. It gives nil if the space, or MaxExtents pieces of it, are not there.
func (a *allocator) alloc(sizeBytes int64) []Extent {
	need := sizeBytes / AllocUnitBytes
	a.mu.Lock()
	defer a.mu.Unlock()
	extents := a.find(need)
	if extents != nil {
		a.reservedUnits.Add(need)
		a.changes++
	}
	return extents
}

func (a *allocator) find(need int64) []Extent {
	if need > a.freeUnits.Load() {
		return nil
	}
	if need <= zoneUnits && int64(a.longest[1]) >= need {
		zi := a.lowestZone(uint32(need))
		return []Extent{a.take(zi, a.zones[zi].fit(uint32(need)))}
	}
	var extents []Extent
	for need > 0 && len(extents) < MaxExtents && a.longest[1] > 0 {
		n := uint32(min(need, int64(a.longest[1])))
		zi := a.lowestZone(n)
		extents = append(extents, a.take(zi, a.zones[zi].fit(n)))
		need -= int64(n)
	}
	if need > 0 {
		for _, e := range extents {
			a.giveBack(e)
		}
		return nil
	}
	return extents
}

// lowestZone gives the first zone with a free run of n units; there is one.
func (a *allocator) lowestZone(n uint32) int {
	i := 1
	for i < a.leaves {
		i *= 2
		if a.longest[i] < n {
			i++
		}
	}
	return i - a.leaves
}

// fit gives a place for n units: aligned if a run has room for that, else the first that fits.
func (z *zone) fit(n uint32) run {
	first := -1
	for i, r := range z.free {
		if r.length < n {
			continue
		}
		if n < alignUnits {
			return run{r.start, n}
		}
		start := (r.start + alignUnits - 1) / alignUnits * alignUnits
		if start+n <= r.start+r.length {
			return run{start, n}
		}
		if first < 0 {
			first = i
		}
	}
	return run{z.free[first].start, n}
}

// take removes the run from the zone, where it is free.
func (a *allocator) take(zi int, r run) Extent {
	was, _ := a.zones[zi].remove(r)
	a.shrunk(zi, was)
	a.freeUnits.Add(-int64(r.length))
	return Extent{
		OffsetBytes: a.baseBytes + (int64(zi)*zoneUnits+int64(r.start))*AllocUnitBytes,
		LengthBytes: int64(r.length) * AllocUnitBytes,
	}
}

// remove takes r out of the free runs, and gives the length of the run that it was part of; false if
// it was not wholly free.
func (z *zone) remove(r run) (was uint32, ok bool) {
	i, found := slices.BinarySearchFunc(z.free, r.start, compareStart)
	if !found {
		i--
	}
	if i < 0 {
		return 0, false
	}
	f := z.free[i]
	before, after := r.start-f.start, int64(f.start)+int64(f.length)-int64(r.start)-int64(r.length)
	switch {
	case r.start >= f.start+f.length || after < 0:
		return 0, false
	case before == 0 && after == 0:
		z.free = slices.Delete(z.free, i, i+1)
	case before == 0:
		z.free[i] = run{r.start + r.length, uint32(after)}
	default:
		z.free[i].length = before
		if after > 0 {
			z.free = slices.Insert(z.free, i+1, run{r.start + r.length, uint32(after)})
		}
	}
	return f.length, true
}

// add puts r back among the free runs, and gives the length of the run that it is part of now; false
// if some of it was free already.
func (z *zone) add(r run) (now uint32, ok bool) {
	i, found := slices.BinarySearchFunc(z.free, r.start, compareStart)
	end := r.start + r.length
	switch {
	case found,
		i > 0 && z.free[i-1].start+z.free[i-1].length > r.start,
		i < len(z.free) && z.free[i].start < end:
		return 0, false
	}
	joinsLeft := i > 0 && z.free[i-1].start+z.free[i-1].length == r.start
	if joinsRight := i < len(z.free) && z.free[i].start == end; joinsRight {
		r.length += z.free[i].length
		if !joinsLeft {
			z.free[i] = r
			return r.length, true
		}
		z.free = slices.Delete(z.free, i, i+1)
	}
	if joinsLeft {
		z.free[i-1].length += r.length
		return z.free[i-1].length, true
	}
	z.free = slices.Insert(z.free, i, r)
	return r.length, true
}

func compareStart(r run, start uint32) int { return int(int64(r.start) - int64(start)) }

// shrunk brings the tree up to date after part of a run of that length was taken. Only if that was
// the longest of the zone is there anything to look for.
func (a *allocator) shrunk(zi int, was uint32) {
	if was < a.longest[a.leaves+zi] {
		return
	}
	n := uint32(0)
	for _, r := range a.zones[zi].free {
		n = max(n, r.length)
	}
	a.setLongest(zi, n)
}

// setLongest sets the zone's longest run, and what follows from it up the tree.
func (a *allocator) setLongest(zi int, n uint32) {
	i := a.leaves + zi
	for a.longest[i] != n {
		a.longest[i] = n
		if i /= 2; i == 0 {
			return
		}
		n = max(a.longest[2*i], a.longest[2*i+1])
	}
}

// locate gives the zone and run of an extent; false if it is not inside one zone of the area.
func (a *allocator) locate(e Extent) (zi int, r run, ok bool) {
	off := e.OffsetBytes - a.baseBytes
	if off < 0 || off%AllocUnitBytes != 0 || e.LengthBytes <= 0 || e.LengthBytes%AllocUnitBytes != 0 {
		return 0, run{}, false
	}
	start, n := off/AllocUnitBytes, e.LengthBytes/AllocUnitBytes
	if start >= a.totalUnits || n > a.totalUnits-start || start%zoneUnits+n > zoneUnits {
		return 0, run{}, false
	}
	return int(start / zoneUnits), run{uint32(start % zoneUnits), uint32(n)}, true
}

// reserve marks an extent of a shard record as in use. An extent out of the area, or one that
// overlaps another, is corruption.
func (a *allocator) reserve(e Extent) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	zi, r, ok := a.locate(e)
	if !ok {
		return corruptf("extent %d+%d outside the data area", e.OffsetBytes, e.LengthBytes)
	}
	was, ok := a.zones[zi].remove(r)
	if !ok {
		return corruptf("extent %d+%d overlaps another", e.OffsetBytes, e.LengthBytes)
	}
	a.shrunk(zi, was)
	a.freeUnits.Add(-int64(r.length))
	return nil
}

// keep ends the reservation of extents that a commit has made part of a shard.
func (a *allocator) keep(extents []Extent) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.reservedUnits.Add(-units(extents))
	a.changes++
}

// abort gives reserved extents back.
func (a *allocator) abort(extents []Extent) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.reservedUnits.Add(-units(extents))
	a.free(extents)
}

// release gives the extents of a shard back, whose deletion is durable.
func (a *allocator) release(extents []Extent) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.free(extents)
}

// postpone notes the extents of a shard whose deletion is not durable yet.
func (a *allocator) postpone(extents []Extent) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pending = append(a.pending, extents...)
	a.pendingUnits.Add(units(extents))
	a.changes++
}

// postponed takes the list of what was postponed; it stays pending until it is settled.
func (a *allocator) postponed() []Extent {
	if a.pendingUnits.Load() == 0 {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	extents := a.pending
	a.pending = nil
	return extents
}

// settle gives back what postponed gave, once it is durable.
func (a *allocator) settle(extents []Extent) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pendingUnits.Add(-units(extents))
	a.free(extents)
}

// usage is where the units are at one moment.
type usage struct {
	free, reserved, pending int64
	changes                 uint64
}

func (a *allocator) usage() usage {
	a.mu.Lock()
	defer a.mu.Unlock()
	return usage{a.freeUnits.Load(), a.reservedUnits.Load(), a.pendingUnits.Load(), a.changes}
}

// anyFree says whether any part of the extent is free.
func (a *allocator) anyFree(e Extent) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	zi, r, ok := a.locate(e)
	return ok && slices.ContainsFunc(a.zones[zi].free, func(f run) bool {
		return f.start < r.start+r.length && r.start < f.start+f.length
	})
}

func units(extents []Extent) int64 {
	n := int64(0)
	for _, e := range extents {
		n += e.LengthBytes / AllocUnitBytes
	}
	return n
}

// free puts extents back. What is not in use can't be given back: that is a fault in this package,
// and going on would hand out space twice.
func (a *allocator) free(extents []Extent) {
	for _, e := range extents {
		a.giveBack(e)
	}
	a.changes++
}

func (a *allocator) giveBack(e Extent) {
	zi, r, ok := a.locate(e)
	now, added := uint32(0), false
	if ok {
		now, added = a.zones[zi].add(r)
	}
	if !added {
		panic("shardstore: space freed twice")
	}
	a.setLongest(zi, max(now, a.longest[a.leaves+zi]))
	a.freeUnits.Add(int64(r.length))
}
