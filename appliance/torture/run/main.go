// Command run torments the engine for as long as asked: kill -9 of the real process, power cuts at any write, drives
// that go and come back, drives that fail, and histories of concurrent calls, in turn, each time with a fresh seed.
//
// It holds no test itself: it runs those that `make test` runs in their short form, compiled once. It measures
// nothing, and needs neither root nor a device.
//
// Invariant: it ends with 0 only if every test that it started has passed. At the first that has not, it prints how
// to run that one again, and ends.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

func main() {
	length := flag.Duration("for", 10*time.Minute, "start nothing more after so long")
	seed := flag.Uint64("seed", 0, "the seed of the first round; 0 means a fresh one")
	millrace := flag.String("millrace", "bin/millrace", "the binary to kill")
	goTool := flag.String("go", "go", "the go command that compiles the tests")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *seed == 0 {
		*seed = uint64(time.Now().UnixNano())
	}
	if err := run(ctx, *length, *seed, *millrace, *goTool); err != nil {
		fmt.Fprintln(os.Stderr, "torture:", err)
		os.Exit(1)
	}
}

// run does rounds of all pieces until the time is over.
func run(ctx context.Context, length time.Duration, seed uint64, millrace, goTool string) error {
	binary, err := filepath.Abs(millrace)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "millrace-torture-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	s := &session{dir: dir, millrace: binary, goTool: goTool, tally: tally{}}
	if err := s.compile(ctx); err != nil {
		return err
	}
	began := time.Now()
	defer func() { fmt.Printf("%v: %v\nseeds: %v\n", time.Since(began).Round(time.Second), s.tally, s.seeds) }()
	for ; ; seed++ {
		for _, p := range pieces() {
			if time.Since(began) >= length {
				return nil
			}
			if err := s.do(ctx, p, seed); err != nil {
				return err
			}
		}
	}
}
