package client

import "fmt"

// Mode says whether object bytes go by RDMA.
type Mode string

// The modes: ModeAuto uses RDMA where both sides have it and says when it did not, ModeRequire
// fails without it, ModeOff never uses it.
const (
	ModeAuto    Mode = "auto"
	ModeRequire Mode = "require"
	ModeOff     Mode = "off"
)

// TransportHTTP is the Transfer.Transport of bytes that came in the body of an HTTP message.
const TransportHTTP = "http"

// Transfer says which transport carried the bytes of a call.
type Transfer struct {
	Transport string `json:"transport"`
	// Reason says why it was not RDMA where ModeAuto would have preferred that; else it is "".
	Reason string `json:"reason,omitempty"`
}

func (m Mode) transfer() (Transfer, error) {
	switch m {
	case ModeAuto, "":
		return Transfer{Transport: TransportHTTP, Reason: ErrNoRDMA.Error()}, nil
	case ModeOff:
		return Transfer{Transport: TransportHTTP}, nil
	case ModeRequire:
		return Transfer{}, ErrNoRDMA
	}
	return Transfer{}, fmt.Errorf("rdma mode %q: want auto, require or off", string(m))
}
