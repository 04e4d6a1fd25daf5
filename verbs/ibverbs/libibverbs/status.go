package libibverbs

import (
	"fmt"

	"github.com/millrace/millrace/verbs"
)

// StatusError is a work request that the device has given up.
type StatusError struct {
	Status WCStatus
	Vendor uint32 // the vendor's own code (syndrome); 0: none
}

// Error returns a line of text.
func (e *StatusError) Error() string {
	if e.Vendor == 0 {
		return e.Status.String()
	}
	return fmt.Sprintf("%v (vendor %#x)", e.Status, e.Vendor)
}

// Unwrap returns the error of package verbs that it amounts to.
func (e *StatusError) Unwrap() error {
	switch e.Status {
	case WCRemAccessErr:
		return verbs.ErrAccess
	case WCLocProtErr:
		return verbs.ErrNotRegistered
	}
	return verbs.ErrPeer
}
