package verbs

import (
	"context"
	"net/netip"
)

// RCAddress is what the two sides of a reliable connection (RC) tell each other, by whatever way they have.
type RCAddress struct {
	QPN, PSN uint32 // number of the queue pair and its first packet sequence number, 24 bits each
	GID      [16]byte
	Port     uint8 // port of the device, from 1
	LID      uint16
}

// RCDevice is a device whose reliable connections others may set up: those who exchange addresses by a
// protocol of their own.
type RCDevice interface {
	Device
	// PrepareRC makes a queue pair for a peer at an address; it speaks as the one of this side that leads there. It
	// fails with ErrLimit as Dial does.
	PrepareRC(peer netip.Addr) (RCSetup, error)
}

// RCSetup is one side of a reliable connection before it knows the other.
type RCSetup interface {
	// Local is what the peer must be told.
	Local() RCAddress
	// Connect makes the connection. The peer may send once it has connected too: what is sent before that is
	// sent again until the retries are used up. Receives are posted to the connection, so none can be before.
	// Nothing tells that the peer has ended, but work requests that fail. Connect may be called once.
	Connect(ctx context.Context, remote RCAddress) (Conn, error)
	// Close drops what was not connected. After Connect it does nothing.
	Close() error
}
