// Package dcb reads how a network interface treats priorities, as Data Center Bridging (IEEE 802.1Qaz) has it in Linux: on
// which priorities frames are paused and not dropped (PFC), and which priority a DSCP has. It asks by netlink
// (RTM_GETDCB of rtnetlink, linux/dcbnl.h).
//
// It changes nothing, and says nothing about how switches are set. Invariant: what an interface does not tell is marked as
// not known, and is never taken for off.
package dcb

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

var (
	// ErrUnsupported: the interface, or the system, has no DCB.
	ErrUnsupported = errors.New("no DCB")
	// ErrFormat: an answer that is not as linux/dcbnl.h has it.
	ErrFormat = errors.New("malformed DCB message")
)

// Priorities are those of IEEE 802.1Q: 0 to 7.
const Priorities = 8

// The numbers of linux/dcbnl.h.
const (
	cmdIEEEGet   = 21
	attrIfname   = 1
	attrIEEE     = 13
	attrDCBX     = 14
	ieeePFC      = 2
	ieeeAppTable = 3
	ieeeApp      = 1
	selectorDSCP = 5
	ieeePFCBytes = 136
	maxApps      = 1024
	headerBytes  = 4 // struct dcbmsg: family, command, padding
	maxIfname    = 15
)

// State is what an interface tells.
type State struct {
	// PFC is known only where PFCKnown is true: a bit for each priority that is paused instead of dropped.
	PFC      uint8
	PFCKnown bool
	// MaxPFC is how many priorities the interface can pause at a time.
	MaxPFC int
	// Apps is known only where AppsKnown is true: the priorities of DSCPs, in the order of the kernel.
	Apps      []App
	AppsKnown bool
	// DCBX is who sets all this (DCB_CAP_DCBX_… of linux/dcbnl.h); 0: not told.
	DCBX uint8
}

// App gives a DSCP its priority.
type App struct{ DSCP, Priority uint8 }

// TrustDSCP says whether the interface takes the priority of a packet from its DSCP. The kernel has no switch for that: it
// is so if there is an entry for any DSCP, and without one the priority comes from the VLAN tag.
func (s *State) TrustDSCP() bool { return len(s.Apps) > 0 }

// PriorityOf is the priority of a DSCP if DSCPs are trusted: that of its entry, the highest of several; without
// an entry 0.
func (s *State) PriorityOf(dscp uint8) uint8 {
	var p uint8
	for _, a := range s.Apps {
		if a.DSCP == dscp {
			p = max(p, a.Priority)
		}
	}
	return p
}

// Paused says whether a priority is paused instead of dropped.
func (s *State) Paused(priority uint8) bool {
	return priority < Priorities && s.PFC&(1<<priority) != 0
}

// PFCText writes the priorities that are paused as mlnx_qos does: 0,0,0,1,0,0,0,0.
func (s *State) PFCText() string {
	var out []string
	for p := range uint8(Priorities) {
		bit := "0"
		if s.Paused(p) {
			bit = "1"
		}
		out = append(out, bit)
	}
	return strings.Join(out, ",")
}

// request is the payload that asks for an interface.
func request(netdev string) ([]byte, error) {
	if netdev == "" || len(netdev) > maxIfname || strings.ContainsAny(netdev, "/\x00") {
		return nil, fmt.Errorf("interface %q: %w", netdev, ErrFormat)
	}
	b := []byte{0, cmdIEEEGet, 0, 0}
	b = binary.NativeEndian.AppendUint16(b, uint16(4+len(netdev)+1))
	b = binary.NativeEndian.AppendUint16(b, attrIfname)
	b = append(b, netdev...)
	b = append(b, 0)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b, nil
}

// Parse reads an answer to DCB_CMD_IEEE_GET, from struct dcbmsg on. The error is ErrFormat.
func Parse(msg []byte) (State, error) {
	var s State
	if len(msg) < headerBytes || msg[1] != cmdIEEEGet {
		return s, fmt.Errorf("header % x: %w", msg[:min(len(msg), headerBytes)], ErrFormat)
	}
	err := each(msg[headerBytes:], func(kind uint16, value []byte) error {
		switch {
		case kind == attrIEEE:
			return s.parseIEEE(value)
		case kind == attrDCBX && len(value) == 1:
			s.DCBX = value[0]
		}
		return nil
	})
	if err != nil {
		return State{}, err
	}
	return s, nil
}

func (s *State) parseIEEE(b []byte) error {
	return each(b, func(kind uint16, value []byte) error {
		switch kind {
		case ieeePFC:
			if len(value) != ieeePFCBytes {
				return fmt.Errorf("struct ieee_pfc of %d bytes: %w", len(value), ErrFormat)
			}
			s.MaxPFC, s.PFC, s.PFCKnown = int(value[0]), value[1], true
		case ieeeAppTable:
			s.AppsKnown = true
			return each(value, s.parseApp)
		}
		return nil
	})
}

// parseApp reads a struct dcb_app: selector, priority, protocol; for DSCPs the last is the DSCP.
func (s *State) parseApp(kind uint16, value []byte) error {
	if kind != ieeeApp {
		return nil
	}
	if len(value) != 4 {
		return fmt.Errorf("struct dcb_app of %d bytes: %w", len(value), ErrFormat)
	}
	protocol := binary.NativeEndian.Uint16(value[2:])
	if value[0] != selectorDSCP {
		return nil
	}
	if protocol > 63 || value[1] >= Priorities || len(s.Apps) >= maxApps {
		return fmt.Errorf("entry %d for DSCP %d with priority %d: %w", len(s.Apps), protocol, value[1], ErrFormat)
	}
	s.Apps = append(s.Apps, App{DSCP: uint8(protocol), Priority: value[1]})
	return nil
}

// each walks over attributes: length and type in 2 bytes each, the value, padding to 4.
func each(b []byte, do func(kind uint16, value []byte) error) error {
	for len(b) >= 4 {
		n := int(binary.NativeEndian.Uint16(b))
		kind := binary.NativeEndian.Uint16(b[2:]) & 0x3fff // without the flags for nesting and byte order
		if n < 4 || n > len(b) {
			return fmt.Errorf("attribute %d of %d bytes, %d left: %w", kind, n, len(b), ErrFormat)
		}
		if err := do(kind, b[4:n]); err != nil {
			return err
		}
		b = b[min((n+3)&^3, len(b)):]
	}
	return nil
}
