package client

import (
	"errors"
	"fmt"
	"sync"
)

// Mode says whether object bytes go by RDMA.
type Mode string

// The modes: ModeAuto uses RDMA where both sides have it and says when it did not, ModeRequire
// fails without it, ModeOff never uses it.
const (
	ModeAuto    Mode = "auto"
	ModeRequire Mode = "require"
	ModeOff     Mode = "off"
)

// The values of Transfer.Transport: bytes in the body of an HTTP message, or in windows of registered memory.
const (
	TransportHTTP = "http"
	TransportRDMA = "rdma"
)

// ErrNoRDMA is what calls in ModeRequire fail with when their bytes can't go by RDMA; it is wrapped with the reason.
var ErrNoRDMA = errors.New("no RDMA")

// Transfer says which transport carried the bytes of a call.
type Transfer struct {
	// Transport is TransportRDMA if all bytes went by RDMA, else TransportHTTP.
	Transport string `json:"transport"`
	// Provider is that of the RDMA, as "soft" for the one over TCP; it is never hardware then.
	Provider string `json:"provider,omitempty"`
	// RDMABytes are the bytes that RDMA carried.
	RDMABytes int64 `json:"rdma_bytes,omitempty"`
	// Reason says why not all of it was RDMA where ModeAuto would have preferred that; else it is "".
	Reason string `json:"reason,omitempty"`
}

func (m Mode) check() error {
	switch m {
	case ModeAuto, ModeOff, ModeRequire:
		return nil
	}
	return fmt.Errorf("rdma mode %q: want auto, require or off", string(m))
}

// carried adds up the transfers of the parts of a call. Its methods may be called from many goroutines.
type carried struct {
	mu   sync.Mutex
	sum  Transfer
	http bool // some part was not RDMA
}

func (c *carried) add(t Transfer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.http = c.http || t.Transport != TransportRDMA
	c.sum.RDMABytes += t.RDMABytes
	if c.sum.Provider == "" {
		c.sum.Provider = t.Provider
	}
	if c.sum.Reason == "" {
		c.sum.Reason = t.Reason
	}
}

// total is the transfer of the call. That of no part at all is HTTP: the transport of what was asked before.
func (c *carried) total() Transfer {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.sum
	t.Transport = TransportRDMA
	if c.http || t.Provider == "" {
		t.Transport = TransportHTTP
	}
	return t
}

// Witness is what a client has moved by RDMA, as its results say: to be held against the counters of the
// server, and of the Device. Directions are those of the server: it WRITEs what is got, and READs what is put.
type Witness struct {
	Provider   string `json:"provider,omitempty"`
	WriteOps   int64  `json:"write_ops"`
	WriteBytes int64  `json:"write_bytes"`
	ReadOps    int64  `json:"read_ops"`
	ReadBytes  int64  `json:"read_bytes"`
	// Fallbacks are requests that HTTP carried although ModeAuto would have preferred RDMA.
	Fallbacks int64 `json:"fallbacks"`
}
