package clienttest

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// startTimeout bounds the start and the clean stop of a server on a slow, busy machine.
const startTimeout = 60 * time.Second

// endpoint is what a client must be told.
type endpoint struct {
	url       string // http://host:port, no slash at the end
	accessKey string
	secretKey string
}

// host is the endpoint without its scheme.
func (e endpoint) host() string {
	_, host, _ := strings.Cut(e.url, "://")
	return host
}

// server is a running millrace over a virtual JBOF in dir.
type server struct {
	endpoint
	dir  string
	cmd  *exec.Cmd
	done chan error
}

// externalEndpoint is a server that runs already, named by the environment, for trying the tests
// themselves against another implementation of S3.
func externalEndpoint() (endpoint, bool) {
	e := endpoint{
		url:       os.Getenv("CLIENTTEST_ENDPOINT"),
		accessKey: os.Getenv("CLIENTTEST_ACCESS_KEY"),
		secretKey: os.Getenv("CLIENTTEST_SECRET_KEY"),
	}
	return e, e.url != ""
}

// anyEndpoint is the external endpoint, or a server of its own for this test.
func anyEndpoint(t *testing.T) endpoint {
	t.Helper()
	if e, ok := externalEndpoint(); ok {
		return e
	}
	dir := t.TempDir()
	t.Cleanup(func() { checkPool(t, dir) }) // runs after the server's stop
	return startServer(t, dir).endpoint
}

// checkPool wants that a stopped server has left a sound pool.
func checkPool(t *testing.T, dir string) {
	t.Helper()
	out, err := exec.Command(binary(t), "fsck", "--quiet", "--deep", dir).CombinedOutput()
	if err != nil {
		t.Errorf("millrace fsck: %v\n%s", err, out)
	}
}

func binary(t *testing.T) string {
	t.Helper()
	name := os.Getenv("MILLRACE_BIN")
	if name == "" {
		name = "../../bin/millrace"
	}
	abs, err := filepath.Abs(name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(abs); err != nil {
		t.Fatalf("%v: run make build first", err)
	}
	return abs
}

var readyLine = regexp.MustCompile(`^millrace: ready s3=(\S+) mgmt=(\S+)`)

// startServer starts millrace with six drives in dir, and stops it when the test ends.
func startServer(t *testing.T, dir string) *server {
	t.Helper()
	cmd := exec.Command(binary(t), "serve", "--dir", dir, "--drives", "6", "--drive-size", "1GiB",
		"--listen", "127.0.0.1:0", "--mgmt-listen", "127.0.0.1:0", "--domain", "localhost")
	s := &server{dir: dir, cmd: cmd, done: make(chan error, 1)}
	var log bytes.Buffer
	cmd.Stderr = &log
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ready := make(chan string, 1)
	go func() {
		lines := bufio.NewScanner(stdout)
		for lines.Scan() {
			if m := readyLine.FindStringSubmatch(lines.Text()); m != nil {
				ready <- m[1]
			}
		}
		s.done <- cmd.Wait()
	}()
	t.Cleanup(func() {
		s.stop(t)
		if t.Failed() {
			t.Logf("log of the server:\n%s", tail(log.String(), 200))
		}
	})
	select {
	case s.url = <-ready:
	case err := <-s.done:
		s.done <- err
		t.Fatalf("server ended before it was ready: %v\n%s", err, log.String())
	case <-time.After(startTimeout):
		t.Fatal("server did not say that it is ready")
	}
	s.readCredentials(t)
	return s
}

// tail is the last n lines of a text.
func tail(text string, n int) string {
	lines := strings.Split(text, "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

func (s *server) readCredentials(t *testing.T) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(s.dir, "credentials"))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(content), "\n") {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch name {
		case "access_key":
			s.accessKey = value
		case "secret_key":
			s.secretKey = value
		}
	}
	if s.accessKey == "" || s.secretKey == "" {
		t.Fatalf("no keys in %s/credentials", s.dir)
	}
}

// stop asks the server to end and wants a clean end. A second call does nothing.
func (s *server) stop(t *testing.T) {
	t.Helper()
	if s.cmd == nil {
		return
	}
	cmd := s.cmd
	s.cmd = nil
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Errorf("server had ended already: %v", <-s.done)
		return
	}
	select {
	case err := <-s.done:
		if err != nil {
			t.Errorf("server ended with %v; want exit 0 after SIGTERM", err)
		}
	case <-time.After(startTimeout):
		_ = cmd.Process.Kill()
		t.Errorf("server did not end after SIGTERM")
	}
}

// tool finds a client's program. The distribution's own comes first: other folders of PATH may
// hold shims of the same name. On CI a missing program is a failure.
func tool(t *testing.T, name string) string {
	t.Helper()
	for _, candidate := range []string{filepath.Join("/usr/bin", name), name} {
		if path, err := exec.LookPath(candidate); err == nil {
			return path
		}
	}
	missing(t, name)
	return ""
}

// missing ends a test whose client is not there: by a failure on CI, else by a skip.
func missing(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf("%s is not installed", what)
	}
	t.Skipf("%s is not installed", what)
}

// runner runs a client's program in an environment of its own.
type runner struct {
	env []string
}

// newRunner gives the program a home without settings, and no certificates or proxies of the
// machine's environment, since some clients stop at those for plain HTTP.
func newRunner(t *testing.T, env ...string) runner {
	t.Helper()
	return runner{env: append([]string{
		"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + t.TempDir(), "LC_ALL=C.UTF-8", "NO_PROXY=*",
	}, env...)}
}

// run returns the standard output; an exit other than 0 fails the test.
func (r runner) run(t *testing.T, name string, args ...string) []byte {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = r.env
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s%s", filepath.Base(name), strings.Join(args, " "), err, tail(string(out), 20), tail(stderr.String(), 20))
	}
	return out
}

// rangeHeader is a Range of HTTP for n bytes from off.
func rangeHeader(off, n int64) string { return fmt.Sprintf("bytes=%d-%d", off, off+n-1) }
