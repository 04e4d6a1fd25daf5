package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/millrace/millrace/appliance/cmd/millrace/sweep"
	"github.com/millrace/millrace/s3/client"
	"github.com/millrace/millrace/s3/sigv4"
)

const (
	accessKey    = "benchbenchbench"
	secretKey    = "benchbenchbenchbench"
	startTimeout = time.Minute
	bucket       = "bench"

	maxClientConnections = 256
)

// server is a program under measurement.
type server struct {
	name   string
	launch func(ctx context.Context, s *server, b *backing, o options) (endpoint string, err error)
	*client.Client
	cmd     *exec.Cmd
	done    chan error
	log     bytes.Buffer
	metrics string // the address of its metrics; "" if it has none of the drives' bytes
	mgmt    string // its management address; "" if it has none
	address string // its S3 endpoint
	web     *http.Client
}

func newMillrace(binary string) *server {
	return &server{name: "Millrace", launch: launchMillrace(binary, "millrace")}
}

func newMinio(binary string) *server { return &server{name: "MinIO", launch: launchMinio(binary)} }

// start launches the server and makes the bucket.
func (s *server) start(ctx context.Context, b *backing, o options) error {
	endpoint, err := s.launch(ctx, s, b, o)
	if err != nil {
		return fmt.Errorf("%w\n%s", err, s.log.String())
	}
	s.address = endpoint
	if s.Client, err = s.dial(client.ModeOff, true); err != nil {
		return err
	}
	for deadline := time.Now().Add(startTimeout); ; time.Sleep(100 * time.Millisecond) {
		err = s.CreateBucket(ctx, bucket)
		if err == nil || ctx.Err() != nil || time.Now().After(deadline) {
			return err
		}
	}
}

// dial returns a client of the server.
func (s *server) dial(mode client.Mode, crc bool) (*client.Client, error) {
	return client.New(client.Config{Endpoint: s.address, Retries: -1, Mode: mode,
		RDMA: client.DeviceConfig{NoCRC: !crc, PoolBytes: mib}, MaxConnections: maxClientConnections,
		Credential: sigv4.Credential{AccessKey: accessKey, SecretKey: secretKey}})
}

// stop ends the server: by SIGTERM, and if that does not help by SIGKILL.
func (s *server) stop() error {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-s.done:
		return nil
	case <-time.After(startTimeout):
		_ = s.cmd.Process.Kill()
		<-s.done
		return fmt.Errorf("%s did not end after SIGTERM", s.name)
	}
}

// spawn starts the program, and leaves its stop with undo, after the drives that it uses. Lines of
// its standard output go to the function.
func (s *server) spawn(undo *cleanup, env []string, line func(string), name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr = &s.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	s.cmd, s.done = cmd, make(chan error, 1)
	undo.add(s.stop)
	go func() {
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			line(lines.Text())
		}
		s.done <- cmd.Wait()
	}()
	return nil
}

var readyLine = regexp.MustCompile(`^millrace: ready s3=(\S+) mgmt=(\S+)`)

// launchMillrace serves drives of that name.
func launchMillrace(binary, name string, more ...string) func(context.Context, *server, *backing, options) (string, error) {
	return func(ctx context.Context, s *server, b *backing, o options) (string, error) {
		args := []string{"serve", "--listen", "127.0.0.1:0", "--mgmt-listen", "127.0.0.1:0",
			"--scheme", o.scheme.String(), "--state-dir", filepath.Join(b.root, name+"-state")}
		args = append(args, more...)
		if b.loop {
			drives, err := b.rawDrives(name)
			if err != nil {
				return "", err
			}
			for _, d := range drives {
				args = append(args, "--drive", d)
			}
		} else {
			args = append(args, "--dir", filepath.Join(b.root, name),
				"--drives", strconv.Itoa(o.scheme.Shards()), "--drive-size", o.driveSize.String())
		}
		ready := make(chan []string, 1)
		env := []string{"MILLRACE_ROOT_ACCESS_KEY=" + accessKey, "MILLRACE_ROOT_SECRET_KEY=" + secretKey}
		err := s.spawn(b.undo, env, func(line string) {
			if m := readyLine.FindStringSubmatch(line); m != nil {
				ready <- m
			}
		}, binary, args...)
		if err != nil {
			return "", err
		}
		select {
		case m := <-ready:
			s.mgmt, s.metrics = m[2], m[2]+"/metrics"
			// The certificate is the server's own, made a moment ago.
			s.web = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
			return m[1], nil
		case err := <-s.done:
			s.done <- err
			return "", fmt.Errorf("ended before it was ready: %w", err)
		case <-time.After(startTimeout):
			return "", errors.New("did not say that it is ready")
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
}

func launchMinio(binary string) func(context.Context, *server, *backing, options) (string, error) {
	return func(_ context.Context, s *server, b *backing, o options) (string, error) {
		drives, err := b.mountedDrives("minio")
		if err != nil {
			return "", err
		}
		address, err := freeAddress()
		if err != nil {
			return "", err
		}
		env := []string{"MINIO_ROOT_USER=" + accessKey, "MINIO_ROOT_PASSWORD=" + secretKey,
			"MINIO_BROWSER=off", "MINIO_UPDATE=off", "MINIO_API_DELETE_CLEANUP_INTERVAL=15s",
			fmt.Sprintf("MINIO_STORAGE_CLASS_STANDARD=EC:%d", o.scheme.Parity)}
		if !b.loop {
			env = append(env, "MINIO_CI_CD=1") // else it refuses folders of the root file system
		}
		args := append([]string{"server", "--quiet", "--address", address}, drives...)
		return "http://" + address, s.spawn(b.undo, env, func(string) {}, binary, args...)
	}
}

// freeAddress is a loopback address that was free a moment ago.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// process reads what the server uses.
func (s *server) process() sweep.Processes { return sweep.Processes{s.cmd.Process.Pid} }

// kernelReadBytes is what the kernel has read from devices for the server.
func (s *server) kernelReadBytes() (int64, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", s.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(content)) {
		if value, ok := strings.CutPrefix(line, "read_bytes: "); ok {
			return strconv.ParseInt(strings.TrimSpace(value), 10, 64)
		}
	}
	return 0, errors.New("no read_bytes of the process")
}

const maxMetricsBytes = 16 << 20

// driveReadBytes is what the server has read from all drives since its start: by its own metrics,
// or else by the kernel's count of the process.
func (s *server) driveReadBytes(ctx context.Context) (int64, error) {
	if s.metrics == "" {
		return s.kernelReadBytes()
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.metrics, nil)
	if err != nil {
		return 0, err
	}
	resp, err := s.web.Do(r)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxMetricsBytes))
	if err != nil {
		return 0, err
	}
	var sum float64
	for _, line := range strings.Split(string(text), "\n") {
		if strings.HasPrefix(line, "millrace_drive_read_bytes_total{") {
			value, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
			if err != nil {
				return 0, err
			}
			sum += value
		}
	}
	return int64(sum), nil
}
