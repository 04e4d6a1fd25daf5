package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/pflag"

	"github.com/millrace/millrace/appliance/server"
)

// The exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

// environment is what a command may use of the process.
type environment struct {
	args           []string
	stdin          io.Reader
	stdout, stderr io.Writer
	getenv         func(string) string
	terminal       bool // stderr is one
}

// command is one row of the table.
type command struct {
	name     string
	args     string // what comes after the flags, as the help shows it
	summary  string
	details  string // further text of the help; may be ""
	examples string // one a line
	// flags registers the flags and returns what runs with them.
	flags func(fs *pflag.FlagSet) runner
}

// runner runs a command with the arguments that are left after the flags.
type runner func(ctx context.Context, env *environment, args []string) error

// commands is the table, in the order of the help text.
func commands() []command {
	return []command{
		serveCommand(), getCommand(), putCommand(), lsCommand(), rmCommand(), mbCommand(), rbCommand(),
		benchCommand(), poolCommand(), driveCommand(), fsckCommand(), dumpCommand(), rdmaCommand(),
		versionCommand(),
	}
}

// usageError is a mistake on the command line.
type usageError struct{ text string }

func (e usageError) Error() string { return e.text }

func usagef(format string, args ...any) error { return usageError{fmt.Sprintf(format, args...)} }

// run finds the command, runs it, and returns the exit code.
func run(ctx context.Context, env *environment) int {
	if len(env.args) == 0 {
		writeHelp(env.stderr)
		return exitUsage
	}
	name, rest := env.args[0], env.args[1:]
	switch name {
	case "help", "--help", "-h":
		return help(env, rest)
	case "--version":
		name = "version"
	}
	c, ok := find(name)
	if !ok {
		fmt.Fprintf(env.stderr, "millrace: unknown command %q; see millrace help\n", name)
		return exitUsage
	}
	fs := newFlagSet(c)
	runs := c.flags(fs)
	if err := fs.Parse(rest); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			writeCommandHelp(env.stdout, c, fs)
			return exitOK
		}
		fmt.Fprintf(env.stderr, "millrace %s: %v; see millrace %s --help\n", c.name, err, c.name)
		return exitUsage
	}
	err := runs(ctx, env, fs.Args())
	if err == nil {
		return exitOK
	}
	fmt.Fprintf(env.stderr, "millrace %s: %v\n", c.name, err)
	var usage usageError
	if errors.As(err, &usage) || errors.Is(err, server.ErrUsage) {
		return exitUsage
	}
	return exitFailed
}

func find(name string) (command, bool) {
	for _, c := range commands() {
		if c.name == name {
			return c, true
		}
	}
	return command{}, false
}

func newFlagSet(c command) *pflag.FlagSet {
	fs := pflag.NewFlagSet(c.name, pflag.ContinueOnError)
	fs.SetOutput(io.Discard) // run prints errors, once
	fs.Usage = func() {}
	fs.SortFlags = false
	return fs
}

func help(env *environment, args []string) int {
	if len(args) == 0 {
		writeHelp(env.stdout)
		return exitOK
	}
	c, ok := find(args[0])
	if !ok {
		fmt.Fprintf(env.stderr, "millrace: unknown command %q\n", args[0])
		return exitUsage
	}
	fs := newFlagSet(c)
	c.flags(fs)
	writeCommandHelp(env.stdout, c, fs)
	return exitOK
}

func writeHelp(w io.Writer) {
	fmt.Fprint(w, "millrace: object storage over raw drives, in one program\n\n"+
		"Usage:\n  millrace COMMAND [flags] [arguments]\n\nCommands:\n")
	for _, c := range commands() {
		fmt.Fprintf(w, "  %-8s %s\n", c.name, c.summary)
	}
	fmt.Fprintf(w, "  %-8s %s\n\nmillrace COMMAND --help tells more.\n", "help", "this text, or that of a command")
}

func writeCommandHelp(w io.Writer, c command, fs *pflag.FlagSet) {
	fmt.Fprintf(w, "millrace %s: %s\n\nUsage:\n  millrace %s", c.name, c.summary, c.name)
	if fs.HasFlags() {
		fmt.Fprint(w, " [flags]")
	}
	if c.args != "" {
		fmt.Fprint(w, " "+c.args)
	}
	fmt.Fprintln(w)
	if c.details != "" {
		fmt.Fprintf(w, "\n%s\n", strings.TrimSpace(c.details))
	}
	if c.examples != "" {
		fmt.Fprint(w, "\nExamples:\n")
		for line := range strings.SplitSeq(strings.TrimSpace(c.examples), "\n") {
			fmt.Fprintf(w, "  %s\n", strings.TrimSpace(line))
		}
	}
	if fs.HasFlags() {
		fmt.Fprintf(w, "\nFlags:\n%s", fs.FlagUsages())
	}
}

// writeJSON prints one value as one line.
func writeJSON(w io.Writer, value any) error {
	return json.NewEncoder(w).Encode(value)
}

func versionCommand() command {
	return command{name: "version", summary: "print the version", examples: "millrace version --json",
		flags: func(fs *pflag.FlagSet) runner {
			asJSON := fs.Bool("json", false, "print JSON")
			return func(_ context.Context, env *environment, args []string) error {
				if len(args) > 0 {
					return usagef("unexpected argument %q", args[0])
				}
				if *asJSON {
					return writeJSON(env.stdout, map[string]string{"version": version})
				}
				_, err := fmt.Fprintln(env.stdout, "millrace", version)
				return err
			}
		}}
}
