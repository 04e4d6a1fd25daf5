// Package endpoint is the management listener: https with the health of the appliance, its metrics and the
// management API, and Go profiles where they were asked for.
//
// It is not the management API itself (mgmt/api). It declares what it serves (Config); the wiring gives it
// functions and handlers. Health and metrics are for everybody; the API says itself who may come in.
//
// Invariant: a request here never touches the data path; it has a deadline, and their number is
// limited, so that a scraper gone wild does no harm to S3.
package endpoint

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"time"
)

// Status is the health of the appliance in a word.
type Status string

// The states: Degraded serves with drives missing; Unavailable has too few drives to take writes;
// Stopping finishes the requests in progress.
const (
	OK          Status = "ok"
	Degraded    Status = "degraded"
	Unavailable Status = "unavailable"
	Stopping    Status = "stopping"
)

// Health is the answer of /healthz.
type Health struct {
	Status Status `json:"status"`
	// Drives counts the slots of the pool by state ("in", "out", "missing").
	Drives map[string]int `json:"drives"`
	// Scheme is the pool's erasure scheme, "4+2".
	Scheme  string `json:"scheme,omitempty"`
	Version string `json:"version"`
}

// Config is what the listener serves.
type Config struct {
	Certificate tls.Certificate
	Health      func() Health
	Metrics     http.Handler
	API         http.Handler // of everything below /api/; nil: there is none
	Pprof       bool
	Logger      *slog.Logger
}

// Limits of the listener.
const (
	maxRequests    = 32
	maxHeaderBytes = 16 << 10
	requestTimeout = 30 * time.Second
	// profileTimeout allows a CPU profile of a minute.
	profileTimeout = 90 * time.Second
)

// Server serves the management address.
type Server struct {
	http http.Server
}

// New returns a server; Serve starts it.
func New(c Config) *Server {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { writeHealth(w, c.Health()) })
	mux.Handle("GET /metrics", c.Metrics)
	if c.API != nil {
		mux.Handle("/api/", c.API)
	}
	timeout := requestTimeout
	if c.Pprof {
		timeout = profileTimeout
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	}
	return &Server{http: http.Server{
		Handler:           limit(mux, maxRequests),
		TLSConfig:         &tls.Config{Certificates: []tls.Certificate{c.Certificate}, MinVersion: tls.VersionTLS12},
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       requestTimeout,
		WriteTimeout:      timeout,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(c.Logger.Handler(), slog.LevelDebug),
	}}
}

// Serve answers on the listener until Close; it then returns http.ErrServerClosed.
func (s *Server) Serve(l net.Listener) error { return s.http.ServeTLS(l, "", "") }

// Close stops the listener, and gives the requests in progress until ctx is done.
func (s *Server) Close(ctx context.Context) error {
	if err := s.http.Shutdown(ctx); err != nil {
		return s.http.Close()
	}
	return nil
}

// writeHealth answers 200 as long as requests are served, and else 503.
func writeHealth(w http.ResponseWriter, h Health) {
	status := http.StatusOK
	if h.Status == Unavailable || h.Status == Stopping {
		status = http.StatusServiceUnavailable
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	// An error is the client's, who is gone.
	_ = json.NewEncoder(w).Encode(h)
}

// limit answers 503 to the requests that are more than n at the same time.
func limit(next http.Handler, n int) http.Handler {
	slots := make(chan struct{}, n)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
			next.ServeHTTP(w, r)
		default:
			http.Error(w, "too many requests", http.StatusServiceUnavailable)
		}
	})
}
