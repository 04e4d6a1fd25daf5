package gateway

import (
	"context"
	"errors"

	"github.com/millrace/millrace/s3/sigv4"
	"github.com/millrace/millrace/s3/wire"
)

// OneAccount is an Accounts with a single account, which owns every access key that the Verifier
// knows, and which is root.
type OneAccount wire.Account

// Principal returns the account for every access key.
func (a OneAccount) Principal(_ context.Context, accessKey string) (Principal, error) {
	return Principal{Account: wire.Account(a), AccessKey: accessKey, Root: true}, nil
}

// Account returns the account, or one that is named by its ID.
func (a OneAccount) Account(id string) wire.Account {
	if id == a.ID {
		return wire.Account(a)
	}
	return wire.Account{ID: id, DisplayName: id}
}

// authenticate finds out who makes a request. An unsigned one is nobody's, and refused.
func (g *Gateway) authenticate(ctx context.Context, r *request) (Principal, error) {
	var err error
	r.identity, err = g.config.Verifier.Verify(ctx, r.HTTP)
	if errors.Is(err, sigv4.ErrAnonymous) {
		return Principal{}, &wire.Error{Code: wire.AccessDenied}
	}
	if err != nil {
		return Principal{}, err
	}
	return g.config.Accounts.Principal(ctx, r.identity.AccessKey)
}
