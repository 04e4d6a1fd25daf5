package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// clockTick is the unit of CPU times in /proc, fixed on Linux for programs.
const clockTick = 10 * time.Millisecond

func (s *server) proc(name string) string { return fmt.Sprintf("/proc/%d/%s", s.cmd.Process.Pid, name) }

// cpu is the CPU time that the server has used since its start, with that of its system calls.
func (s *server) cpu() (time.Duration, error) {
	content, err := os.ReadFile(s.proc("stat"))
	if err != nil {
		return 0, err
	}
	// The name of the program, in parentheses, may hold anything.
	fields := strings.Fields(string(content[strings.LastIndexByte(string(content), ')')+1:]))
	if len(fields) < 13 {
		return 0, errors.New("stat of the process: too few fields")
	}
	var ticks int64
	for _, field := range fields[11:13] { // utime and stime
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * clockTick, nil
}

// resetPeak makes the peak of the resident memory count anew.
func (s *server) resetPeak() error { return os.WriteFile(s.proc("clear_refs"), []byte("5"), 0) }

// peak is the largest resident memory since resetPeak, in bytes.
func (s *server) peak() (int64, error) {
	kib, err := s.procNumber("status", "VmHWM:")
	return kib << 10, err
}

// procNumber reads the number behind a name in a file of the process.
func (s *server) procNumber(file, name string) (int64, error) {
	content, err := os.ReadFile(s.proc(file))
	if err != nil {
		return 0, err
	}
	for _, line := range strings.Split(string(content), "\n") {
		if rest, ok := strings.CutPrefix(line, name); ok {
			fields := strings.Fields(rest)
			if len(fields) == 0 {
				break
			}
			return strconv.ParseInt(fields[0], 10, 64)
		}
	}
	return 0, fmt.Errorf("no %s in %s", name, s.proc(file))
}
