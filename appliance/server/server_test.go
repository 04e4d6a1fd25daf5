package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/appliance/config"
	"github.com/millrace/millrace/mgmt/endpoint"
	"github.com/millrace/millrace/s3/client"
	"github.com/millrace/millrace/s3/sigv4"
	"github.com/millrace/millrace/s3/store/memstore"
)

// output is a Stdout that tells when the ready line is there.
type output struct {
	mu    sync.Mutex
	text  bytes.Buffer
	ready chan struct{}
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text.Write(p)
	if strings.Contains(o.text.String(), "millrace: ready ") {
		select {
		case <-o.ready:
		default:
			close(o.ready)
		}
	}
	return len(p), nil
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// running is a server over a store in memory.
type running struct {
	t        *testing.T
	s3, mgmt string
	log, out *output
	stop     func() error // ends it, and gives Run's result
	https    *http.Client
}

var readyLine = regexp.MustCompile(`(?m)^millrace: ready s3=(http://127\.0\.0\.1:\d+) mgmt=(https://127\.0\.0\.1:\d+) rdma=\S+( rdma-listen=\S+)?$`)

func start(t *testing.T, change func(*config.Config), getenv func(string) string) *running {
	t.Helper()
	return startWith(t, openMemory, change, getenv)
}

func startWith(t *testing.T, open openBackend, change func(*config.Config), getenv func(string) string) *running {
	t.Helper()
	c := config.Default()
	c.Dir, c.Listen, c.MgmtListen = t.TempDir(), "127.0.0.1:0", "127.0.0.1:0"
	if change != nil {
		change(&c)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{t: t, out: &output{ready: make(chan struct{})}, log: &output{ready: make(chan struct{})}}
	done := make(chan error, 1)
	go func() {
		done <- run(ctx, &c, Options{Stdout: r.out, Logger: slog.New(slog.NewTextHandler(r.log, nil)), Version: "v1",
			Getenv: getenv}, open)
	}()
	select {
	case <-r.out.ready:
	case err := <-done:
		t.Fatalf("run ended: %v", err)
	case <-time.After(10 * time.Second):
		t.Fatal("no ready line")
	}
	match := readyLine.FindStringSubmatch(r.out.String())
	if match == nil {
		t.Fatalf("output %q; want the ready line", r.out)
	}
	r.s3, r.mgmt = match[1], match[2]
	r.https = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	r.stop = sync.OnceValue(func() error {
		cancel()
		return <-done
	})
	t.Cleanup(func() {
		r.https.CloseIdleConnections()
		if err := r.stop(); err != nil {
			t.Errorf("run() = %v; want nil", err)
		}
	})
	return r
}

func openMemory(context.Context, *config.Config, *slog.Logger) (*backend, error) {
	return &backend{store: memstore.New(), close: func() error { return nil },
		health: func() endpoint.Health { return endpoint.Health{Status: endpoint.OK} }}, nil
}

func (r *running) client(c sigv4.Credential) *client.Client {
	r.t.Helper()
	to, err := client.New(client.Config{Endpoint: r.s3, Credential: c, Retries: -1})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(to.Close)
	return to
}

func (r *running) get(path string) (int, string) {
	r.t.Helper()
	resp, err := r.https.Get(r.mgmt + path)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

var testCredential = sigv4.Credential{AccessKey: "ak", SecretKey: "secret-key"}

var testEnvironment = environment(envAccessKey, "ak", envSecretKey, "secret-key")

func TestServes(t *testing.T) {
	ctx := context.Background()
	r := start(t, nil, testEnvironment)
	c := r.client(testCredential)
	if err := c.CreateBucket(ctx, "bucket"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Put(ctx, "bucket", "k", []byte("hello"), client.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	result, err := c.Get(ctx, "bucket", "k", &got, client.GetOptions{})
	if err != nil || got.String() != "hello" || !result.Verified {
		t.Errorf("Get() = %+v %q, %v; want hello, verified", result, &got, err)
	}
	wrong := r.client(sigv4.Credential{AccessKey: "ak", SecretKey: "another"})
	if _, err := wrong.ListBuckets(ctx); client.Code(err) != "SignatureDoesNotMatch" {
		t.Errorf("with a wrong secret: %v; want SignatureDoesNotMatch", err)
	}
	unknown := r.client(sigv4.Credential{AccessKey: "other", SecretKey: "another"})
	if _, err := unknown.ListBuckets(ctx); client.Code(err) != "InvalidAccessKeyId" {
		t.Errorf("with an unknown key: %v; want InvalidAccessKeyId", err)
	}
	_, metrics := r.get("/metrics")
	for _, want := range []string{
		`millrace_s3_requests_total{code="200",op="PutObject",transport="http"} 1`,
		`millrace_s3_requests_total{code="403",op="ListBuckets",transport="http"} 2`,
		`millrace_s3_bytes_total{direction="in",transport="http"} 5`,
		`millrace_s3_requests_in_flight 0`,
		`millrace_rdma_declined_total{reason="off"} 0`,
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("metrics have no %q", want)
		}
	}
	status, body := r.get("/healthz")
	var health endpoint.Health
	if err := json.Unmarshal([]byte(body), &health); err != nil || status != 200 || health.Version != "v1" {
		t.Errorf("GET /healthz = %d %q, %v", status, body, err)
	}
	if strings.Contains(r.log.String(), "secret-key") {
		t.Error("the secret is in the log")
	}
	if strings.Contains(r.out.String(), "secret") {
		t.Error("a secret from the environment was printed")
	}
}

func TestCredentialsArePrintedOnce(t *testing.T) {
	dir := t.TempDir()
	in := func(c *config.Config) { c.Dir = dir }
	r := start(t, in, environment())
	first := r.out.String()
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	c, err := ReadCredential(dir + "/credentials")
	if err != nil || !strings.Contains(first, "access_key="+c.AccessKey) || !strings.Contains(first, "secret_key="+c.SecretKey) {
		t.Errorf("first start printed %q; want the credentials in the file (%v)", first, err)
	}
	r = start(t, in, environment())
	if second := r.out.String(); strings.Contains(second, "_key=") {
		t.Errorf("second start printed %q; want no credentials", second)
	}
	if _, err := r.client(c).ListBuckets(context.Background()); err != nil {
		t.Errorf("with the kept credentials: %v", err)
	}
}

// slowBody gives its bytes when it is released.
type slowBody struct {
	started, release chan struct{}
	once             sync.Once
	rest             []byte
}

func (b *slowBody) Read(p []byte) (int, error) {
	b.once.Do(func() { close(b.started) })
	<-b.release
	if len(b.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}

// TestDrain: a stop lets the request in progress end, and takes no new ones.
func TestDrain(t *testing.T) {
	ctx := context.Background()
	r := start(t, nil, testEnvironment)
	c := r.client(testCredential)
	if err := c.CreateBucket(ctx, "bucket"); err != nil {
		t.Fatal(err)
	}
	body := &slowBody{started: make(chan struct{}), release: make(chan struct{}), rest: []byte("hello")}
	putDone := make(chan error, 1)
	go func() { putDone <- putRaw(r.s3+"/bucket/k", body, 5) }()
	<-body.started
	r.waitInFlight()
	stopped := make(chan error, 1)
	go func() { stopped <- r.stop() }()
	address := strings.TrimPrefix(r.s3, "http://")
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			break // no longer listening
		}
		conn.Close()
		if time.Now().After(deadline) {
			t.Fatal("still accepting 5 s after the stop")
		}
	}
	if status, body := r.get("/healthz"); status != 503 || !strings.Contains(body, "stopping") {
		t.Errorf("GET /healthz while stopping = %d %s; want 503", status, body)
	}
	select {
	case err := <-stopped:
		t.Fatalf("stopped (%v) with a request in progress", err)
	default:
	}
	close(body.release)
	if err := <-putDone; err != nil {
		t.Errorf("the request in progress: %v", err)
	}
	if err := <-stopped; err != nil {
		t.Errorf("run() = %v; want nil", err)
	}
}

// TestDrainTimeout: a request that does not end is cut off.
func TestDrainTimeout(t *testing.T) {
	r := start(t, func(c *config.Config) { c.DrainTimeout = 10 * time.Millisecond }, testEnvironment)
	if err := r.client(testCredential).CreateBucket(context.Background(), "bucket"); err != nil {
		t.Fatal(err)
	}
	body := &slowBody{started: make(chan struct{}), release: make(chan struct{})}
	putDone := make(chan error, 1)
	go func() { putDone <- putRaw(r.s3+"/bucket/k", body, 5) }()
	<-body.started
	r.waitInFlight()
	if err := r.stop(); err != nil {
		t.Errorf("run() = %v; want nil", err)
	}
	close(body.release)
	if err := <-putDone; err == nil {
		t.Error("the request that was cut off succeeded")
	}
}

// waitInFlight waits until the server has a request in progress: a client that sends one is not
// enough, since its connection may still be in the kernel's queue.
func (r *running) waitInFlight() {
	r.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if _, text := r.get("/metrics"); strings.Contains(text, "millrace_s3_requests_in_flight 1") {
			return
		}
		if time.Now().After(deadline) {
			r.t.Fatal("no request in progress")
		}
	}
}

// putRaw sends a signed PUT whose body is a stream.
func putRaw(url string, body io.Reader, size int64) error {
	req, err := http.NewRequest(http.MethodPut, url, body)
	if err != nil {
		return err
	}
	req.ContentLength = size
	signer := sigv4.Signer{Credential: testCredential, Region: "us-east-1"}
	if _, err := signer.Sign(req, sigv4.UnsignedPayload, time.Now()); err != nil {
		return err
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body)
		return &client.Error{Code: resp.Status, Message: string(text)}
	}
	return nil
}

func TestConnectionLimit(t *testing.T) {
	r := start(t, func(c *config.Config) { c.MaxConnections = 1 }, testEnvironment)
	address := strings.TrimPrefix(r.s3, "http://")
	first, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	request := "GET / HTTP/1.1\r\nHost: x\r\n\r\n"
	answered := func(conn net.Conn, limit time.Duration) bool {
		_ = conn.SetReadDeadline(time.Now().Add(limit))
		n, _ := conn.Read(make([]byte, 1))
		return n == 1
	}
	if _, err := io.WriteString(first, request); err != nil || !answered(first, 10*time.Second) {
		t.Fatalf("first connection: no answer (%v)", err)
	}
	second, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if _, err := io.WriteString(second, request); err != nil || answered(second, 100*time.Millisecond) {
		t.Errorf("second connection was answered beside the first (%v)", err)
	}
	first.Close()
	if !answered(second, 10*time.Second) {
		t.Error("second connection: no answer after the first was closed")
	}
}

func TestAddressInUse(t *testing.T) {
	r := start(t, nil, testEnvironment)
	c := config.Default()
	c.Dir, c.Listen, c.MgmtListen = t.TempDir(), strings.TrimPrefix(r.s3, "http://"), "127.0.0.1:0"
	err := run(context.Background(), &c, Options{Stdout: io.Discard, Logger: quiet(), Getenv: testEnvironment}, openMemory)
	if err == nil || !strings.Contains(err.Error(), "listen for S3") {
		t.Errorf("run() on an address in use = %v; want an error", err)
	}
}
