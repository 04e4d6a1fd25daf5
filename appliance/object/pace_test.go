package object

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestPacer(t *testing.T) {
	p := &pacer{bytesPerSecond: 1000}
	var wait time.Duration
	for range 10 {
		wait = p.owed(1000)
	}
	if wait < 9*time.Second || wait > 10*time.Second {
		t.Errorf("owed for 10,000 bytes at 1000 a second = %v; want nearly 10 s", wait)
	}
	if got := (&pacer{}).owed(1 << 40); got != 0 {
		t.Errorf("owed without a limit = %v; want 0", got)
	}
	clients := int64(0)
	p = &pacer{clients: func() int64 { return clients }}
	if got := p.rest(time.Millisecond); got != 0 {
		t.Errorf("rest without clients = %v; want 0", got)
	}
	clients = 3
	if got := p.rest(time.Millisecond); got != yieldFactor*time.Millisecond {
		t.Errorf("rest with clients = %v; want %v", got, yieldFactor*time.Millisecond)
	}
	if got := p.rest(time.Hour); got != maxRest {
		t.Errorf("rest after an hour = %v; want %v", got, maxRest)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := p.pace(ctx, 0, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("pace = %v; want Canceled", err)
	}
}

func TestMeter(t *testing.T) {
	var m meter
	if got := m.perSecond(5); got != 0 {
		t.Errorf("rate without samples = %v; want 0", got)
	}
	now := time.Now()
	m.samples[0], m.next = sample{now.Add(-2 * time.Second), 100}, 1
	if got := m.perSecond(300); got < 90 || got > 101 {
		t.Errorf("rate of 200 in 2 s = %v; want 100", got)
	}
	for i := range m.samples {
		m.samples[i] = sample{now.Add(time.Duration(i-meterSamples) * time.Second), int64(10 * i)}
	}
	m.next = 0
	if got := m.perSecond(10 * meterSamples); got < 9 || got > 10.1 {
		t.Errorf("rate of 10 a second = %v; want 10", got)
	}
	m.reset(7)
	if got := m.perSecond(7); got != 0 {
		t.Errorf("rate after a reset = %v; want 0", got)
	}
}

func TestJudgeRecord(t *testing.T) {
	a, b := []byte("a"), []byte("b")
	key := []byte("f..")
	for _, test := range []struct {
		values [][]byte
		want   string
		plain  bool
	}{
		{[][]byte{a, a, b}, "a", true},
		{[][]byte{nil, a, nil}, "", true},
		{[][]byte{a, nil}, "", false},
		{[][]byte{a, b}, "", false},
		{[][]byte{a, a, b, nil}, "", false},
	} {
		got, plain := judgeRecord(key, test.values)
		if string(got) != test.want || plain != test.plain {
			t.Errorf("judgeRecord(%q) = %q, %v; want %q, %v", test.values, got, plain, test.want, test.plain)
		}
	}
}

// TestPaceOfADrive: only what lasts makes a drive slow.
func TestPaceOfADrive(t *testing.T) {
	const usual = 2 * time.Millisecond
	now := time.Unix(1e9, 0)
	var p pace
	// reads makes one a millisecond for as long as it says, and counts how often the drive became slow or ceased to be.
	reads := func(d, last time.Duration) (changes int) {
		for end := now.Add(last); now.Before(end); now = now.Add(time.Millisecond) {
			if p.took(d, usual, now) {
				changes++
			}
		}
		return changes
	}
	for range 20 { // moments in which all reads wait
		if n := reads(30*time.Millisecond, slowFor/2) + reads(usual, slowFor/3); n != 0 || p.isSlow() {
			t.Fatalf("changes after moments of waiting = %d, slow %v; want 0, false", n, p.isSlow())
		}
	}
	if n := reads(30*time.Millisecond, 2*slowFor); n != 1 || !p.isSlow() {
		t.Errorf("changes of a drive that stays slow = %d, slow %v; want 1, true", n, p.isSlow())
	}
	if n := reads(usual, 2*slowFor); n != 1 || p.isSlow() {
		t.Errorf("changes of a drive that is fast again = %d, slow %v; want 1, false", n, p.isSlow())
	}
	for range slowReads - 1 {
		now = now.Add(slowFor)
		if p.took(time.Second, usual, now) {
			t.Error("slow after a few reads; want more to be sure")
		}
	}
}
