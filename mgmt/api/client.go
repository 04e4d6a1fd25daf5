package api

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

// Client asks the API of an appliance.
type Client struct {
	base           string
	user, password string
	http           http.Client
}

// Limits of the client.
const (
	clientTimeout  = 30 * time.Second
	maxAnswerBytes = 16 << 20
)

// ErrDenied: the appliance does not accept the user and the password.
var ErrDenied = errors.New("access denied")

// NewClient returns a client of the management address at the URL, https://HOST:PORT.
func NewClient(address, user, password string, config *tls.Config) (*Client, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("management address %q: want https://HOST:PORT", address)
	}
	return &Client{base: "https://" + u.Host, user: user, password: password,
		http: http.Client{Timeout: clientTimeout, Transport: &http.Transport{TLSClientConfig: config}}}, nil
}

// Close gives up the connection.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Pool asks for the pool.
func (c *Client) Pool(ctx context.Context) (p Pool, err error) {
	return p, c.do(ctx, http.MethodGet, "/api/v1/pool", &p)
}

// Drives asks for the drives.
func (c *Client) Drives(ctx context.Context) (list []Drive, err error) {
	return list, c.do(ctx, http.MethodGet, "/api/v1/drives", &list)
}

// StartScrub begins a scrub of all drives.
func (c *Client) StartScrub(ctx context.Context) (s Scrub, err error) {
	return s, c.do(ctx, http.MethodPost, "/api/v1/pool/scrub", &s)
}

func (c *Client) do(ctx context.Context, method, path string, result any) error {
	r, err := http.NewRequestWithContext(ctx, method, c.base+path, nil)
	if err != nil {
		return err
	}
	r.SetBasicAuth(c.user, c.password)
	resp, err := c.http.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswerBytes))
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	switch {
	case resp.StatusCode == http.StatusUnauthorized:
		return fmt.Errorf("%s %s: %w", method, path, ErrDenied)
	case resp.StatusCode >= 300:
		var p problem
		if json.Unmarshal(body, &p) != nil || p.Error == "" {
			p.Error = http.StatusText(resp.StatusCode)
		}
		return fmt.Errorf("%s %s: %d %s", method, path, resp.StatusCode, p.Error)
	}
	if err := json.Unmarshal(body, result); err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	return nil
}
