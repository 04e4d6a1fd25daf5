package agent

import (
	"fmt"
	"strings"
)

// MaxStdinBytes is the largest standard input of a command: it is held in the guest's memory.
const MaxStdinBytes = 1 << 20

type operation string

const (
	opPing operation = "ping"
	opRun  operation = "run"
	opPut  operation = "put"
	opGet  operation = "get"
	opOff  operation = "off"
)

type request struct {
	Op   operation
	Args []string `json:",omitempty"` // run
	Env  []string `json:",omitempty"` // run
	Dir  string   `json:",omitempty"` // run
	Path string   `json:",omitempty"` // put, get
	Mode uint32   `json:",omitempty"` // put
}

type result struct {
	ExitCode int    `json:",omitempty"`
	Signal   string `json:",omitempty"`
	Error    string `json:",omitempty"` // the operation itself failed
}

// An ExitError is a command that ran in the guest and did not end with 0.
type ExitError struct {
	Args   []string
	Code   int    // -1 when a signal ended it
	Signal string // "" when none did
}

// Error names the command and how it ended.
func (e *ExitError) Error() string {
	if e.Signal != "" {
		return fmt.Sprintf("in guest: %s: ended by signal: %s", strings.Join(e.Args, " "), e.Signal)
	}
	return fmt.Sprintf("in guest: %s: exit status %d", strings.Join(e.Args, " "), e.Code)
}

// SetupPath is where the init program finds its Setup, as JSON.
const SetupPath = "/etc/guest.json"

// Port is where the agent listens in the guest.
const Port = 7

// Setup is what the init program does before the agent answers.
type Setup struct {
	Modules    []Module
	Interfaces []Interface
	Links      []Link
	Namespaces int // how many NVMe namespaces have to be there
}

// Module is a kernel module: its file in the guest, and its parameters ("name=value name=value").
type Module struct{ Path, Params string }

// Interface is a network interface, and what it gets.
type Interface struct {
	Name      string
	Addresses []string // as in 192.0.2.1/24
	MTU       int      // 0: as it is
}

// Link is a software RDMA device over a network interface.
type Link struct{ Name, Type, NetDev string }
