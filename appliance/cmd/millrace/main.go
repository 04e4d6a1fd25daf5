// Command millrace is the whole product in one program: the appliance (serve), an S3 client (get,
// put, ls, rm, mb, rb), and a load generator (bench).
//
// It is a table of sub-commands over the packages that do the work; nothing is decided here but what
// flags mean and how results are printed. Invariant: data goes to standard output and everything
// else to standard error, and the exit code is 0 for success, 1 for a failure, 2 for wrong usage.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// version is set by the linker.
var version = "unknown"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// After the first signal the next one has its usual effect and ends the process at once.
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, &environment{
		args: os.Args[1:], stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, getenv: os.Getenv,
		terminal: isTerminal(os.Stderr),
	}))
}

// isTerminal tells whether a progress bar makes sense.
func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
