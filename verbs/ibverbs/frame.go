package ibverbs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/millrace/millrace/verbs"
)

// frame is what the two sides of a connection send each other by TCP: a request, the reply or a refusal, then ready. It is
// 40 bytes and up to verbs.MaxPrivateBytes of data; numbers are big-endian:
//
//	"mrrc" version kind length(2) QPN(4) PSN(4) GID(16) LID(2) port MTU inits reads 0 0 data
type frame struct {
	kind frameKind
	rc   verbs.RCAddress
	// mtu is enum ibv_mtu. inits is how many READs the sender may have outstanding, reads how many it answers at once.
	mtu, inits, reads uint8
	data              []byte // private data; of a refusal, the reason as text
}

type frameKind uint8

const (
	kindRequest frameKind = iota + 1
	kindReply
	kindReady
	kindRefusal
)

const (
	frameMagic   = "mrrc"
	frameVersion = 1
	frameBytes   = 40
)

var errFrame = errors.New("not a frame of this protocol")

func (f *frame) append(b []byte) []byte {
	b = append(b, frameMagic...)
	b = append(b, frameVersion, byte(f.kind))
	b = binary.BigEndian.AppendUint16(b, uint16(len(f.data)))
	b = binary.BigEndian.AppendUint32(b, f.rc.QPN)
	b = binary.BigEndian.AppendUint32(b, f.rc.PSN)
	b = append(b, f.rc.GID[:]...)
	b = binary.BigEndian.AppendUint16(b, f.rc.LID)
	b = append(b, f.rc.Port, f.mtu, f.inits, f.reads, 0, 0)
	return append(b, f.data...)
}

// readFrame reads a frame of the kind that is due. A refusal is an error.
func readFrame(r io.Reader, due frameKind) (frame, error) {
	var b [frameBytes]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return frame{}, err
	}
	f := frame{
		kind: frameKind(b[5]),
		rc: verbs.RCAddress{
			QPN: binary.BigEndian.Uint32(b[8:]), PSN: binary.BigEndian.Uint32(b[12:]), GID: [16]byte(b[16:32]),
			LID: binary.BigEndian.Uint16(b[32:]), Port: b[34],
		},
		mtu: b[35], inits: b[36], reads: b[37],
	}
	n := int(binary.BigEndian.Uint16(b[6:]))
	switch {
	case string(b[:4]) != frameMagic:
		return frame{}, errFrame
	case b[4] != frameVersion:
		return frame{}, fmt.Errorf("%w: version %d", errFrame, b[4])
	case n > verbs.MaxPrivateBytes:
		return frame{}, fmt.Errorf("%w: %d bytes of data", errFrame, n)
	}
	f.data = make([]byte, n)
	if _, err := io.ReadFull(r, f.data); err != nil {
		return frame{}, err
	}
	switch {
	case f.kind == kindRefusal:
		return frame{}, fmt.Errorf("peer refuses: %q", f.data)
	case f.kind != due:
		return frame{}, fmt.Errorf("%w: kind %d", errFrame, f.kind)
	case due == kindReady:
		return f, nil
	case f.mtu < 1 || f.mtu > 5:
		return frame{}, fmt.Errorf("%w: MTU %d", errFrame, f.mtu)
	case f.inits == 0 || f.reads == 0:
		return frame{}, fmt.Errorf("%w: no READ may be outstanding", errFrame)
	}
	return f, checkAddress(f.rc)
}

// agree is the path that suits this device and the peer.
func (d *Device) agree(f *frame) path {
	return path{
		mtu: min(uint8(d.mtu.Load()), f.mtu), inits: min(d.inits, f.reads), reads: min(d.reads, f.inits),
	}
}
