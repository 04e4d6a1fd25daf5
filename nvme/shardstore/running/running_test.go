package running

import (
	"testing"
	"time"
)

func TestOldest(t *testing.T) {
	o := New()
	if age := o.Oldest(); age != 0 {
		t.Errorf("Oldest() of none = %v; want 0", age)
	}
	first := o.Start()
	time.Sleep(2 * time.Millisecond)
	var tokens []int
	for range 2 * slots { // more than are seen
		tokens = append(tokens, o.Start())
	}
	if age := o.Oldest(); age < 2*time.Millisecond {
		t.Errorf("Oldest() = %v; want that of the first", age)
	}
	o.End(first)
	for _, token := range tokens {
		o.End(token)
	}
	if age := o.Oldest(); age != 0 {
		t.Errorf("Oldest() after all = %v; want 0", age)
	}
}

func BenchmarkStartEnd(b *testing.B) {
	o := New()
	for b.Loop() {
		o.End(o.Start())
	}
}
