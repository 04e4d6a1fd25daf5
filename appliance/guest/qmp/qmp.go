// Package qmp speaks QEMU's machine protocol: one command at a time, with its answer, and events meanwhile. It knows
// no command by name, and does not reconnect. After the first error of the connection every call fails.
//
// The protocol: docs/interop/qmp-spec.txt of the QEMU source.
package qmp

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
)

// maxLineBytes is the longest message that is read.
const maxLineBytes = 1 << 20

// maxEvents is how many events are kept for Await. Older ones are dropped.
const maxEvents = 256

// An Error is a command that QEMU refused.
type Error struct {
	Command     string
	Class       string
	Description string
}

// Error names the command and gives what QEMU says.
func (e *Error) Error() string { return fmt.Sprintf("qmp: %s: %s", e.Command, e.Description) }

// An Event is something that QEMU tells unasked.
type Event struct {
	Name string          `json:"event"`
	Data json.RawMessage `json:"data"`
}

// A Client is a connection to QEMU. It may be used by several goroutines at once.
type Client struct {
	conn    net.Conn
	command sync.Mutex // held from a command to its answer
	answers chan message
	done    chan struct{} // closed when the connection has ended

	mu      sync.Mutex
	err     error
	events  []Event
	arrived chan struct{} // closed, and made anew, at every event
}

type message struct {
	Event
	Return json.RawMessage `json:"return"`
	Error  *struct {
		Class string `json:"class"`
		Desc  string `json:"desc"`
	} `json:"error"`
	Greeting json.RawMessage `json:"QMP"`
}

// Dial connects to QEMU at a Unix socket and opens the session.
func Dial(ctx context.Context, socket string) (*Client, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	c := &Client{conn: conn, answers: make(chan message, 1), done: make(chan struct{}), arrived: make(chan struct{})}
	go c.read()
	if _, err := c.Do(ctx, "qmp_capabilities", nil); err != nil {
		conn.Close()
		return nil, err
	}
	return c, nil
}

// Close ends the connection.
func (c *Client) Close() error {
	err := c.conn.Close()
	<-c.done
	return err
}

func (c *Client) read() {
	defer close(c.done)
	s := bufio.NewScanner(c.conn)
	s.Buffer(nil, maxLineBytes)
	for s.Scan() {
		var m message
		if err := json.Unmarshal(s.Bytes(), &m); err != nil {
			c.fail(fmt.Errorf("qmp: %w", err))
			return
		}
		switch {
		case m.Greeting != nil:
		case m.Name != "":
			c.event(m.Event)
		default:
			select {
			case c.answers <- m:
			default: // two for one command
				c.fail(errors.New("qmp: an answer to no command"))
				return
			}
		}
	}
	err := s.Err()
	if err == nil {
		err = io.ErrUnexpectedEOF
	}
	c.fail(fmt.Errorf("qmp: %w", err))
}

func (c *Client) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
	}
	c.conn.Close()
}

func (c *Client) failed() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

func (c *Client) event(e Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.events) == maxEvents {
		c.events = c.events[1:]
	}
	c.events = append(c.events, e)
	close(c.arrived)
	c.arrived = make(chan struct{})
}

// Do runs a command and gives what it returns. The error is an *Error when QEMU refused it.
func (c *Client) Do(ctx context.Context, command string, arguments any) (json.RawMessage, error) {
	c.command.Lock()
	defer c.command.Unlock()
	line, err := json.Marshal(struct {
		Execute   string `json:"execute"`
		Arguments any    `json:"arguments,omitempty"`
	}{command, arguments})
	if err != nil {
		return nil, err
	}
	if _, err := c.conn.Write(append(line, '\n')); err != nil {
		return nil, errors.Join(c.failed(), err)
	}
	select {
	case m := <-c.answers:
		if m.Error != nil {
			return nil, &Error{Command: command, Class: m.Error.Class, Description: m.Error.Desc}
		}
		return m.Return, nil
	case <-c.done:
		return nil, c.failed()
	case <-ctx.Done():
		c.fail(context.Cause(ctx)) // the answer would be taken for the next command's
		return nil, context.Cause(ctx)
	}
}

// Await waits for an event that match accepts, also among those that came before and were awaited by nobody. Events
// before it are forgotten.
func (c *Client) Await(ctx context.Context, match func(Event) bool) (Event, error) {
	for {
		c.mu.Lock()
		arrived := c.arrived
		for i, e := range c.events {
			if match(e) {
				c.events = c.events[i+1:]
				c.mu.Unlock()
				return e, nil
			}
		}
		c.mu.Unlock()
		select {
		case <-arrived:
		case <-c.done:
			return Event{}, c.failed()
		case <-ctx.Done():
			return Event{}, context.Cause(ctx)
		}
	}
}
