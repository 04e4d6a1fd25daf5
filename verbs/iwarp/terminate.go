package iwarp

import (
	"encoding/binary"
	"fmt"

	"github.com/millrace/millrace/verbs"
)

// fault is what a Terminate message says: layer and type in the high byte, the code in the low one
// (RFC 5040 §4.8, RFC 5041 §7.1, RFC 5044 §8, RFC 6581 §9).
type fault uint16

const (
	noFault            fault = 0xffff
	faultLocal         fault = 0x0000 // RDMAP: local catastrophe
	faultSTag          fault = 0x0100 // RDMAP: remote protection: invalid steering tag
	faultBounds        fault = 0x0101
	faultRights        fault = 0x0102
	faultWrap          fault = 0x0104
	faultRDMAPVersion  fault = 0x0205 // RDMAP: remote operation
	faultOpcode        fault = 0x0206
	faultStream        fault = 0x0207
	faultNoInvalidate  fault = 0x0209
	faultTaggedSTag    fault = 0x1100 // DDP: tagged buffer
	faultTaggedBounds  fault = 0x1101
	faultTaggedWrap    fault = 0x1103
	faultTaggedVersion fault = 0x1104
	faultQueue         fault = 0x1201 // DDP: untagged buffer
	faultNoBuffer      fault = 0x1202
	faultMSN           fault = 0x1203
	faultMO            fault = 0x1204
	faultTooLong       fault = 0x1205
	faultVersion       fault = 0x1206
	faultCRC           fault = 0x2002 // MPA
	faultLength        fault = 0x2003
)

func (f fault) String() string {
	switch f {
	case faultLocal:
		return "local catastrophe"
	case faultSTag, faultTaggedSTag:
		return "invalid steering tag"
	case faultBounds, faultTaggedBounds:
		return "outside of the bounds"
	case faultRights:
		return "access right missing"
	case faultWrap, faultTaggedWrap:
		return "offset wraps around"
	case faultRDMAPVersion, faultTaggedVersion, faultVersion:
		return "unknown protocol version"
	case faultOpcode:
		return "unexpected opcode"
	case faultStream:
		return "stream broken"
	case faultNoInvalidate:
		return "steering tag can't be invalidated"
	case faultQueue:
		return "invalid queue number"
	case faultNoBuffer:
		return "no buffer for the message"
	case faultMSN:
		return "message sequence number out of order"
	case faultMO:
		return "message offset out of order"
	case faultTooLong:
		return "message longer than its buffer"
	case faultCRC:
		return "wrong CRC"
	case faultLength:
		return "wrong length"
	}
	return "unspecified"
}

// ofRead turns a fault of a tagged buffer into that of the source of an RDMA READ, which RDMAP finds.
func (f fault) ofRead() fault {
	switch f {
	case faultTaggedSTag:
		return faultSTag
	case faultTaggedBounds:
		return faultBounds
	case faultTaggedWrap:
		return faultWrap
	}
	return f
}

// access tells faults of keys, ranges and rights from those of the protocol.
func (f fault) access() bool { return f>>8 == 0x01 || f>>8 == 0x11 }

// remoteError is the end of a connection by a Terminate message: ours (sent) or the peer's.
type remoteError struct {
	fault fault
	sent  bool
}

func (e *remoteError) Error() string {
	by := "peer refused"
	if e.sent {
		by = "refused the peer's message"
	}
	return fmt.Sprintf("%s: %s (layer %d, type %d, code %#02x)", by, e.fault, e.fault>>12, e.fault>>8&15, uint8(e.fault))
}

// Unwrap tells what kind of error it is. What this side refused is an error of the peer; that the
// connection is lost by it is what matters to this side's work requests.
func (e *remoteError) Unwrap() error {
	if e.fault.access() && !e.sent {
		return verbs.ErrAccess
	}
	return verbs.ErrPeer
}

// Bits of the terminate control field behind layer, type and code.
const (
	terminateLength = 0x80 // M: the length of the terminated segment follows
	terminateDDP    = 0x40 // D: its DDP header
	terminateRDMAP  = 0x20 // R: its RDMAP header, for a read request
	terminateMax    = 4 + 2 + untaggedBytes + readRequestBytes
)

// appendTerminate adds the payload of a Terminate message. hdr is the header of the FPDU at fault, from its
// length on, with the payload of a read request behind it; empty when there is none to show.
func appendTerminate(b []byte, f fault, hdr []byte) []byte {
	b = binary.BigEndian.AppendUint16(b, uint16(f))
	if len(hdr) < headerBytes {
		return append(b, 0, 0)
	}
	size := headerSize(hdr)
	flags := byte(terminateLength | terminateDDP)
	if len(hdr) == size+readRequestBytes {
		flags |= terminateRDMAP
	} else {
		hdr = hdr[:min(size, len(hdr))]
	}
	b = append(b, flags, 0)
	return append(b, hdr...)
}

// terminateFlags are the bits that may be set behind the code, and swappedFlags where Linux's siw has them on
// little-endian machines: there each byte's fields begin at its low bits, so that layer and type are swapped too.
const (
	terminateFlags = terminateLength | terminateDDP | terminateRDMAP
	swappedFlags   = 0x07
)

// parseTerminate reads the payload of a Terminate message.
func parseTerminate(b []byte) (fault, bool) {
	if len(b) < 4 || len(b) > terminateMax {
		return 0, false
	}
	f := fault(binary.BigEndian.Uint16(b))
	if b[2]&terminateFlags == 0 && b[2]&swappedFlags != 0 {
		f = f&0x00ff | f>>4&0x0f00 | f<<4&0xf000
	}
	return f, true
}
