package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// piece is a test that takes half a minute or so.
type piece struct {
	name string
	pkg  string // its folder
	test string // a pattern of -test.run
	seed string // the flag that takes the seed; "" for a test that takes none
	args []string
	// passes is what the tests that pass count as, if they keep no tally.
	passes string
}

const (
	objectTests  = "./appliance/object"
	tortureTests = "./appliance/torture"
)

func pieces() []piece {
	return []piece{
		{name: "kill -9", pkg: tortureTests, test: "^TestKill$", seed: "-kill-seed", args: []string{"-kills", "25"}},
		{name: "power cuts", pkg: objectTests, test: "^TestPowerCut$", seed: "-crash-seed",
			args: []string{"-crash-points", "120"}},
		{name: "power cuts with a drive away", pkg: objectTests, test: "^TestPowerCutWithADriveAway$",
			seed: "-crash-seed", args: []string{"-crash-points", "400"}},
		{name: "absences", pkg: objectTests, test: "^(TestShortAbsence|TestLongAbsence|TestFreedWhileAway|" +
			"TestFreeRecordsWait|TestStandInIsNoSource|TestFreedWhileFilling|TestUploadsClearedWhileAway)$",
			args: []string{"-test.count=5"}, passes: "absences"},
		{name: "full pools", pkg: objectTests, test: "^TestFull", passes: "full_pools"},
		{name: "full pool of the process", pkg: tortureTests, test: "^TestFullServer$", passes: "full_pools"},
		{name: "histories", pkg: objectTests, test: "^TestHistory$", seed: "-history-seed",
			args: []string{"-histories", "12"}},
		{name: "failing drives", pkg: objectTests, test: "^TestFaults$", args: []string{"-fault-runs", "12"},
			passes: "faults"},
	}
}

// pieceTimeout is when a test is taken for one that hangs.
const pieceTimeout = 10 * time.Minute

// session is what one run of the command keeps.
type session struct {
	dir      string // of the compiled tests
	millrace string
	goTool   string
	tally    tally
	seeds    []uint64
}

// compile makes a binary of the tests of each package.
func (s *session) compile(ctx context.Context) error {
	for _, p := range pieces() {
		if _, err := os.Stat(s.binary(p)); err == nil {
			continue
		}
		cmd := exec.CommandContext(ctx, s.goTool, "test", "-c", "-o", s.binary(p), p.pkg)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("compile the tests of %s: %w\n%s", p.pkg, err, out)
		}
	}
	return nil
}

func (s *session) binary(p piece) string { return filepath.Join(s.dir, filepath.Base(p.pkg)+".test") }

// do runs one piece. Its error has all that the tests said, and how to run them again.
func (s *session) do(ctx context.Context, p piece, seed uint64) error {
	args := slices.Clone(p.args)
	if p.seed != "" {
		args = append(args, p.seed, strconv.FormatUint(seed, 10))
	}
	if len(s.seeds) == 0 || s.seeds[len(s.seeds)-1] != seed {
		s.seeds = append(s.seeds, seed)
	}
	timeout := fmt.Sprintf("-test.timeout=%v", pieceTimeout)
	cmd := exec.CommandContext(ctx, s.binary(p), append([]string{"-test.v", timeout, "-test.run=" + p.test}, args...)...)
	cmd.Dir = p.pkg
	cmd.Env = append(os.Environ(), "MILLRACE_BIN="+s.millrace)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that its servers end with it
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	began := time.Now()
	err := cmd.Run()
	got := read(out.String(), p.passes)
	s.tally.add(got)
	fmt.Printf("%-29s seed %d: %v in %v\n", p.name, seed, got, time.Since(began).Round(time.Second/10))
	switch {
	case ctx.Err() != nil:
		return errors.New("broken off")
	case err != nil:
		again := fmt.Sprintf("go test %s -count=1 -v -run '%s' -args %s", p.pkg, p.test, strings.Join(args, " "))
		return fmt.Errorf("%s: %w\n%s\nagain: %s", p.name, err, out.String(), again)
	case len(got) == 0:
		return fmt.Errorf("%s: no test has run\n%s", p.name, out.String())
	}
	return nil
}

// tally counts what was tried, by name.
type tally map[string]int

func (t tally) add(other tally) {
	for name, n := range other {
		t[name] += n
	}
}

// String lists the counts in the order of their names.
func (t tally) String() string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(t)) {
		list = append(list, fmt.Sprintf("%s %d", strings.ReplaceAll(name, "_", " "), t[name]))
	}
	return strings.Join(list, ", ")
}

var (
	tallyLine = regexp.MustCompile(`(?m)^.*\btally:((?: \w+=\d+)+)$`)
	passLine  = regexp.MustCompile(`(?m)^( *)--- PASS: `)
)

// read gives the counts in what tests printed: those of their lines `tally: name=1 other=2`, and, if passes is not "",
// the tests that passed under that name. A test with parts counts as its parts.
func read(out, passes string) tally {
	t := tally{}
	for _, line := range tallyLine.FindAllStringSubmatch(out, -1) {
		for _, pair := range strings.Fields(line[1]) {
			name, number, _ := strings.Cut(pair, "=")
			n, err := strconv.Atoi(number)
			if err != nil {
				continue // more digits than any count has
			}
			t[name] += n
		}
	}
	if passes != "" {
		whole, parts := 0, 0
		for _, line := range passLine.FindAllStringSubmatch(out, -1) {
			if line[1] == "" {
				whole++
			} else {
				parts++
			}
		}
		if parts == 0 {
			parts = whole
		}
		if parts > 0 {
			t[passes] = parts
		}
	}
	return t
}
