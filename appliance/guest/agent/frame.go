// Package agent is how a test outside talks to a guest: a server that runs in the guest as part of its init, and its
// client. It is for machines that live for one test and trusts whoever connects; it is never part of the appliance.
// One connection carries one request, and no frame is larger than MaxFrameBytes, whatever the other side sends.
//
// A frame is one byte of kind, four bytes of length (big-endian), and the payload.
package agent

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// MaxFrameBytes is the largest payload of a frame.
const MaxFrameBytes = 64 << 10

// ErrFrame is returned for bytes that are no frame of this protocol.
var ErrFrame = errors.New("agent: not a frame")

type kind byte

const (
	kindRequest kind = iota + 1 // JSON of a request, first on every connection
	kindData                    // to the guest: what goes into the file or the command
	kindEnd                     // to the guest: no more data
	kindStdout                  // from the guest: what the command wrote, or the file
	kindStderr                  // from the guest
	kindResult                  // JSON of a result, last on every connection
)

const frameHeadBytes = 5

func writeFrame(w io.Writer, k kind, payload []byte) error {
	if len(payload) > MaxFrameBytes {
		return fmt.Errorf("%w: %d bytes", ErrFrame, len(payload))
	}
	frame := make([]byte, frameHeadBytes, frameHeadBytes+len(payload))
	frame[0] = byte(k)
	binary.BigEndian.PutUint32(frame[1:], uint32(len(payload)))
	_, err := w.Write(append(frame, payload...))
	return err
}

// readFrame reads one frame. At the end of the stream between two frames the error is io.EOF.
func readFrame(r io.Reader) (kind, []byte, error) {
	var head [frameHeadBytes]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	k, n := kind(head[0]), binary.BigEndian.Uint32(head[1:])
	if k < kindRequest || k > kindResult || n > MaxFrameBytes {
		return 0, nil, fmt.Errorf("%w: kind %d, %d bytes", ErrFrame, k, n)
	}
	payload := make([]byte, n)
	if _, err := io.ReadFull(r, payload); err != nil {
		return 0, nil, noEOF(err)
	}
	return k, payload, nil
}

func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// frameWriter writes a stream as frames of one kind.
type frameWriter struct {
	w io.Writer
	k kind
}

func (f frameWriter) Write(p []byte) (int, error) {
	done := 0
	for done < len(p) {
		n := min(len(p)-done, MaxFrameBytes)
		if err := writeFrame(f.w, f.k, p[done:done+n]); err != nil {
			return done, err
		}
		done += n
	}
	return done, nil
}
