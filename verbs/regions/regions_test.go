package regions_test

import (
	"errors"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/millrace/millrace/verbs"
	"github.com/millrace/millrace/verbs/regions"
)

// region is a provider's region.
type region struct {
	*regions.Memory
	name string
}

func add(t *testing.T, s *regions.Set[region], name string, mem []byte) region {
	t.Helper()
	r, err := s.Add(mem, 3, func(m *regions.Memory) (region, error) { return region{m, name}, nil })
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func end(s *regions.Set[region], r region) error {
	none := func() error { return nil }
	return s.End(r.Memory, none, none)
}

// TestAdd: what can be a region of a set that holds [10, 20) and [20, 30) of some memory.
func TestAdd(t *testing.T) {
	mem := make([]byte, 40)
	errDevice := errors.New("device")
	for _, tc := range []struct {
		name   string
		mem    []byte
		limit  int
		device error
		want   error
	}{
		{"in front", mem[:10], 3, nil, nil},
		{"behind", mem[30:], 3, nil, nil},
		{"empty", mem[:0], 3, nil, verbs.ErrRange},
		{"the same", mem[10:20], 3, nil, verbs.ErrRange},
		{"first byte", mem[:11], 3, nil, verbs.ErrRange},
		{"last byte", mem[29:], 3, nil, verbs.ErrRange},
		{"over both", mem, 3, nil, verbs.ErrRange},
		{"too many", mem[:10], 2, nil, verbs.ErrLimit},
		{"the device fails", mem[:10], 3, errDevice, errDevice},
	} {
		s := regions.NewSet[region]()
		add(t, s, "b", mem[20:30])
		add(t, s, "a", mem[10:20])
		_, err := s.Add(tc.mem, tc.limit, func(m *regions.Memory) (region, error) { return region{m, "c"}, tc.device })
		if !errors.Is(err, tc.want) {
			t.Errorf("Add(%s) = %v; want %v", tc.name, err, tc.want)
		}
		want := 2
		if tc.want == nil {
			want = 3
		}
		if got := len(s.Close()); got != want {
			t.Errorf("%s: %d regions; want %d", tc.name, got, want)
		}
		if _, err := s.Add(make([]byte, 1), 9, nil); !errors.Is(err, verbs.ErrClosed) {
			t.Errorf("%s: Add after Close = %v; want %v", tc.name, err, verbs.ErrClosed)
		}
	}
}

// TestHold: in which regions slices are found, and that those in front of one that is in none are released.
func TestHold(t *testing.T) {
	mem := make([]byte, 40)
	for _, tc := range []struct {
		name  string
		local [][]byte
		found []string
		want  error
	}{
		{"nothing", nil, nil, nil},
		{"whole regions", [][]byte{mem[20:30], mem[5:20]}, []string{"b", "a"}, nil},
		{"single bytes at the edges", [][]byte{mem[5:6], mem[19:20], mem[29:30]}, []string{"a", "a", "b"}, nil},
		{"an empty slice of no region", [][]byte{mem[:0], mem[7:8]}, []string{"a"}, nil},
		{"in front", [][]byte{mem[7:8], mem[4:6]}, []string{"a"}, verbs.ErrNotRegistered},
		{"behind", [][]byte{mem[7:8], mem[29:31]}, []string{"a"}, verbs.ErrNotRegistered},
		{"over two regions", [][]byte{mem[7:8], mem[19:21]}, []string{"a"}, verbs.ErrNotRegistered},
	} {
		s := regions.NewSet[region]()
		a, b := add(t, s, "a", mem[5:20]), add(t, s, "b", mem[20:30])
		var found []string
		err := s.Hold(tc.local, func(r region, _ []byte) { found = append(found, r.name) })
		if diff := cmp.Diff(tc.want, err, cmpopts.EquateErrors()); diff != "" {
			t.Errorf("%s: Hold: %s", tc.name, diff)
		}
		if diff := cmp.Diff(tc.found, found); diff != "" {
			t.Errorf("%s: regions: %s", tc.name, diff)
		}
		if err == nil {
			s.Release(tc.local)
		}
		for _, r := range []region{a, b} { // would wait for ever if something were held
			if err := end(s, r); err != nil {
				t.Errorf("%s: End = %v", tc.name, err)
			}
		}
	}
}

// TestEnd: bindings are revoked first, the device is told when nothing is held any more, and all callers get the error.
func TestEnd(t *testing.T) {
	s := regions.NewSet[region]()
	mem := make([]byte, 10)
	r := add(t, s, "a", mem)
	local := [][]byte{mem[2:4]}
	if err := s.Hold(local, nil); err != nil {
		t.Fatal(err)
	}
	if err := r.AddBinding(func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	errDevice := errors.New("device")
	var mu sync.Mutex
	var did []string
	did1 := func(what string) { mu.Lock(); did = append(did, what); mu.Unlock() }
	revoke := func() error {
		if err := r.AddBinding(func() error { did1("bound"); return nil }); !errors.Is(err, verbs.ErrClosed) {
			t.Errorf("AddBinding while ending = %v; want %v", err, verbs.ErrClosed)
		}
		if err := s.Hold(local, nil); !errors.Is(err, verbs.ErrNotRegistered) {
			t.Errorf("Hold while ending = %v; want %v", err, verbs.ErrNotRegistered)
		}
		did1("revoke")
		go func() { did1("release"); s.Release(local) }()
		return nil
	}
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			err := s.End(r.Memory, revoke, func() error { did1("deregister"); return errDevice })
			if !errors.Is(err, errDevice) {
				t.Errorf("End = %v; want %v", err, errDevice)
			}
		})
	}
	wg.Wait()
	if diff := cmp.Diff([]string{"revoke", "release", "deregister"}, did); diff != "" {
		t.Error(diff)
	}
	add(t, s, "again", mem)
}

// TestHoldAllocates: nothing.
func TestHoldAllocates(t *testing.T) {
	s := regions.NewSet[region]()
	mem := make([]byte, 10)
	r := add(t, s, "a", mem)
	local, bytes := [][]byte{mem[:1], mem[9:]}, 0
	n := testing.AllocsPerRun(100, func() {
		if err := s.Hold(local, func(_ region, b []byte) { bytes += len(b) }); err != nil {
			t.Fatal(err)
		}
		s.Release(local)
	})
	if n != 0 {
		t.Errorf("Hold and Release make %v allocations; want 0", n)
	}
	if err := end(s, r); err != nil || bytes == 0 {
		t.Errorf("End = %v, %d bytes", err, bytes)
	}
}

// TestCheckBind: what of a region of 10 bytes can be bound.
func TestCheckBind(t *testing.T) {
	r := add(t, regions.NewSet[region](), "a", make([]byte, 10))
	for _, tc := range []struct {
		off, n int64
		access verbs.Access
		want   error
	}{
		{0, 10, verbs.RemoteRead, nil},
		{10, 0, verbs.RemoteWrite, nil},
		{-1, 5, verbs.RemoteRead, verbs.ErrRange},
		{5, -1, verbs.RemoteRead, verbs.ErrRange},
		{5, 6, verbs.RemoteRead, verbs.ErrRange},
		{11, 0, verbs.RemoteRead, verbs.ErrRange},
		{5, 1<<63 - 1, verbs.RemoteRead, verbs.ErrRange},
		{0, 10, verbs.Scratch, verbs.ErrAccess},
	} {
		if got := r.CheckBind(tc.off, tc.n, tc.access); !errors.Is(got, tc.want) {
			t.Errorf("CheckBind(%d, %d, %d) = %v; want %v", tc.off, tc.n, tc.access, got, tc.want)
		}
	}
}
