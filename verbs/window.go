package verbs

import (
	"fmt"
	"net/netip"

	"github.com/millrace/millrace/verbs/token"
)

// LIDSoft marks the endpoint of a soft device in a token. It lies in the range of multicast LIDs
// (0xc000 … 0xfffe), which no port of a fabric has as its own, and ports on RoCE have 0.
const LIDSoft = 0xfffe

// LIDRC marks, in the same way, an endpoint that is dialled for a reliable connection of hardware: the number
// behind the address is a TCP port, where both sides tell each other their queue pairs.
const LIDRC = 0xfffd

// Endpoint is the port of a peer: the address and the number behind it. It is comparable.
type Endpoint struct {
	// GID is an IPv6 or IPv4-mapped address; with Session it is the ID of a session.
	GID [16]byte
	// Session means that the peer can't be dialled: it made the connection itself, and named it GID.
	Session bool
	QPN     uint32 // queue pair, DC target, or TCP port; 24 bits
	LID     uint16
}

// Kind is a set of kinds of endpoints.
type Kind uint8

// The kinds, as the LID tells them.
const (
	KindSoft     Kind = 1 << iota // LIDSoft
	KindRC                        // LIDRC
	KindHardware                  // any other: a DC target, or a token that doesn't tell
)

// Kind is the kind of an endpoint that is no session.
func (e Endpoint) Kind() Kind {
	switch e.LID {
	case LIDSoft:
		return KindSoft
	case LIDRC:
		return KindRC
	}
	return KindHardware
}

// EndpointAt is the endpoint of a soft device that listens at addr.
func EndpointAt(addr netip.AddrPort) Endpoint {
	return Endpoint{GID: addr.Addr().As16(), QPN: uint32(addr.Port()), LID: LIDSoft}
}

// Addr is the network address of the port; invalid for a session.
func (e Endpoint) Addr() netip.Addr {
	if e.Session {
		return netip.Addr{}
	}
	return netip.AddrFrom16(e.GID).Unmap()
}

// AddrPort is the TCP port for which EndpointAt gives the endpoint, whatever its LID. What can't be one of a host gives
// ErrUnreachable.
func (e Endpoint) AddrPort() (netip.AddrPort, error) {
	addr := e.Addr()
	switch {
	case e.Session:
		return netip.AddrPort{}, fmt.Errorf("a session can't be dialled: %w", ErrUnreachable)
	case e.QPN == 0 || e.QPN > 0xffff:
		return netip.AddrPort{}, fmt.Errorf("%d is no TCP port: %w", e.QPN, ErrUnreachable)
	case addr.IsUnspecified() || addr.IsMulticast() || addr == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return netip.AddrPort{}, fmt.Errorf("not the address of a host: %w", ErrUnreachable)
	}
	return netip.AddrPortFrom(addr, uint16(e.QPN)), nil
}

// String returns address and number, or the session's ID.
func (e Endpoint) String() string {
	if e.Session {
		return fmt.Sprintf("session %x", e.GID)
	}
	return fmt.Sprintf("%s#%d", e.Addr(), e.QPN)
}

// Window is memory of a peer, as a token names it. It is a plain value, and no proof of any right.
type Window struct {
	Endpoint  Endpoint
	Addr      uint64
	RKey      uint32
	SizeBytes int64
}

// MaxTokenBytes is the largest window that a token can name.
const MaxTokenBytes = 1<<32 - 1

// WindowOf returns the window that a token names.
func WindowOf(t token.Token) Window {
	return Window{
		Endpoint: Endpoint{GID: t.GID, Session: !t.GIDPresent, QPN: t.DCTN, LID: t.LID},
		Addr:     t.Addr, RKey: t.RKey, SizeBytes: int64(t.SizeBytes),
	}
}

// Token returns the token of the window, or ErrTooLarge above MaxTokenBytes.
func (w Window) Token() (token.Token, error) {
	if w.SizeBytes < 0 || w.SizeBytes > MaxTokenBytes {
		return token.Token{}, fmt.Errorf("token of a window of %d bytes: %w", w.SizeBytes, ErrTooLarge)
	}
	return token.Token{
		Addr: w.Addr, SizeBytes: uint32(w.SizeBytes), RKey: w.RKey,
		LID: w.Endpoint.LID, DCTN: w.Endpoint.QPN, GIDPresent: !w.Endpoint.Session, GID: w.Endpoint.GID,
	}, nil
}

// Part returns the part [off, off+n) of the window, or ErrRange.
func (w Window) Part(off, n int64) (Window, error) {
	if off < 0 || n < 0 || off > w.SizeBytes || n > w.SizeBytes-off {
		return Window{}, fmt.Errorf("part of %d bytes at %d in a window of %d: %w", n, off, w.SizeBytes, ErrRange)
	}
	w.Addr += uint64(off)
	w.SizeBytes = n
	return w, nil
}

// Session names connections that a client made because it can't be dialled itself. It is chosen at random by
// the client and known to nobody else but the server.
type Session [16]byte

// sessionMagic is before the ID in a connection's private data: four letters and a version.
const sessionMagic = "mrls\x01"

// Private returns the private data by which a client joins a connection to the session.
func (s Session) Private() []byte { return append([]byte(sessionMagic), s[:]...) }

// Endpoint returns the endpoint that tokens of the session carry.
func (s Session) Endpoint() Endpoint { return Endpoint{GID: s, Session: true} }

// SessionOf returns the session that a peer's private data names.
func SessionOf(private []byte) (Session, bool) {
	if len(private) != len(sessionMagic)+16 || string(private[:len(sessionMagic)]) != sessionMagic {
		return Session{}, false
	}
	return Session(private[len(sessionMagic):]), true
}
