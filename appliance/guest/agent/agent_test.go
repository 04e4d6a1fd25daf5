package agent

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// serve gives a client of an agent that runs here, not in a guest.
func serve(t *testing.T, s *Server) Client {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go s.Serve(l)
	return Client{Addr: l.Addr().String()}
}

func TestRun(t *testing.T) {
	c := serve(t, &Server{})
	big := strings.Repeat("0123456789abcdef", 40_000)
	for _, tc := range []struct {
		name, script, stdin string
		stdout, stderr      string
		code                int
	}{
		{name: "both streams", script: "echo out; echo err >&2", stdout: "out\n", stderr: "err\n"},
		{name: "exit code", script: "exit 7", code: 7},
		{name: "signal", script: "kill -TERM $$", code: -1},
		{name: "environment and folder", script: "echo $WHAT $PWD", stdout: "this /\n"},
		{name: "long input", script: "cat", stdin: big, stdout: big},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			err := c.Run(t.Context(), Command{
				Args: []string{"sh", "-c", tc.script}, Env: []string{"WHAT=this"}, Dir: "/",
				Stdin: strings.NewReader(tc.stdin), Stdout: &stdout, Stderr: &stderr,
			})
			var exit *ExitError
			code := 0
			if errors.As(err, &exit) {
				code = exit.Code
			}
			if err != nil && exit == nil || code != tc.code {
				t.Errorf("Run() = %v; want exit code %d", err, tc.code)
			}
			if stdout.String() != tc.stdout || stderr.String() != tc.stderr {
				t.Errorf("%d bytes of output, %q; want %d, %q", stdout.Len(), stderr.String(), len(tc.stdout), tc.stderr)
			}
		})
	}
	if err := c.Run(t.Context(), Command{Args: []string{"/no/such/program"}}); err == nil || errors.As(err, new(*ExitError)) {
		t.Errorf("Run of no program = %v; want an error that is no exit", err)
	}
	err := c.Run(t.Context(), Command{Args: []string{"cat"}, Stdin: io.LimitReader(endless{}, MaxStdinBytes+1)})
	if err == nil || !strings.Contains(err.Error(), "too much data") {
		t.Errorf("Run with too much input = %v", err)
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// TestRunIsKilled ends the context of a command that has a child: both have to go.
func TestRunIsKilled(t *testing.T) {
	c := serve(t, &Server{})
	alive := filepath.Join(t.TempDir(), "alive")
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		script := `sh -c 'while :; do date +%N >"$0"; sleep 0.02; done' "$0" & echo started; wait`
		ended <- c.Run(ctx, Command{Args: []string{"sh", "-c", script, alive}, Stdout: w})
	}()
	if _, err := io.ReadFull(r, make([]byte, len("started\n"))); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("Run() = %v; want the context's error", err)
	}
	for same, last := 0, "x"; same < 10; time.Sleep(20 * time.Millisecond) { // until it is no longer written
		b, _ := os.ReadFile(alive)
		if string(b) == last {
			same++
		} else {
			same, last = 0, string(b)
		}
	}
}

func TestPutAndGet(t *testing.T) {
	c := serve(t, &Server{})
	path := filepath.Join(t.TempDir(), "new", "file")
	want := strings.Repeat("x", 3*MaxFrameBytes+1)
	if err := c.Put(t.Context(), path, 0o750, strings.NewReader(want)); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode() != 0o750 {
		t.Errorf("Stat() = %v, %v; want mode 0750", info, err)
	}
	var got bytes.Buffer
	if err := c.Get(t.Context(), path, &got); err != nil || got.String() != want {
		t.Errorf("Get() = %d bytes, %v; want %d", got.Len(), err, len(want))
	}
	if err := c.Get(t.Context(), path+"2", &got); err == nil {
		t.Error("Get of no file succeeds")
	}
	if err := c.Put(t.Context(), path+"/under/a/file", 0o644, strings.NewReader("x")); err == nil {
		t.Error("Put under a file succeeds")
	}
}

func TestPing(t *testing.T) {
	if err := serve(t, &Server{}).Ping(t.Context()); err != nil {
		t.Errorf("Ping() = %v", err)
	}
	broken := serve(t, &Server{SetupErr: errors.New("no module x")})
	if err := broken.Ping(t.Context()); err == nil || !strings.Contains(err.Error(), "no module x") {
		t.Errorf("Ping() = %v; want the error of the setup", err)
	}
}

func TestFrames(t *testing.T) {
	var b bytes.Buffer
	if err := writeFrame(&b, kindData, make([]byte, MaxFrameBytes+1)); !errors.Is(err, ErrFrame) || b.Len() != 0 {
		t.Errorf("writeFrame(too long) = %v", err)
	}
	for _, tc := range []struct {
		name, bytes string
		err         error
	}{
		{"nothing", "", io.EOF},
		{"half a head", "\x02\x00", io.ErrUnexpectedEOF},
		{"no data", "\x02\x00\x00\x00\x01", io.ErrUnexpectedEOF},
		{"kind 0", "\x00\x00\x00\x00\x00", ErrFrame},
		{"kind 7", "\x07\x00\x00\x00\x00", ErrFrame},
		{"too long", "\x02\x00\x01\x00\x01", ErrFrame},
	} {
		if _, _, err := readFrame(strings.NewReader(tc.bytes)); !errors.Is(err, tc.err) {
			t.Errorf("%s: readFrame() = %v; want %v", tc.name, err, tc.err)
		}
	}
}

func FuzzReadFrame(f *testing.F) {
	f.Add([]byte("\x02\x00\x00\x00\x03abc"))
	f.Add([]byte("\x06\x00\x01\x00\x00"))
	f.Fuzz(func(t *testing.T, in []byte) {
		k, payload, err := readFrame(bytes.NewReader(in))
		if err != nil {
			return
		}
		var out bytes.Buffer
		if err := writeFrame(&out, k, payload); err != nil || !bytes.HasPrefix(in, out.Bytes()) {
			t.Errorf("frame of kind %d, %d bytes is written as %q, %v", k, len(payload), out.Bytes(), err)
		}
	})
}
