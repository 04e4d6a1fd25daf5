package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/millrace/millrace/appliance/config"
)

// noise is an endless row of random bytes, the same every time.
func noise() *rand.ChaCha8 { return rand.NewChaCha8([32]byte{'d', 'e', 'm', 'o'}) }

// server is the appliance that is shown.
type server struct {
	cmd            *exec.Cmd
	log            bytes.Buffer
	done           chan error
	endpoint, mgmt string
	credentials    string
}

// startTime is how long the server may take to be ready, and to end.
const startTime = 20 * time.Second

func readyLine() *regexp.Regexp {
	return regexp.MustCompile(`^millrace: ready s3=(\S+) mgmt=(\S+) rdma=soft`)
}

// startServer serves a new JBOF with space for two objects of the size.
func startServer(ctx context.Context, millrace, root string, size int64) (*server, error) {
	dir := filepath.Join(root, "jbof")
	// Both objects with their parity are three times the size, over six drives; each drive needs some more.
	driveSize := config.Size(size/2 + 256<<20)
	s := &server{done: make(chan error, 1), credentials: filepath.Join(dir, "credentials")}
	s.cmd = exec.Command(millrace, "serve", "--dir", dir, "--drives", strconv.Itoa(drives), "--scheme", scheme,
		"--drive-size", strconv.FormatInt(int64(driveSize), 10), "--listen", "127.0.0.1:0", "--mgmt-listen", "127.0.0.1:0",
		"--rdma", "soft")
	s.cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "MILLRACE_ROOT_") })
	s.cmd.Stderr = &s.log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a signal from the terminal is passed on by stop
	stdout, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	ready := make(chan []string, 1)
	go func() {
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			if m := readyLine().FindStringSubmatch(lines.Text()); m != nil {
				ready <- m
			}
		}
		s.done <- s.cmd.Wait()
	}()
	select {
	case m := <-ready:
		s.endpoint, s.mgmt = m[1], m[2]
		return s, nil
	case err = <-s.done:
		s.done <- err
		err = fmt.Errorf("the server ended: %w\n%s", err, s.log.String())
	case <-time.After(startTime):
		err = errors.New("the server is not ready in time")
	case <-ctx.Done():
		err = ctx.Err()
	}
	return nil, errors.Join(err, s.stop())
}

// stop ends the server and waits for it.
func (s *server) stop() error {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-s.done:
		return nil
	case <-time.After(startTime):
		_ = s.cmd.Process.Kill()
		<-s.done
		return errors.New("the server did not end after SIGTERM")
	}
}

// command runs the client command and returns what it prints, and the CPU time that it took.
func (d *demo) command(ctx context.Context, args ...string) (result, error) {
	cmd := exec.CommandContext(ctx, d.millrace, args...)
	cmd.Args = append(cmd.Args, "--credentials", d.server.credentials)
	cmd.Env = append(os.Environ(), "AWS_ENDPOINT_URL="+d.server.endpoint)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return result{}, fmt.Errorf("millrace %s: %w\n%s", strings.Join(args, " "), errors.Join(err, ctx.Err()), stderr.String())
	}
	return result{output: out, cpu: cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()}, nil
}

// result is what a command gave.
type result struct {
	output []byte
	cpu    time.Duration
}
