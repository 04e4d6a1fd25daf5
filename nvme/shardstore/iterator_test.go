package shardstore

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
)

// scanRig is a store with records of even numbers that stay; those of odd numbers come and go.
type scanRig struct {
	t   *testing.T
	s   *Store
	rng *rand.Rand
}

const scanRecords = 500

func scanKey(i int) []byte   { return fmt.Appendf(nil, "key%04d", i) }
func scanValue(i int) []byte { return bytes.Repeat(scanKey(i), 1+i%400) } // some in files of their own

func newScanRig(t *testing.T) *scanRig {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := &scanRig{t: t, s: newTestDrive(t, 64<<20).open(t), rng: rand.New(rand.NewPCG(seed, 0))}
	for i := range scanRecords {
		r.commit(func(b *Batch) { b.Set(scanKey(2*i), scanValue(2*i)) })
	}
	return r
}

func (r *scanRig) commit(f func(*Batch)) {
	r.t.Helper()
	b := r.s.NewBatch()
	f(b)
	if err := r.s.Commit(context.Background(), b, false); err != nil {
		r.t.Fatal(err)
	}
}

// disturb changes a record, and may make the iterators let go.
func (r *scanRig) disturb() {
	other := 2*r.rng.IntN(scanRecords) + 1
	r.commit(func(b *Batch) {
		if r.rng.IntN(2) == 0 {
			b.Delete(scanKey(other))
		} else {
			b.Set(scanKey(other), scanValue(other))
		}
	})
	if r.rng.IntN(50) == 0 {
		if err := r.s.db.Flush(); err != nil {
			r.t.Fatal(err)
		}
	}
	if r.rng.IntN(3) == 0 {
		r.s.scans.letGo()
	}
}

// at checks the record where the iterator is, and gives its number.
func (r *scanRig) at(it *Iterator) (n int) {
	r.t.Helper()
	k := it.Key()
	if _, err := fmt.Sscanf(string(k), "key%d", &n); err != nil {
		r.t.Fatal(err)
	}
	r.disturb()
	v, err := it.Value()
	r.disturb()
	if err != nil || !bytes.Equal(k, scanKey(n)) || !bytes.Equal(v, scanValue(n)) {
		r.t.Fatalf("record %d = %q, %d bytes, %v; want its own", n, k, len(v), err)
	}
	return n
}

// TestScanLetsGo: an iterator that is made to let go of its files goes on from where it is, both ways; what it has given
// holds; and what was there during the whole walk is seen once, though other records come and go.
func TestScanLetsGo(t *testing.T) {
	r := newScanRig(t)
	for _, forward := range []bool{true, false} {
		it, err := r.s.Scan([]byte("key"), nil)
		if err != nil {
			t.Fatal(err)
		}
		start, move, first, step := it.First, it.Next, 0, 2
		if !forward {
			start, move, first, step = it.Last, it.Prev, 2*scanRecords-2, -2
		}
		r.disturb()
		seen := 0
		for ok := start(); ok; ok = move() {
			n := r.at(it)
			if n%2 != 0 {
				continue
			}
			if want := first + seen*step; n != want {
				t.Fatalf("record %d; want %d", n, want)
			}
			seen++
		}
		if it.Valid() || move() {
			t.Error("the iterator goes on past the end")
		}
		r.s.scans.letGo()
		if !it.SeekGE(scanKey(10)) || !bytes.Equal(it.Key(), scanKey(10)) {
			t.Error("SeekGE after the end does not find its key")
		}
		if err := it.Close(); err != nil || seen != scanRecords {
			t.Errorf("walk saw %d records, %v; want %d, nil", seen, err, scanRecords)
		}
	}
	if n := len(r.s.scans.open); n != 0 {
		t.Errorf("%d iterators are open; want 0", n)
	}
}

// TestScanLetsGoAtOnce is for the race detector.
func TestScanLetsGoAtOnce(t *testing.T) {
	d := newTestDrive(t, 64<<20)
	s := d.open(t)
	defer s.Close()
	for i := range 300 {
		b := s.NewBatch()
		b.Set(fmt.Appendf(nil, "%04d", i), fmt.Appendf(nil, "value %d", i))
		if err := s.Commit(context.Background(), b, false); err != nil {
			t.Fatal(err)
		}
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				s.scans.letGo()
			}
		}
	}()
	for range 20 {
		it, err := s.Scan(nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for it.First(); it.Valid(); it.Next() {
			k, v := string(it.Key()), ""
			if value, err := it.Value(); err == nil {
				v = string(value)
			}
			if k != fmt.Sprintf("%04d", n) || v != fmt.Sprintf("value %d", n) {
				t.Fatalf("record %d = %q, %q", n, k, v)
			}
			n++
		}
		if err := it.Close(); err != nil || n != 300 {
			t.Errorf("walk saw %d records, %v; want 300, nil", n, err)
		}
	}
	close(stop)
	<-stopped
}
