package dcb

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Get asks the kernel for an interface of this network namespace. An interface without DCB gives ErrUnsupported.
func Get(netdev string) (State, error) {
	payload, err := request(netdev)
	if err != nil {
		return State{}, err
	}
	req := nl.NewNetlinkRequest(unix.RTM_GETDCB, 0)
	req.AddRawData(payload)
	msgs, err := req.Execute(unix.NETLINK_ROUTE, 0)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return State{}, fmt.Errorf("%s: %w", netdev, ErrUnsupported)
	}
	if err != nil {
		return State{}, fmt.Errorf("DCB of %s: %w", netdev, err)
	}
	if len(msgs) == 0 {
		return State{}, fmt.Errorf("DCB of %s: no answer: %w", netdev, ErrFormat)
	}
	return Parse(msgs[0])
}
