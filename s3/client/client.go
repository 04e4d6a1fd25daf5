// Package client is a small S3 client: objects by stream, by parallel parts, and straight into and out of
// the caller's memory by RDMA; listings, buckets. The `millrace` command is made of it, and it works
// against any S3 endpoint.
//
// It is not an SDK: it has the calls that the command needs, path-style addresses, and no cache.
// It holds object bytes only in the buffers of the parts in flight, so its memory is bounded by
// part size × parallelism, whatever the object's size.
//
// Invariant: a call that returns without an error has moved every byte, and has compared them
// with the checksum of the whole object where the server gives one; and its result says which
// transport carried them. However a call returns, no server can reach the caller's memory any more.
package client

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/millrace/millrace/s3/sigv4"
)

// Config says where the endpoint is, and how to reach it.
type Config struct {
	// Endpoint is "http://host:port" or "https://host:port".
	Endpoint string
	// Region is the one that signatures name; "" is us-east-1.
	Region string
	// Credential signs the requests; with an empty access key they are anonymous.
	Credential sigv4.Credential
	// Mode says whether object bytes may, must or must not go by RDMA; "" is ModeAuto.
	Mode Mode
	// Device is the RDMA device; nil lets the client open one when it first needs it, as RDMA says, and close it.
	Device *Device
	RDMA   DeviceConfig
	// RDMAConnect is "host:port" where the server listens for RDMA. Then this side makes the connections, as it
	// must where the server can't reach it; else "".
	RDMAConnect string
	// MaxConnections limits the connections kept open; 0 is 64.
	MaxConnections int
	// Retries is how often a call is tried again; 0 is 4, and a negative number is none.
	Retries int
	// TLS is for https endpoints; nil is the system's trust.
	TLS *tls.Config
}

// Defaults of Config.
const (
	defaultRegion         = "us-east-1"
	defaultMaxConnections = 64
	defaultRetries        = 4
	tlsTimeout            = 10 * time.Second
)

// Client calls one S3 endpoint. Its methods may be called from many goroutines.
type Client struct {
	base      url.URL // scheme and host
	host      string
	signer    sigv4.Signer
	path      path
	controls  controls
	tls       *tls.Config
	retries   int
	transport *http.Transport
	buffers   sync.Pool // of *[]byte, copyBytes long
}

// New returns a client. It opens no connection.
func New(c Config) (*Client, error) {
	u, err := url.Parse(c.Endpoint)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return nil, fmt.Errorf("endpoint %q: want http://HOST:PORT or https://HOST:PORT", c.Endpoint)
	}
	if strings.Trim(u.Path, "/") != "" || u.RawQuery != "" {
		return nil, fmt.Errorf("endpoint %q: a path is not supported", c.Endpoint)
	}
	mode := c.Mode
	if mode == "" {
		mode = ModeAuto
	}
	if err := mode.check(); err != nil {
		return nil, err
	}
	connections := orDefault(c.MaxConnections, defaultMaxConnections)
	transport := &http.Transport{
		TLSClientConfig:     c.TLS,
		TLSHandshakeTimeout: tlsTimeout,
		MaxIdleConns:        connections,
		MaxIdleConnsPerHost: connections,
		MaxConnsPerHost:     connections,
		IdleConnTimeout:     90 * time.Second,
		DisableCompression:  true,
		ReadBufferSize:      64 << 10,
		WriteBufferSize:     64 << 10,
	}
	client := &Client{
		base: url.URL{Scheme: u.Scheme, Host: u.Host}, host: u.Host,
		tls:     c.TLS,
		signer:  sigv4.Signer{Credential: c.Credential, Region: c.Region},
		retries: max(orDefault(c.Retries, defaultRetries), 0), transport: transport,
	}
	client.path.mode, client.path.connect, client.path.device, client.path.config = mode, c.RDMAConnect, c.Device, c.RDMA
	transport.DialContext = client.dial
	client.buffers.New = func() any {
		buf := make([]byte, copyBytes)
		return &buf
	}
	if client.signer.Region == "" {
		client.signer.Region = defaultRegion
	}
	return client, nil
}

func orDefault(value, initial int) int {
	if value == 0 {
		return initial
	}
	return value
}

// Close closes idle connections, and the RDMA device that the client has opened. Calls in progress go on, but
// not those by that device.
func (c *Client) Close() {
	c.transport.CloseIdleConnections()
	c.controls.close()
	c.path.close()
}
