package qmp

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"testing"
)

// fake is a QEMU that answers each command with lines.
func fake(t *testing.T, answers map[string][]string) *Client {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "q")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		fmt.Fprintln(conn, `{"QMP": {"version": {}, "capabilities": []}}`)
		for lines := bufio.NewScanner(conn); lines.Scan(); {
			var command struct{ Execute string }
			if json.Unmarshal(lines.Bytes(), &command) != nil {
				return
			}
			if command.Execute == "qmp_capabilities" {
				fmt.Fprintln(conn, `{"return": {}}`)
			}
			for _, line := range answers[command.Execute] {
				fmt.Fprintln(conn, line)
			}
			if command.Execute == "quit" {
				return
			}
		}
	}()
	c, err := Dial(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestDo(t *testing.T) {
	c := fake(t, map[string][]string{
		"query":  {`{"event": "RESUME", "data": {"a": 1}}`, `{"return": {"status": "running"}}`},
		"refuse": {`{"error": {"class": "GenericError", "desc": "no such thing"}}`},
	})
	for range 2 {
		if got, err := c.Do(t.Context(), "query", nil); err != nil || string(got) != `{"status": "running"}` {
			t.Errorf("Do() = %s, %v", got, err)
		}
	}
	var refused *Error
	if _, err := c.Do(t.Context(), "refuse", nil); !errors.As(err, &refused) || refused.Description != "no such thing" {
		t.Errorf("Do() = %v; want an Error", err)
	}
	e, err := c.Await(t.Context(), func(e Event) bool { return e.Name == "RESUME" })
	if err != nil || string(e.Data) != `{"a": 1}` {
		t.Errorf("Await() = %s, %v", e.Data, err)
	}
}

func TestEnd(t *testing.T) {
	c := fake(t, nil)
	if _, err := c.Do(t.Context(), "quit", nil); err == nil {
		t.Error("Do without an answer: no error")
	}
	if _, err := c.Await(t.Context(), func(Event) bool { return true }); err == nil {
		t.Error("Await after the end: no error")
	}
}

func TestGivenUp(t *testing.T) {
	c := fake(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Do(ctx, "silence", nil); !errors.Is(err, context.Canceled) {
		t.Errorf("Do() = %v; want the context's error", err)
	}
	if _, err := c.Do(t.Context(), "query", nil); err == nil {
		t.Error("Do after a command that was given up: no error")
	}
}
