package verbs

import (
	"errors"
	"fmt"
)

// The errors that callers branch on. Providers wrap them; use errors.Is.
var (
	// ErrAccess: a peer refused a key, a range or a right, or this side refused a peer's.
	ErrAccess = errors.New("remote access error")
	// ErrPeer: the peer is gone, does not answer, or broke the protocol.
	ErrPeer = errors.New("peer lost")
	// ErrClosed: this side ended the connection or the device.
	ErrClosed = errors.New("closed")
	// ErrUnreachable: no connection to the endpoint could be made, or this provider can't make such.
	ErrUnreachable = errors.New("endpoint unreachable")
	// ErrNotRegistered: local memory of a work request is not (or no longer) registered.
	ErrNotRegistered = errors.New("memory not registered")
	// ErrRange: a range outside of its region or window.
	ErrRange = errors.New("range outside of the memory")
	// ErrTooLarge: a work request with more bytes or segments than the device takes.
	ErrTooLarge = errors.New("work request too large")
	// ErrQueueFull: no room for another work request, or for its completion.
	ErrQueueFull = errors.New("queue full")
	// ErrLimit: a limit on connections, regions or bindings is reached; the same call may work later.
	ErrLimit = errors.New("limit reached")
)

// Error says what failed, on which provider, with which peer.
type Error struct {
	Op       string // "dial", "WRITE", …
	Provider string
	Peer     string // address, or empty
	Err      error
}

// Error returns a line of text.
func (e *Error) Error() string {
	if e.Peer == "" {
		return fmt.Sprintf("%s %s: %v", e.Provider, e.Op, e.Err)
	}
	return fmt.Sprintf("%s %s %s: %v", e.Provider, e.Op, e.Peer, e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }
