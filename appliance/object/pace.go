package object

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// pacer holds background work back: to a rate, and, while clients are at work, to a fifth of the time.
// It is shared by all goroutines of one kind of work.
type pacer struct {
	bytesPerSecond int64        // 0: no limit
	clients        func() int64 // how many requests are in progress; nil: it isn't known
	working        atomic.Int64 // goroutines that share it
	mu             sync.Mutex
	paid           time.Time // up to when the bytes that were moved are paid for
}

const (
	// yieldFactor is how many times as long as it worked background work rests while clients are at work.
	yieldFactor = 4
	// maxRest bounds a rest, so that work that was held up itself does not stop for long.
	maxRest = 2 * time.Second
	// paceBurst is what the rate allows after a pause.
	paceBurst = 100 * time.Millisecond
)

// pace waits after a step that moved so many bytes and took so long. The error is that of ctx.
func (p *pacer) pace(ctx context.Context, bytes int64, took time.Duration) error {
	wait := max(p.owed(bytes), p.rest(took))
	if wait <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// owed is the time that the rate asks for.
func (p *pacer) owed(bytes int64) time.Duration {
	if p.bytesPerSecond <= 0 {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if from := now.Add(-paceBurst); p.paid.Before(from) {
		p.paid = from
	}
	p.paid = p.paid.Add(time.Duration(float64(bytes) / float64(p.bytesPerSecond) * float64(time.Second)))
	return p.paid.Sub(now)
}

// rest is the time that clients ask for. Goroutines that share one CPU rest the longer.
func (p *pacer) rest(took time.Duration) time.Duration {
	if p.clients == nil || p.clients() == 0 {
		return 0
	}
	crowd := max(1, time.Duration(p.working.Load())/time.Duration(runtime.GOMAXPROCS(0)))
	return min(took*yieldFactor*crowd, maxRest)
}

// meter tells how fast a count grows, over the last half minute.
type meter struct {
	mu      sync.Mutex
	samples [meterSamples]sample
	next    int
}

type sample struct {
	at    time.Time
	count int64
}

const (
	meterSamples = 30
	meterStep    = time.Second
)

// note takes the count of now.
func (m *meter) note(count int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	if last := m.samples[(m.next+meterSamples-1)%meterSamples]; now.Sub(last.at) < meterStep {
		return
	}
	m.samples[m.next] = sample{now, count}
	m.next = (m.next + 1) % meterSamples
}

// perSecond gives the rate from the oldest sample to the count of now; 0 before there is a sample.
func (m *meter) perSecond(count int64) float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	oldest := m.samples[m.next]
	if oldest.at.IsZero() {
		oldest = m.samples[0]
	}
	d := time.Since(oldest.at).Seconds()
	if oldest.at.IsZero() || d <= 0 {
		return 0
	}
	return max(0, float64(count-oldest.count)/d)
}

// reset forgets all samples but takes the count of now.
func (m *meter) reset(count int64) {
	m.mu.Lock()
	m.samples, m.next = [meterSamples]sample{}, 0
	m.mu.Unlock()
	m.note(count)
}
