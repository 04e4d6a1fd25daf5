// Package server wires everything into a running appliance: it opens the drives, or makes them at
// the first start, starts the engine, the S3 front and the management listener on top, and
// takes all of it down again in order.
//
// It holds no logic of storage, of S3 or of management. What it decides is when a pool is made, where
// the first credentials come from, and how a stop drains.
//
// Invariant: the ready line is printed after both listeners answer; after a stop no request is
// running when the engine is closed; and drives are made only where a record says that they never were.
package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/millrace/millrace/appliance/config"
	"github.com/millrace/millrace/mgmt/api"
	"github.com/millrace/millrace/mgmt/endpoint"
	"github.com/millrace/millrace/mgmt/metrics"
	"github.com/millrace/millrace/s3/sigv4"
)

// ErrUsage marks errors that the user mends on the command line: the command then exits with 2.
var ErrUsage = errors.New("usage")

// Options are what Run needs beside the configuration.
type Options struct {
	// Stdout gets the ready line and, once, generated credentials.
	Stdout io.Writer
	Logger *slog.Logger
	// Version is shown by the management listener.
	Version string
	// Getenv is os.Getenv, or a test's.
	Getenv func(string) string
}

// Limits of the S3 listener that are not configured.
const (
	readHeaderTimeout = 15 * time.Second
	idleTimeout       = 2 * time.Minute
	maxHeaderBytes    = 64 << 10
	// closeTimeout is how long a stop waits for handlers whose connections were cut.
	closeTimeout = 10 * time.Second
)

// Run serves until ctx is done, then drains: it stops accepting, waits up to DrainTimeout for the
// requests in progress, and closes the engine. It returns nil after a clean stop.
func Run(ctx context.Context, c config.Config, o Options) error {
	return run(ctx, &c, o, openEngine)
}

func run(ctx context.Context, c *config.Config, o Options, open openBackend) error {
	setMemory(c)
	dir := c.StatePath()
	if dir != "" {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return fmt.Errorf("state folder: %w", err)
		}
	}
	root, generated, err := rootCredential(dir, o.Getenv)
	if err != nil {
		return err
	}
	// The addresses first: an address in use is found before the drives are touched.
	listeners, err := listen(c)
	if err != nil {
		return err
	}
	defer listeners.close()
	certificate, err := endpoint.Certificate(dir, time.Now())
	if err != nil {
		return err
	}
	fabric, err := openFabric(c, o.Logger) // before the drives, too: it may be unfit
	if err != nil {
		return err
	}
	back, err := open(ctx, c, o.Logger)
	if err != nil {
		if ctx.Err() != nil {
			err = nil // stopped before it was ready; nothing was served
		}
		return errors.Join(err, fabric.close())
	}
	if err := fabric.attach(c, back.memory); err != nil {
		return errors.Join(err, fabric.close(), back.close())
	}
	a := newAppliance(c, o, back, fabric, root)
	a.serve(listeners, certificate)
	if generated {
		fmt.Fprintf(o.Stdout, "millrace: made the first credentials, kept in %s\n  access_key=%s\n  secret_key=%s\n",
			filepath.Join(dir, credentialsFile), root.AccessKey, root.SecretKey)
	}
	fmt.Fprintf(o.Stdout, "millrace: ready s3=http://%s mgmt=https://%s rdma=%s\n",
		listeners.s3.Addr(), listeners.mgmt.Addr(), fabric.ready())
	// An error means that systemd is not there to be told.
	_, _ = daemon.SdNotify(false, daemon.SdNotifyReady)
	failed := a.wait(ctx)
	_, _ = daemon.SdNotify(false, daemon.SdNotifyStopping)
	return errors.Join(failed, a.stop())
}

// listeners are the two addresses, bound.
type listeners struct {
	s3   *limitedListener
	mgmt net.Listener
}

func listen(c *config.Config) (*listeners, error) {
	s3, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen for S3: %w", err)
	}
	mgmt, err := net.Listen("tcp", c.MgmtListen)
	if err != nil {
		s3.Close()
		return nil, fmt.Errorf("listen for management: %w", err)
	}
	return &listeners{s3: limitConnections(s3, c.MaxConnections), mgmt: mgmt}, nil
}

// close is for the way out after an error; closing twice does no harm.
func (l *listeners) close() {
	l.s3.Close()
	l.mgmt.Close()
}

// appliance is a running server.
type appliance struct {
	config   *config.Config
	log      *slog.Logger
	back     *backend
	fabric   *fabric
	version  string
	requests *requests
	metrics  *metrics.Set
	api      http.Handler // nil: there is no pool to show
	s3       *http.Server
	mgmt     *endpoint.Server
	failed   chan error
	stopping chan struct{}
}

func newAppliance(c *config.Config, o Options, back *backend, f *fabric, root sigv4.Credential) *appliance {
	a := &appliance{config: c, log: o.Logger, back: back, fabric: f, version: o.Version,
		failed: make(chan error, 2), stopping: make(chan struct{})}
	a.requests = &requests{}
	sources := back.sources
	sources.Requests, sources.RDMA = a.requests.running.Load, f.traffic
	a.metrics = metrics.New(operations(), sources, o.Version)
	a.requests.next = newGateway(c, back, f.front(), root, a.metrics, o.Logger)
	if back.clients != nil {
		back.clients(a.requests.running.Load)
	}
	if back.pool != nil {
		a.api = api.New(api.Config{Source: back.pool, User: root.AccessKey, Password: root.SecretKey})
	}
	return a
}

// serve starts both servers on listeners that are bound, so a client that connects from now on
// is answered.
func (a *appliance) serve(l *listeners, certificate tls.Certificate) {
	a.s3 = &http.Server{
		Handler:           a.requests,
		ReadHeaderTimeout: readHeaderTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ConnState:         l.s3.state,
		ErrorLog:          slog.NewLogLogger(a.log.Handler(), slog.LevelDebug),
	}
	a.mgmt = endpoint.New(endpoint.Config{Certificate: certificate, Health: a.health, Metrics: a.metrics.Handler(),
		API: a.api, Pprof: a.config.Pprof, Logger: a.log})
	go a.report("S3", func() error { return a.s3.Serve(l.s3) })
	go a.report("management", func() error { return a.mgmt.Serve(l.mgmt) })
}

func (a *appliance) report(name string, serve func() error) {
	if err := serve(); !errors.Is(err, http.ErrServerClosed) {
		a.failed <- fmt.Errorf("serve %s: %w", name, err)
	}
}

// wait returns nil when ctx is done, and the error of a server that ended by itself.
func (a *appliance) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		a.log.Info("stopping", "drain_timeout", a.config.DrainTimeout)
		return nil
	case err := <-a.failed:
		return err
	}
}

// stop drains S3, then closes the engine, then the management listener.
func (a *appliance) stop() error {
	close(a.stopping)
	ctx, cancel := context.WithTimeout(context.Background(), a.config.DrainTimeout)
	defer cancel()
	if err := a.s3.Shutdown(ctx); err != nil {
		a.log.Warn("requests did not end in time: their connections are cut")
		a.s3.Close()
	}
	if !a.requests.wait(closeTimeout) {
		return errors.New("stop: a request does not end; the drives are left as after a power cut")
	}
	// The memory is deregistered before it is unmapped.
	err := errors.Join(a.fabric.close(), a.back.close())
	last, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return errors.Join(err, a.mgmt.Close(last))
}

// health completes the backend's health.
func (a *appliance) health() endpoint.Health {
	h := a.back.health()
	h.Version = a.version
	select {
	case <-a.stopping:
		h.Status = endpoint.Stopping
	default:
	}
	return h
}
