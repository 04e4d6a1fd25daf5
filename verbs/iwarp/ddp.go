package iwarp

import "encoding/binary"

// An FPDU (RFC 5044 §4) is a length of 16 bits, a DDP segment of that length, padding to four bytes, and a
// CRC32C over all of it in little-endian order. A DDP segment (RFC 5041 §4) is tagged, for a place in
// memory, or untagged, for a queue; the RDMAP opcode (RFC 5040 §4) is in a byte of its header.
const (
	lengthBytes   = 2
	crcBytes      = 4
	taggedBytes   = 14 // header of a tagged segment, without the length
	untaggedBytes = 18
	// headerBytes are the bytes that every FPDU has before its payload or the rest of its header.
	headerBytes  = lengthBytes + taggedBytes
	maxULPDU     = 1<<16 - 1
	ddpTagged    = 0x80
	ddpLast      = 0x40
	ddpVersion   = 1 // the low two bits
	rdmapVersion = 1 << 6
	// maxPayload leaves FPDUs without padding that are 64 KiB long before their CRC.
	maxPayload = 1<<16 - headerBytes
)

// opcode is an operation of RDMAP (RFC 5040 §4.3, RFC 7306 §4).
type opcode uint8

const (
	opWrite         opcode = 0
	opReadRequest   opcode = 1
	opReadResponse  opcode = 2
	opSend          opcode = 3
	opSendInv       opcode = 4
	opSendSE        opcode = 5
	opSendSEInv     opcode = 6
	opTerminate     opcode = 7
	opImmediate     opcode = 8
	opImmediateSE   opcode = 9
	lastKnownOpcode        = opImmediateSE
)

// Queues of untagged messages (RFC 5040 §4.1).
const (
	queueSend      = 0
	queueRead      = 1
	queueTerminate = 2
)

// header is that of a DDP segment.
type header struct {
	ulpdu    int // its length, header included
	tagged   bool
	last     bool
	ddp      uint8 // version
	rdmap    uint8 // version
	op       opcode
	stag     uint32 // tagged: where to; of SEND with invalidate, what to invalidate
	to       uint64 // tagged
	qn       uint32 // untagged, and the next two
	msn, mo  uint32
	hdrBytes int // with the length
}

// payload is the number of bytes behind the header; negative in a segment that is too short.
func (h *header) payload() int { return h.ulpdu + lengthBytes - h.hdrBytes }

// fpduBytes is the length of everything up to the end of the CRC.
func (h *header) fpduBytes() int { return lengthBytes + h.ulpdu + pad(h.ulpdu) + crcBytes }

// pad is the number of bytes that fill up an FPDU.
func pad(ulpdu int) int { return -(lengthBytes + ulpdu) & 3 }

// headerSize is the length of the header of which b are the first bytes, at least three.
func headerSize(b []byte) int {
	if b[lengthBytes]&ddpTagged != 0 {
		return headerBytes
	}
	return lengthBytes + untaggedBytes
}

// parseHeader reads the header at the start of b, which holds headerSize(b) bytes.
func parseHeader(b []byte) header {
	h := header{
		ulpdu: int(binary.BigEndian.Uint16(b)), tagged: b[2]&ddpTagged != 0, last: b[2]&ddpLast != 0,
		ddp: b[2] & 3, rdmap: b[3] >> 6, op: opcode(b[3] & 15), stag: binary.BigEndian.Uint32(b[4:]),
		hdrBytes: headerBytes,
	}
	if h.tagged {
		h.to = binary.BigEndian.Uint64(b[8:])
		return h
	}
	h.hdrBytes = lengthBytes + untaggedBytes
	h.qn, h.msn, h.mo = binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint32(b[12:]), binary.BigEndian.Uint32(b[16:])
	return h
}

func ddpControl(tagged, last bool) byte {
	c := byte(ddpVersion)
	if tagged {
		c |= ddpTagged
	}
	if last {
		c |= ddpLast
	}
	return c
}

// appendTagged adds the length and the header of a tagged segment with n bytes of payload.
func appendTagged(b []byte, op opcode, last bool, stag uint32, to uint64, n int) []byte {
	b = binary.BigEndian.AppendUint16(b, uint16(taggedBytes+n))
	b = append(b, ddpControl(true, last), rdmapVersion|byte(op))
	b = binary.BigEndian.AppendUint32(b, stag)
	return binary.BigEndian.AppendUint64(b, to)
}

// appendUntagged adds the length and the header of an untagged segment with n bytes of payload.
func appendUntagged(b []byte, op opcode, last bool, qn, msn, mo uint32, n int) []byte {
	b = binary.BigEndian.AppendUint16(b, uint16(untaggedBytes+n))
	b = append(b, ddpControl(false, last), rdmapVersion|byte(op), 0, 0, 0, 0)
	b = binary.BigEndian.AppendUint32(b, qn)
	b = binary.BigEndian.AppendUint32(b, msn)
	return binary.BigEndian.AppendUint32(b, mo)
}

// readRequest is the payload of an RDMA READ request (RFC 5040 §4.4).
type readRequest struct {
	sinkSTag uint32
	sinkTO   uint64
	size     uint32
	srcSTag  uint32
	srcTO    uint64
}

const readRequestBytes = 28

func (r readRequest) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, r.sinkSTag)
	b = binary.BigEndian.AppendUint64(b, r.sinkTO)
	b = binary.BigEndian.AppendUint32(b, r.size)
	b = binary.BigEndian.AppendUint32(b, r.srcSTag)
	return binary.BigEndian.AppendUint64(b, r.srcTO)
}

// parseReadRequest reads the payload in b, which is readRequestBytes long.
func parseReadRequest(b []byte) readRequest {
	return readRequest{
		sinkSTag: binary.BigEndian.Uint32(b), sinkTO: binary.BigEndian.Uint64(b[4:]),
		size:    binary.BigEndian.Uint32(b[12:]),
		srcSTag: binary.BigEndian.Uint32(b[16:]), srcTO: binary.BigEndian.Uint64(b[20:]),
	}
}

// immediateBytes is the payload of an immediate data message (RFC 7306 §6): the value in the last four.
const immediateBytes = 8
