package server

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"log/slog"
	"net/http"
	"time"

	"github.com/millrace/millrace/appliance/config"
	"github.com/millrace/millrace/mgmt/metrics"
	"github.com/millrace/millrace/s3/gateway"
	"github.com/millrace/millrace/s3/sigv4"
	"github.com/millrace/millrace/s3/wire"
)

// stallTimeout is how long a client may take to send or to take any bytes.
const stallTimeout = time.Minute

// rootID is the canonical ID of the root account, whatever its access key is: buckets keep it as
// their owner. It is the SHA-256 of "millrace root account".
const rootID = "72acc25d8157d96be631f6d3ea9a9a6231d0b62af0e2d57bf83d2bdf9c69b0e3"

// operations lists the names that the metrics have by the number of a wire.Op.
func operations() []string {
	names := make([]string, wire.OpCount)
	for op := range names {
		names[op] = wire.Op(op).String()
	}
	return names
}

// newGateway returns the S3 front over the backend's store, with the root account alone.
func newGateway(
	c *config.Config, back *backend, rdma gateway.RDMA, root sigv4.Credential, set *metrics.Set, log *slog.Logger,
) http.Handler {
	accounts := rootAccount{root}
	return gateway.New(gateway.Config{
		Store:    back.store,
		Verifier: &sigv4.Verifier{Lookup: accounts.lookup, Region: c.Region},
		Accounts: accounts,
		Region:   c.Region,
		Domains:  c.Domains,
		HostID:   rand.Text()[:16],
		Limits:   gateway.Limits{Requests: c.MaxConnections, Stall: stallTimeout, RDMA: c.RDMATimeout},
		RDMA:     rdma,
		Observer: observer{set},
		Logger:   log,
	})
}

// rootAccount is the one account that there is: it owns everything.
type rootAccount struct {
	credential sigv4.Credential
}

func (a rootAccount) lookup(_ context.Context, accessKey string) (sigv4.Credential, error) {
	if subtle.ConstantTimeCompare([]byte(accessKey), []byte(a.credential.AccessKey)) != 1 {
		return sigv4.Credential{}, sigv4.ErrUnknownKey
	}
	return a.credential, nil
}

// Principal implements gateway.Accounts.
func (a rootAccount) Principal(_ context.Context, accessKey string) (gateway.Principal, error) {
	return gateway.Principal{Account: a.Account(rootID), AccessKey: accessKey, Root: true}, nil
}

// Account implements gateway.Accounts.
func (a rootAccount) Account(id string) wire.Account {
	if id == rootID {
		return wire.Account{ID: rootID, DisplayName: "root"}
	}
	return wire.Account{ID: id, DisplayName: "unknown"}
}

// observer counts the front's requests.
type observer struct{ set *metrics.Set }

// Observe implements gateway.Observer.
func (o observer) Observe(e gateway.Event) {
	transport := metrics.HTTP
	if e.Transport != gateway.TransportHTTP {
		transport = metrics.RDMATransport
	}
	o.set.S3.Observe(int(e.Op), e.Status, transport, e.BytesIn, e.BytesOut, e.Duration)
	if e.Declined != "" {
		o.set.RDMA.Declined(e.Declined)
	}
}
