package agent

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// killDelay is how long a killed command's pipes may stay open in other hands.
const killDelay = 2 * time.Second

// A Server answers requests in the guest.
type Server struct {
	SetupErr error  // told to every Ping
	Off      func() // powers the machine off
}

// Serve answers until the listener is closed.
func (s *Server) Serve(l net.Listener) error {
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
			s.answer(conn)
		}()
	}
}

func (s *Server) answer(conn net.Conn) {
	in := &input{Reader: bufio.NewReaderSize(conn, MaxFrameBytes)}
	k, payload, err := readFrame(in)
	var req request
	if err != nil || k != kindRequest || json.Unmarshal(payload, &req) != nil {
		return
	}
	w := &lockedWriter{w: conn}
	res := result{}
	switch req.Op {
	case opPing:
		err = s.SetupErr
	case opRun:
		res, err = run(req, in, w)
	case opPut:
		err = put(req, in)
	case opGet:
		err = get(req, w)
	case opOff:
		s.Off()
	default:
		err = fmt.Errorf("no operation %q", req.Op)
	}
	if err != nil {
		res.Error = err.Error()
		res.Error = res.Error[:min(len(res.Error), MaxFrameBytes/8)]
	}
	if b, err := json.Marshal(res); err == nil && writeFrame(w, kindResult, b) == nil {
		<-in.ended() // the client closes first: with something unread, a close here would take the result from it
	}
}

// input is what a client sends.
type input struct {
	io.Reader
	once sync.Once
	end  chan struct{}
}

// ended drops all that the client still sends, and gives a channel that is closed when it sends no more.
func (i *input) ended() <-chan struct{} {
	i.once.Do(func() {
		i.end = make(chan struct{})
		go func() {
			io.Copy(io.Discard, i)
			close(i.end)
		}()
	})
	return i.end
}

// lockedWriter keeps the frames of two streams whole.
type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

func run(req request, in *input, w io.Writer) (result, error) {
	if len(req.Args) == 0 {
		return result{}, errors.New("no program")
	}
	var stdin bytes.Buffer
	if err := data(in, &stdin, MaxStdinBytes); err != nil {
		return result{}, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	gone := in.ended()
	go func() {
		select {
		case <-gone: // the client's end is the command's
			cancel()
		case <-ctx.Done():
		}
	}()
	cmd := exec.CommandContext(ctx, req.Args[0], req.Args[1:]...)
	cmd.Env = append(os.Environ(), req.Env...)
	cmd.Dir, cmd.Stdin = req.Dir, &stdin
	cmd.Stdout, cmd.Stderr = frameWriter{w, kindStdout}, frameWriter{w, kindStderr}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = killDelay
	err := cmd.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return result{}, err
	}
	res := result{ExitCode: exit.ExitCode()}
	if st, ok := exit.Sys().(syscall.WaitStatus); ok && st.Signaled() {
		res.Signal = st.Signal().String()
	}
	return res, nil
}

// data copies data frames up to the end frame.
func data(r io.Reader, w io.Writer, limitBytes int64) error {
	for {
		k, payload, err := readFrame(r)
		if err != nil {
			return noEOF(err)
		}
		if k == kindEnd {
			return nil
		}
		if limitBytes -= int64(len(payload)); k != kindData || limitBytes < 0 {
			return fmt.Errorf("%w: kind %d, or too much data", ErrFrame, k)
		}
		if _, err := w.Write(payload); err != nil {
			return err
		}
	}
}

// maxPutBytes is more than any guest's memory.
const maxPutBytes = 1 << 40

func put(req request, r io.Reader) error {
	if err := os.MkdirAll(filepath.Dir(req.Path), 0o755); err != nil {
		return err
	}
	mode := os.FileMode(req.Mode).Perm()
	f, err := os.OpenFile(req.Path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	return errors.Join(data(r, f, maxPutBytes), f.Chmod(mode), f.Close())
}

func get(req request, w io.Writer) error {
	f, err := os.Open(req.Path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(frameWriter{w, kindStdout}, f)
	return err
}
