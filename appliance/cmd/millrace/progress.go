package main

import (
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"time"
)

// progress is a bar on a terminal; on anything else it is quiet.
type progress struct {
	w     io.Writer // nil when quiet
	name  string
	total int64 // 0 when unknown
	done  atomic.Int64
	start time.Time
	stop  chan struct{}
	ended chan struct{}
}

const progressInterval = 200 * time.Millisecond

// newProgress starts a bar for total bytes; end it with finish.
func newProgress(env *environment, quiet bool, name string, total int64) *progress {
	p := &progress{name: name, total: total, start: time.Now(), stop: make(chan struct{}), ended: make(chan struct{})}
	if !env.terminal || quiet {
		close(p.ended)
		return p
	}
	p.w = env.stderr
	go p.run()
	return p
}

// add counts bytes; it may be called from many goroutines.
func (p *progress) add(n int64) { p.done.Add(n) }

func (p *progress) run() {
	defer close(p.ended)
	ticker := time.NewTicker(progressInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			fmt.Fprintf(p.w, "\r%s\x1b[K", p.line(time.Since(p.start)))
		case <-p.stop:
			fmt.Fprintf(p.w, "\r%s\x1b[K\n", p.line(time.Since(p.start)))
			return
		}
	}
}

// line is the bar at a moment.
func (p *progress) line(elapsed time.Duration) string {
	const width = 30
	done := p.done.Load()
	rate := float64(done) / max(elapsed.Seconds(), 1e-3)
	if p.total <= 0 {
		return fmt.Sprintf("%s  %s  %s/s", p.name, mebibytes(done), mebibytes(int64(rate)))
	}
	full := int(min(done, p.total) * width / p.total)
	left := "-:--"
	if rest := p.total - done; rest >= 0 && rate > 0 {
		d := time.Duration(float64(rest) / rate * float64(time.Second)).Round(time.Second)
		left = fmt.Sprintf("%d:%02d", int(d.Minutes()), int(d.Seconds())%60)
	}
	return fmt.Sprintf("%s  [%s%s] %3d%%  %s of %s  %s/s  %s", p.name, strings.Repeat("=", full),
		strings.Repeat(" ", width-full), min(done, p.total)*100/p.total, mebibytes(done), mebibytes(p.total),
		mebibytes(int64(rate)), left)
}

func mebibytes(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }

// finish draws the last state and ends the bar.
func (p *progress) finish() {
	if p.w != nil {
		close(p.stop)
	}
	<-p.ended
}
