//go:build !linux

package preflight

import (
	"context"
	"net/netip"
)

// Echo returns ErrNoProbe.
func Echo(context.Context, netip.Addr, int) error { return ErrNoProbe }
