package sweep

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
)

// order is what a process is told, one JSON object each: to prepare a load, or to run the one prepared.
type order struct {
	Load *Load `json:",omitempty"`
}

// report is what it answers.
type report struct {
	Outcome Outcome
	Error   string `json:",omitempty"`
}

// Serve does the orders that come from in until it ends: the other end of a Process.
func Serve(ctx context.Context, to Endpoint, in io.Reader, out io.Writer) (err error) {
	w := &local{to: to}
	defer func() { err = errors.Join(err, w.close()) }()
	orders, reports := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var o order
		if err := orders.Decode(&o); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read order: %w", err)
		}
		var r report
		var err error
		if o.Load != nil {
			err = w.Prepare(ctx, *o.Load)
		} else {
			r.Outcome, err = w.Run(ctx)
		}
		if err != nil {
			r.Error = err.Error()
		}
		if err := reports.Encode(&r); err != nil {
			return fmt.Errorf("write report: %w", err)
		}
	}
}

// Process is a Worker in a process of its own, which calls Serve on its standard input and output.
type Process struct {
	cmd     *exec.Cmd
	stdin   io.Closer
	orders  *json.Encoder
	reports *json.Decoder
}

// StartProcess starts it. Close must be called.
func StartProcess(cmd *exec.Cmd) (*Process, error) {
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &Process{cmd: cmd, stdin: in, orders: json.NewEncoder(in), reports: json.NewDecoder(out)}, nil
}

// Prepare implements Worker.
func (p *Process) Prepare(_ context.Context, l Load) error {
	_, err := p.tell(order{Load: &l})
	return err
}

// Run implements Worker.
func (p *Process) Run(context.Context) (Outcome, error) { return p.tell(order{}) }

func (p *Process) tell(o order) (Outcome, error) {
	var r report
	err := p.orders.Encode(o)
	if err == nil {
		err = p.reports.Decode(&r)
	}
	if err == nil && r.Error != "" {
		err = errors.New(r.Error)
	}
	if err != nil {
		return r.Outcome, fmt.Errorf("process %d: %w", p.cmd.Process.Pid, err)
	}
	return r.Outcome, nil
}

// Close lets the process end, and waits for that.
func (p *Process) Close() error { return errors.Join(p.stdin.Close(), p.cmd.Wait()) }
