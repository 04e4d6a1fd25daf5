package server

import (
	"context"
	"log/slog"

	"github.com/millrace/millrace/appliance/config"
	"github.com/millrace/millrace/mgmt/api"
	"github.com/millrace/millrace/mgmt/endpoint"
	"github.com/millrace/millrace/mgmt/metrics"
	"github.com/millrace/millrace/s3/store"
)

// backend is an open store, with what management shows of it.
type backend struct {
	store   store.Store
	sources metrics.Sources
	// health tells status, drives and scheme; the rest is filled in by the caller.
	health func() endpoint.Health
	close  func() error
	// pool is what the management API shows; nil: there is no pool behind the store.
	pool api.Source
	// clients is told where the number of requests in progress is to be had; nil: nobody wants to know.
	clients func(inProgress func() int64)
	// memory is where objects' bytes are on their way, for registration with RDMA; nil if nowhere in particular.
	memory []byte
}

// openBackend opens the store that a configuration names. It is a parameter of the wiring so that
// tests can serve a store in memory.
type openBackend func(ctx context.Context, c *config.Config, log *slog.Logger) (*backend, error)
