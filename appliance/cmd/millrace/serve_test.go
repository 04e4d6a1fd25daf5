package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/mgmt/api"
)

// process is a `millrace serve` of its own.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	s3     string
	mgmt   string
	stderr bytes.Buffer
	done   chan error
}

var readyLine = regexp.MustCompile(`^millrace: ready s3=(http://127\.0\.0\.1:\d+) mgmt=(https://127\.0\.0\.1:\d+) rdma=soft$`)

// serve starts the process and waits for its ready line.
func serve(t *testing.T, args ...string) *process {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	args = append([]string{"serve", "--listen", "127.0.0.1:0", "--mgmt-listen", "127.0.0.1:0", "--arena-size", "32MiB"}, args...)
	p := &process{t: t, cmd: exec.CommandContext(ctx, os.Args[0], args...), done: make(chan error, 1)}
	p.cmd.Env = append(os.Environ(), asCommand+"=1")
	p.cmd.Stderr = &p.stderr
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stdout)
	for p.s3 == "" && lines.Scan() {
		if match := readyLine.FindStringSubmatch(lines.Text()); match != nil {
			p.s3, p.mgmt = match[1], match[2]
		}
	}
	go func() { p.done <- p.cmd.Wait() }()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // it has ended as a rule
	})
	if p.s3 == "" {
		t.Fatalf("no ready line: %v\n%s", <-p.done, &p.stderr)
	}
	return p
}

// end sends the signal and wants exit code 0.
func (p *process) end(signal syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(signal); err != nil {
		p.t.Fatal(err)
	}
	if err := <-p.done; err != nil {
		p.t.Errorf("after %v: %v; want exit 0\n%s", signal, err, &p.stderr)
	}
}

// TestServe is the whole of it: a virtual JBOF is made, filled, stopped, and started again with two
// drives pulled.
func TestServe(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "jbof")
	p := serve(t, "--dir", dir, "--drives", "6", "--drive-size", "64MiB")
	m := newMillrace(t, p.s3)
	m.env["AWS_ACCESS_KEY_ID"] = ""
	credentials := filepath.Join(dir, "credentials")
	path, data := file(t, "x", 6<<20)
	m.ok("mb", "s3://bucket", "--credentials", credentials)
	m.ok("put", path, "s3://bucket/x", "--part-size", "5MiB", "--credentials", credentials)
	if _, stderr, code := m.run("fsck", dir); code != exitFailed || !strings.Contains(stderr, "in use") {
		t.Errorf("fsck of a pool that is served: exit %d, %q; want 1 and in use", code, stderr)
	}
	p.end(syscall.SIGTERM)
	if got := m.ok("fsck", "--deep", dir); !strings.Contains(got, "the pool is sound\n") {
		t.Errorf("fsck = %q; want sound", got)
	}

	for _, name := range []string{"02", "05"} {
		if err := os.Rename(filepath.Join(dir, "drives", name), filepath.Join(t.TempDir(), name)); err != nil {
			t.Fatal(err)
		}
	}
	if got := m.ok("fsck", dir); !strings.Contains(got, "the pool is sound; missing: slot 02, 05\n") {
		t.Errorf("fsck with two drives gone = %q; want sound, and missing", got)
	}
	if got := m.ok("dump", dir, "--bucket", "bucket", "--key", "x", "--kind", "object"); strings.Count(got, "object  s3://bucket/x") < 1 {
		t.Errorf("dump = %q; want the object", got)
	}
	p = serve(t, "--dir", dir, "--log-format", "json")
	m.env["AWS_ENDPOINT_URL"] = p.s3
	checkPoolStatus(t, m, p, dir)
	if got := m.ok("get", "s3://bucket/x", "-", "--credentials", credentials); got != string(data) {
		t.Errorf("with two drives gone: %d bytes; want %d", len(got), len(data))
	}
	p.end(syscall.SIGINT)
	if !strings.Contains(p.stderr.String(), `"msg":"drive is missing"`) {
		t.Errorf("log says nothing of the missing drives:\n%s", &p.stderr)
	}
	if _, err := os.Stat(filepath.Join(dir, "drives", "02")); err == nil {
		t.Error("a missing drive was made anew")
	}
}

// checkPoolStatus asks the management address of a pool of which slots 2 and 5 are missing.
func checkPoolStatus(t *testing.T, m *millrace, p *process, dir string) {
	t.Helper()
	var s poolStatus
	if err := json.Unmarshal([]byte(m.ok("pool", "status", dir, "--mgmt", p.mgmt, "--json")), &s); err != nil {
		t.Fatal(err)
	}
	if s.Pool.Status != api.Degraded || s.Pool.Drives["in"] != 4 || s.Pool.Drives["missing"] != 2 || s.Pool.Scheme != "4+2" ||
		len(s.Drives) != 6 || s.Drives[2].State != "missing" || s.Drives[0].UsedBytes == 0 || s.Drives[0].Path == "" {
		t.Errorf("pool status = %+v; want degraded with four drives of six", s)
	}
	if got := m.ok("pool", "scrub", dir, "--mgmt", p.mgmt); !strings.Contains(got, "begins") {
		t.Errorf("pool scrub = %q", got)
	}
	for range 500 {
		if err := json.Unmarshal([]byte(m.ok("pool", "status", dir, "--mgmt", p.mgmt, "--json")), &s); err != nil {
			t.Fatal(err)
		}
		if s.Pool.Scrub.Finished != nil && !s.Pool.Scrub.Running {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if s.Pool.Scrub.Shards == 0 || s.Pool.Scrub.DamagedShards != 0 || s.Pool.Scrub.Next == nil {
		t.Errorf("scrub = %+v; want ended, with shards and no damage", s.Pool.Scrub)
	}
	if got := m.ok("pool", "status", dir, "--mgmt", p.mgmt); !strings.Contains(got, "DEGRADED") || !strings.Contains(got, "02    missing") {
		t.Errorf("pool status = %s", got)
	}
	if got := m.ok("drive", "list", dir, "--mgmt", p.mgmt); strings.Count(got, "\n") != 7 {
		t.Errorf("drive list = %s; want six drives", got)
	}
	for _, test := range []struct{ args, want string }{
		{"pool status --credentials " + dir + "/credentials --mgmt " + p.mgmt, "certificate"},
		{"pool status --mgmt " + p.mgmt + " --insecure", "access denied"},
		{"pool status " + dir + " --mgmt https://127.0.0.1:1", "refused"},
	} {
		m.env["MILLRACE_ROOT_ACCESS_KEY"], m.env["MILLRACE_ROOT_SECRET_KEY"] = "ak", "wrong-key"
		if _, stderr, code := m.run(strings.Fields(test.args)...); code != exitFailed || !strings.Contains(stderr, test.want) {
			t.Errorf("millrace %s: exit %d, %q; want 1 and %q", test.args, code, stderr, test.want)
		}
	}
}
