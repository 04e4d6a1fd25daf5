package torture

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/s3/sigv4"
)

// binaryVariable names a millrace that is built already.
const binaryVariable = "MILLRACE_BIN"

var credential = sigv4.Credential{AccessKey: "torturetorture", SecretKey: "torturetorturetorture"}

// buildMillrace gives the path of the binary under test.
func buildMillrace(t *testing.T) string {
	t.Helper()
	if path := os.Getenv(binaryVariable); path != "" {
		return path
	}
	path := filepath.Join(t.TempDir(), "millrace")
	build := exec.Command("go", "build", "-o", path, "../cmd/millrace")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return path
}

// process is a `millrace serve` of its own.
type process struct {
	cmd   *exec.Cmd
	ready chan address // one, or closed without
	done  chan error
	log   lastBytes
}

type address struct{ s3, mgmt string }

var readyLine = regexp.MustCompile(`^millrace: ready s3=(\S+) mgmt=(\S+)`)

// spawn starts a server; it is not waited for.
func spawn(t *testing.T, binary string, args ...string) *process {
	t.Helper()
	args = append([]string{"serve", "--listen", "127.0.0.1:0", "--mgmt-listen", "127.0.0.1:0",
		"--arena-size", "32MiB"}, args...)
	p := &process{cmd: exec.Command(binary, args...), ready: make(chan address, 1), done: make(chan error, 1)}
	p.cmd.Env = append(os.Environ(), "MILLRACE_ROOT_ACCESS_KEY="+credential.AccessKey,
		"MILLRACE_ROOT_SECRET_KEY="+credential.SecretKey)
	p.cmd.Stderr = &p.log
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.cmd.Process.Kill() }) // it has ended as a rule
	go func() {
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			if match := readyLine.FindStringSubmatch(lines.Text()); match != nil {
				p.ready <- address{match[1], match[2]}
			}
		}
		close(p.ready)
		p.done <- p.cmd.Wait()
	}()
	return p
}

const (
	readyTimeout = 60 * time.Second
	endTimeout   = 90 * time.Second
)

// waitReady waits until it serves.
func (p *process) waitReady(t *testing.T) address {
	t.Helper()
	select {
	case a, ok := <-p.ready:
		if !ok {
			t.Fatalf("the server ended: %v\n%s", <-p.done, &p.log)
		}
		return a
	case <-time.After(readyTimeout):
		t.Fatalf("not ready after %v\n%s", readyTimeout, &p.log)
	}
	return address{}
}

// kill is kill -9.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// terminate asks it to end, and wants that it does so cleanly.
func (p *process) terminate(t *testing.T) {
	t.Helper()
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case err := <-p.done:
		if err != nil {
			t.Errorf("after SIGTERM: %v; want exit code 0\n%s", err, &p.log)
		}
	case <-time.After(endTimeout):
		_ = p.cmd.Process.Signal(syscall.SIGQUIT) // its stacks
		<-p.done
		t.Fatalf("it did not end after SIGTERM\n%s", &p.log)
	}
}

// waitHealth waits until the pool says that all its drives are in.
func waitHealth(t *testing.T, p *process, mgmt string) {
	t.Helper()
	web := &http.Client{Timeout: 10 * time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer web.CloseIdleConnections()
	var health struct {
		Status string
		Drives map[string]int
	}
	for deadline := time.Now().Add(readyTimeout); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		response, err := web.Get(mgmt + "/healthz")
		if err != nil {
			t.Fatalf("healthz: %v\n%s", err, &p.log)
		}
		err = json.NewDecoder(response.Body).Decode(&health)
		response.Body.Close()
		if err != nil {
			t.Fatalf("healthz: %v", err)
		}
		if health.Status == "ok" {
			return
		}
	}
	t.Fatalf("health after %v: %+v; want ok\n%s", readyTimeout, health, &p.log)
}

// fsckReport is what the test reads of the report of millrace fsck.
type fsckReport struct {
	Sound    bool
	Degraded int `json:"degraded_segments"`
	Broken   int `json:"broken_off_shards"`
	Faults   []struct{ Kind, Text string }
	Drives   []struct{ State string }
}

// fsck checks the drives of a pool that is not being served, data and all.
func fsck(t *testing.T, binary, dir string) fsckReport {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, "fsck", "--deep", "--json", dir)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	runErr := cmd.Run()
	var r fsckReport
	if err := json.Unmarshal(stdout.Bytes(), &r); err != nil {
		t.Fatalf("fsck: %v, %v\n%s%s", runErr, err, &stdout, &stderr)
	}
	for _, f := range r.Faults {
		t.Errorf("fsck: %s: %s", f.Kind, f.Text)
	}
	if !r.Sound || runErr != nil {
		t.Errorf("fsck: sound is %v, %v; want true, nil\n%s", r.Sound, runErr, &stderr)
	}
	return r
}

// lastBytes keeps the end of what is written to it.
type lastBytes struct {
	mu  sync.Mutex
	buf []byte
}

const keptBytes = 32 << 10

// Write implements io.Writer.
func (l *lastBytes) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buf = append(l.buf, p...)
	if n := len(l.buf) - keptBytes; n > 0 {
		l.buf = append(l.buf[:0], l.buf[n:]...)
	}
	return len(p), nil
}

// String implements fmt.Stringer.
func (l *lastBytes) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fmt.Sprintf("log:\n%s", l.buf)
}
