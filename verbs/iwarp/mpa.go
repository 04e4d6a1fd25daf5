package iwarp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Connection frames of MPA (RFC 5044 §7.1, RFC 6581): a key, flags, a revision and private data.
const (
	mpaKeyRequest  = "MPA ID Req Frame"
	mpaKeyReply    = "MPA ID Rep Frame"
	mpaFixedBytes  = len(mpaKeyRequest) + 4
	mpaMaxPrivate  = 512
	mpaMarkers     = 0x80 // M: the sender of the frame wants markers in what it receives
	mpaCRC         = 0x40 // C: it wants CRCs; they are used when either side does
	mpaReject      = 0x20 // R, in a reply
	mpaEnhanced    = 0x10 // S of revision 2: the private data starts with IRD and ORD
	mpaReserved    = 0x0f
	enhancedBytes  = 4
	enhancedPeer   = 0x8000 // A, in the IRD: either side may send first, after a ready-to-receive message
	enhancedWrite  = 0x8000 // C, in the ORD: that message is an RDMA WRITE of no bytes
	enhancedRead   = 0x4000 // D, in the ORD: it is an RDMA READ of no bytes
	enhancedCounts = 0x3fff
)

// errStart marks a peer that does not speak MPA as it must.
var errStart = errors.New("bad MPA connection frame")

// startFrame is a request or a reply.
type startFrame struct {
	reply    bool
	markers  bool
	crc      bool
	reject   bool
	revision uint8
	// Of revision 2 only. A peer without it has said nothing about its limits.
	enhanced bool
	peer     bool // A
	write    bool // C
	read     bool // D
	ird, ord uint16
	private  []byte
}

// appendStart adds the frame to b. private must not be longer than verbs.MaxPrivateBytes.
func (f startFrame) append(b []byte) []byte {
	key, flags := mpaKeyRequest, byte(0)
	if f.reply {
		key = mpaKeyReply
	}
	for _, bit := range []struct {
		on   bool
		mask byte
	}{{f.markers, mpaMarkers}, {f.crc, mpaCRC}, {f.reject, mpaReject}, {f.enhanced, mpaEnhanced}} {
		if bit.on {
			flags |= bit.mask
		}
	}
	b = append(append(b, key...), flags, f.revision)
	if !f.enhanced {
		b = binary.BigEndian.AppendUint16(b, uint16(len(f.private)))
		return append(b, f.private...)
	}
	ird, ord := f.ird&enhancedCounts, f.ord&enhancedCounts
	if f.peer {
		ird |= enhancedPeer
	}
	if f.write {
		ord |= enhancedWrite
	}
	if f.read {
		ord |= enhancedRead
	}
	b = binary.BigEndian.AppendUint16(b, uint16(enhancedBytes+len(f.private)))
	b = binary.BigEndian.AppendUint16(b, ird)
	b = binary.BigEndian.AppendUint16(b, ord)
	return append(b, f.private...)
}

// readStart reads a request, or a reply, and nothing behind it.
func readStart(r io.Reader, reply bool) (startFrame, error) {
	var fixed [mpaFixedBytes]byte
	if _, err := io.ReadFull(r, fixed[:]); err != nil {
		return startFrame{}, fmt.Errorf("read connection frame: %w", err)
	}
	key := mpaKeyRequest
	if reply {
		key = mpaKeyReply
	}
	if string(fixed[:len(key)]) != key {
		return startFrame{}, fmt.Errorf("%w: wrong key", errStart)
	}
	flags, revision := fixed[len(key)], fixed[len(key)+1]
	n := int(binary.BigEndian.Uint16(fixed[len(key)+2:]))
	switch {
	case revision < 1 || revision > 2:
		return startFrame{}, fmt.Errorf("%w: revision %d", errStart, revision)
	case n > mpaMaxPrivate:
		return startFrame{}, fmt.Errorf("%w: %d bytes of private data; at most %d", errStart, n, mpaMaxPrivate)
	}
	f := startFrame{
		reply: reply, revision: revision, markers: flags&mpaMarkers != 0, crc: flags&mpaCRC != 0,
		reject: reply && flags&mpaReject != 0, enhanced: revision == 2 && flags&mpaEnhanced != 0,
		private: make([]byte, n),
	}
	if _, err := io.ReadFull(r, f.private); err != nil {
		return startFrame{}, fmt.Errorf("read private data: %w", err)
	}
	if f.enhanced {
		if n < enhancedBytes {
			return startFrame{}, fmt.Errorf("%w: private data too short for IRD and ORD", errStart)
		}
		ird, ord := binary.BigEndian.Uint16(f.private), binary.BigEndian.Uint16(f.private[2:])
		f.peer, f.ird = ird&enhancedPeer != 0, ird&enhancedCounts
		f.write, f.read, f.ord = ord&enhancedWrite != 0, ord&enhancedRead != 0, ord&enhancedCounts
		f.private = f.private[enhancedBytes:]
	}
	return f, nil
}
