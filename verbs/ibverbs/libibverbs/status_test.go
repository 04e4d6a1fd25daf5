package libibverbs

import (
	"errors"
	"testing"

	"github.com/millrace/millrace/verbs"
)

func TestStatusError(t *testing.T) {
	for _, tc := range []struct {
		status WCStatus
		vendor uint32
		want   error
		text   string
	}{
		{WCRemAccessErr, 0x88, verbs.ErrAccess, "remote access error (vendor 0x88)"},
		{WCLocProtErr, 0x88, verbs.ErrNotRegistered, "local protection error (vendor 0x88)"},
		{WCRetryExcErr, 0x88, verbs.ErrPeer, "transport retry counter exceeded (vendor 0x88)"},
		{WCRNRRetryExcErr, 0x88, verbs.ErrPeer, "RNR retry counter exceeded (vendor 0x88)"},
		{WCRNRRetryExcErr, 0, verbs.ErrPeer, "RNR retry counter exceeded"},
		{WCStatus(99), 0x88, verbs.ErrPeer, "status 99 (vendor 0x88)"},
	} {
		err := &StatusError{Status: tc.status, Vendor: tc.vendor}
		if !errors.Is(err, tc.want) || err.Error() != tc.text {
			t.Errorf("StatusError of %v is %q, %v; want %q, %v", tc.status, err, errors.Unwrap(err), tc.text, tc.want)
		}
	}
}
