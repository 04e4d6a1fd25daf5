package shardstore

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
)

// TestScanLetsGo: an iterator that is made to let go of its files goes on from where it is, both ways; what it has given
// holds; and what was there during the whole walk is seen once, though other records come and go.
func TestScanLetsGo(t *testing.T) {
	d := newTestDrive(t, 64<<20)
	s := d.open(t)
	defer s.Close()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	const records = 500
	key := func(i int) []byte { return fmt.Appendf(nil, "key%04d", i) }
	value := func(i int) []byte { return bytes.Repeat(key(i), 1+i%400) } // some in files of their own
	commit := func(f func(*Batch)) {
		t.Helper()
		b := s.NewBatch()
		f(b)
		if err := s.Commit(context.Background(), b, false); err != nil {
			t.Fatal(err)
		}
	}
	for i := range records {
		commit(func(b *Batch) { b.Set(key(2*i), value(2*i)) })
	}
	disturb := func() {
		other := 2*rng.IntN(records) + 1
		commit(func(b *Batch) {
			if rng.IntN(2) == 0 {
				b.Delete(key(other))
			} else {
				b.Set(key(other), value(other))
			}
		})
		if rng.IntN(50) == 0 {
			if err := s.db.Flush(); err != nil {
				t.Fatal(err)
			}
		}
		if rng.IntN(3) == 0 {
			s.scans.letGo()
		}
	}
	for _, forward := range []bool{true, false} {
		it, err := s.Scan([]byte("key"), nil)
		if err != nil {
			t.Fatal(err)
		}
		start, move := it.First, it.Next
		if !forward {
			start, move = it.Last, it.Prev
		}
		disturb()
		seen := 0
		for ok := start(); ok; ok = move() {
			var n int
			k := it.Key()
			if _, err := fmt.Sscanf(string(k), "key%d", &n); err != nil {
				t.Fatal(err)
			}
			early := rng.IntN(2) == 0
			if !early {
				disturb()
			}
			v, err := it.Value()
			disturb()
			if err != nil || !bytes.Equal(k, key(n)) || !bytes.Equal(v, value(n)) {
				t.Fatalf("record %d = %q, %d bytes, %v; want its own", n, k, len(v), err)
			}
			if n%2 != 0 {
				continue
			}
			want := 2 * seen
			if !forward {
				want = 2*records - 2 - want
			}
			if n != want {
				t.Fatalf("record %d; want %d", n, want)
			}
			seen++
		}
		if it.Valid() || move() {
			t.Error("the iterator goes on past the end")
		}
		s.scans.letGo()
		if !it.SeekGE(key(10)) || !bytes.Equal(it.Key(), key(10)) {
			t.Error("SeekGE after the end does not find its key")
		}
		if err := it.Close(); err != nil || seen != records {
			t.Errorf("walk saw %d records, %v; want %d, nil", seen, err, records)
		}
	}
	if n := len(s.scans.open); n != 0 {
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
