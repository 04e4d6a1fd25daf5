package token

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
)

// Sizes of the token of hipobj-rc-v2: bytes, and characters of their hexadecimal form.
const (
	rcBytes = 44
	RCSize  = 2 * rcBytes
)

// Transports that a token of hipobj-rc-v2 can name.
const (
	TransportDC uint8 = 0
	TransportRC uint8 = 1
)

// RC is the token of hipobj-rc-v2: one side's queue pair and memory. Its integers are little-endian on
// the wire, its GID is 16 bytes as they are. The zero value is the mark of a peer on the same device.
type RC struct {
	Transport   uint8
	QPN         uint32 // number of the queue pair, 24 bits
	GID         [16]byte
	RKey        uint32
	Addr        uint64
	LengthBytes uint64
	Port        uint8 // port of the device, from 1
	LID         uint16
}

// ParseRC reads 88 lower-case hexadecimal digits. Its errors wrap ErrMalformed.
func ParseRC(s string) (RC, error) {
	if len(s) != RCSize {
		return RC{}, fmt.Errorf("%w: %d characters; a token of hipobj-rc-v2 has exactly %d", ErrMalformed, len(s), RCSize)
	}
	var b [rcBytes]byte
	for i := range b {
		hi, ok1 := digit(s[2*i])
		lo, ok2 := digit(s[2*i+1])
		if !ok1 || !ok2 {
			return RC{}, fmt.Errorf("%w: byte %d is not lower-case hexadecimal", ErrMalformed, i+1)
		}
		b[i] = hi<<4 | lo
	}
	t := RC{
		Transport:   b[0],
		QPN:         binary.LittleEndian.Uint32(b[1:]),
		GID:         [16]byte(b[5:21]),
		RKey:        binary.LittleEndian.Uint32(b[21:]),
		Addr:        binary.LittleEndian.Uint64(b[25:]),
		LengthBytes: binary.LittleEndian.Uint64(b[33:]),
		Port:        b[41],
		LID:         binary.LittleEndian.Uint16(b[42:]),
	}
	if t.Transport > TransportRC {
		return RC{}, fmt.Errorf("%w: transport %d is neither DC nor RC", ErrMalformed, t.Transport)
	}
	if t.QPN > MaxDCTN {
		return RC{}, fmt.Errorf("%w: queue pair number %#x has more than 24 bits", ErrMalformed, t.QPN)
	}
	return t, nil
}

// String writes the token.
func (t RC) String() string {
	var b [rcBytes]byte
	b[0] = t.Transport
	binary.LittleEndian.PutUint32(b[1:], t.QPN)
	copy(b[5:21], t.GID[:])
	binary.LittleEndian.PutUint32(b[21:], t.RKey)
	binary.LittleEndian.PutUint64(b[25:], t.Addr)
	binary.LittleEndian.PutUint64(b[33:], t.LengthBytes)
	b[41] = t.Port
	binary.LittleEndian.PutUint16(b[42:], t.LID)
	return hex.EncodeToString(b[:])
}
