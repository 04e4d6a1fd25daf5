package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// A Client runs things in a guest. It may be used by several goroutines at once.
type Client struct {
	Addr string // host:port that leads to the agent
}

// A Command is a program to run in the guest.
type Command struct {
	Args   []string // the program and its arguments; the program is looked up in the guest's PATH
	Env    []string // added to the guest's own
	Dir    string   // "": the root
	Stdin  io.Reader
	Stdout io.Writer // nil: dropped
	Stderr io.Writer // nil: dropped
}

// How long Ping waits for an answer, the first time, and how much longer each time after. A connection that is made
// before the guest has a network hangs for seconds in QEMU's network, where one made later does not.
const (
	firstPing  = 200 * time.Millisecond
	pingGrowth = 1.2
)

// Ping returns when the agent answers: then the guest is set up. It fails at once if the setup failed.
func (c Client) Ping(ctx context.Context) error {
	for patience := float64(firstPing); ; patience *= pingGrowth {
		begin := time.Now()
		once, cancel := context.WithTimeout(ctx, time.Duration(patience))
		failed, err := c.do(once, request{Op: opPing}, nil, nil, nil)
		cancel()
		if err == nil {
			if failed.Error != "" {
				return fmt.Errorf("guest: %s", failed.Error)
			}
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("guest: the agent doesn't answer: %w", errors.Join(context.Cause(ctx), err))
		case <-time.After(firstPing - time.Since(begin)): // when the connection was refused
		}
	}
}

// Run runs a command to its end, or kills it, and all of its process group, when ctx ends. The error is an *ExitError
// when the command ran and did not end with 0.
func (c Client) Run(ctx context.Context, cmd Command) error {
	res, err := c.do(ctx, request{Op: opRun, Args: cmd.Args, Env: cmd.Env, Dir: cmd.Dir}, cmd.Stdin, cmd.Stdout, cmd.Stderr)
	switch {
	case err != nil:
		return fmt.Errorf("in guest: %v: %w", cmd.Args, err)
	case res.Error != "":
		return fmt.Errorf("in guest: %v: %s", cmd.Args, res.Error)
	case res.ExitCode != 0:
		return &ExitError{Args: cmd.Args, Code: res.ExitCode, Signal: res.Signal}
	}
	return nil
}

// Put writes a file in the guest, with the permission bits of mode, and makes the folders above it.
func (c Client) Put(ctx context.Context, path string, mode uint32, r io.Reader) error {
	res, err := c.do(ctx, request{Op: opPut, Path: path, Mode: mode}, r, nil, nil)
	return operationError("put", path, res, err)
}

// Get copies a file of the guest to w.
func (c Client) Get(ctx context.Context, path string, w io.Writer) error {
	res, err := c.do(ctx, request{Op: opGet, Path: path}, nil, w, nil)
	return operationError("get", path, res, err)
}

// Off powers the guest off. Nothing but file systems is synced first. The connection's end is the answer.
func (c Client) Off(ctx context.Context) error {
	_, err := c.do(ctx, request{Op: opOff}, nil, nil, nil)
	if ctx.Err() != nil {
		return err
	}
	return nil
}

func operationError(what, path string, res result, err error) error {
	if err == nil && res.Error != "" {
		err = errors.New(res.Error)
	}
	if err != nil {
		return fmt.Errorf("guest: %s %s: %w", what, path, err)
	}
	return nil
}

func (c Client) do(ctx context.Context, req request, in io.Reader, stdout, stderr io.Writer) (result, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", c.Addr)
	if err != nil {
		return result{}, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	res, err := exchange(conn, req, in, stdout, stderr)
	if ctx.Err() != nil {
		return result{}, context.Cause(ctx)
	}
	return res, err
}

func exchange(conn io.ReadWriter, req request, in io.Reader, stdout, stderr io.Writer) (result, error) {
	head, err := json.Marshal(req)
	if err != nil {
		return result{}, err
	}
	if err := writeFrame(conn, kindRequest, head); err != nil {
		return result{}, err
	}
	sent := make(chan error, 1)
	go func() { sent <- send(conn, in) }()
	res, err := receive(conn, stdout, stderr)
	if err != nil {
		return result{}, err
	}
	if res.Error == "" {
		err = <-sent
	}
	return res, err
}

func send(w io.Writer, in io.Reader) error {
	if in != nil {
		if _, err := io.Copy(frameWriter{w, kindData}, in); err != nil {
			return err
		}
	}
	return writeFrame(w, kindEnd, nil)
}

func receive(r io.Reader, stdout, stderr io.Writer) (result, error) {
	out := map[kind]io.Writer{kindStdout: stdout, kindStderr: stderr}
	for {
		k, payload, err := readFrame(r)
		if err != nil {
			return result{}, noEOF(err)
		}
		switch k {
		case kindStdout, kindStderr:
			if out[k] == nil {
				continue
			}
			if _, err := out[k].Write(payload); err != nil {
				return result{}, err
			}
		case kindResult:
			var res result
			if err := json.Unmarshal(payload, &res); err != nil {
				return result{}, fmt.Errorf("%w: %w", ErrFrame, err)
			}
			return res, nil
		default:
			return result{}, fmt.Errorf("%w: kind %d from the guest", ErrFrame, k)
		}
	}
}
