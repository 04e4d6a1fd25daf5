package iwarp

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/verbs"
)

// siwAddress makes the tests run that need the kernel's software iWARP, rping of librdmacm, and a machine to
// themselves.
var siwAddress = flag.String("siw", "", "address of an interface with the kernel's siw, whose parameters can be set")

const (
	siwPort    = 7174
	siwPeer    = "/test/siwpeer"  // testdata/siwpeer.c
	siwTimeout = 90 * time.Second // a guest stands still for a minute now and then, on a machine that is busy
)

// Values of siw's rtr_type: what may be its first message in peer-to-peer mode, as in the ORD but with its bytes swapped.
const (
	rtrRead = "64"
	rtrBoth = "192"
)

// siw is the kernel's side of a test: rping over the device siw.
type siw struct {
	t    *testing.T
	addr netip.AddrPort
	out  bytes.Buffer
	cmd  *exec.Cmd
}

// newSIW sets siw's parameters (in sysfs) and the MTU of the loopback interface, over which all goes.
func newSIW(t *testing.T, params map[string]string, mtu int) *siw {
	t.Helper()
	if *siwAddress == "" {
		t.Skip("needs -siw")
	}
	values := map[string]string{"mpa_version": "2", "mpa_crc_required": "0", "mpa_crc_strict": "0", "peer_to_peer": "0",
		"rtr_type": rtrBoth, "try_gso": "0"}
	maps.Copy(values, params)
	for name, value := range values {
		if err := os.WriteFile(filepath.Join("/sys/module/siw/parameters", name), []byte(value), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command("busybox", "ifconfig", "lo", "mtu", fmt.Sprint(mtu)).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	s := &siw{t: t, addr: netip.AddrPortFrom(netip.MustParseAddr(*siwAddress), siwPort)}
	s.kernelLog()
	return s
}

// rping starts rping, which lives as long as the test at most.
func (s *siw) rping(args ...string) {
	s.t.Helper()
	s.start("rping", append(args, "-a", s.addr.Addr().String(), "-p", fmt.Sprint(s.addr.Port()))...)
}

func (s *siw) start(name string, args ...string) {
	s.t.Helper()
	all := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &all); err != nil { // siw pins what is registered
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), siwTimeout)
	s.t.Cleanup(cancel)
	s.cmd = exec.CommandContext(ctx, name, args...)
	s.cmd.Stdout, s.cmd.Stderr = &s.out, &s.out
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
}

// end waits for the program. rping must have done so many rounds; with 0 rounds, its exit status must be 0. The error has what it
// has printed, and what the kernel has said about siw. (rping exits with 0 after some errors, and without after some
// successes, when its thread for events finds them closed.)
func (s *siw) end(rounds int) error {
	err := s.cmd.Wait()
	said := s.kernelLog()
	done := strings.Count(s.out.String(), "ping data: rdma-ping-")
	if said == "" && done == rounds && (err == nil || rounds > 0) {
		return nil
	}
	return fmt.Errorf("%v: %v; %d rounds, want %d\n%s%s", s.cmd.Args, err, done, rounds, s.out.String(), said)
}

// kernelLog takes the lines about siw out of the kernel's log.
func (s *siw) kernelLog() string {
	s.t.Helper()
	buf := make([]byte, 1<<18)
	n, err := unix.Klogctl(unix.SYSLOG_ACTION_READ_CLEAR, buf)
	if err != nil {
		s.t.Fatal(err)
	}
	var lines strings.Builder
	for line := range strings.Lines(string(buf[:n])) {
		if strings.Contains(line, "siw: ") {
			lines.WriteString(line)
		}
	}
	return lines.String()
}

// pinger is our side of rping's protocol, over one connection.
type pinger struct {
	t    *testing.T
	ctx  context.Context
	dev  *Device
	mem  []byte // what messages are received in and sent from, then four buffers of size bytes
	reg  verbs.Region
	conn verbs.Conn
	size int
	long bool // the second message is one of size bytes
	recv *verbs.Queue
	send *verbs.Queue
	req  *verbs.Requester
}

// infoBytes is the length of every message: address, key and size of a buffer, big-endian.
const infoBytes = 16

func newPinger(t *testing.T, cfg Config, size int) *pinger {
	t.Helper()
	cfg.StallTimeout = siwTimeout
	p := &pinger{t: t, dev: Open(cfg), size: size, recv: verbs.NewQueue(8), send: verbs.NewQueue(8)}
	t.Cleanup(func() { _ = p.dev.Close() })
	p.mem = make([]byte, pageBytes+4*size)
	var err error
	if p.reg, err = p.dev.Register(p.mem); err != nil {
		t.Fatal(err)
	}
	p.req = verbs.NewRequester(p.dev.Info(), 8)
	var cancel context.CancelFunc
	p.ctx, cancel = context.WithTimeout(t.Context(), siwTimeout)
	t.Cleanup(cancel)
	return p
}

// buffer is the n-th of the buffers, and where it lies in the region.
func (p *pinger) buffer(n int) ([]byte, int64) {
	off := pageBytes + n*p.size
	return p.mem[off : off+p.size], int64(off)
}

// expect posts RECVs: for a message, and for the next one, or the long one.
func (p *pinger) expect() error {
	next := p.mem[:infoBytes]
	if p.long {
		next, _ = p.buffer(3)
	}
	return errors.Join(p.receive(p.mem[:infoBytes]), p.receive(next))
}

func (p *pinger) receive(b []byte) error {
	return p.conn.Post(&verbs.WorkRequest{Op: verbs.OpRecv, Local: [][]byte{b}}, p.recv)
}

// message waits for a message.
func (p *pinger) message() (verbs.Window, error) {
	c, err := p.recv.Wait(p.ctx)
	switch {
	case err != nil:
		return verbs.Window{}, err
	case c.Err != nil:
		return verbs.Window{}, c.Err
	case c.Bytes != infoBytes:
		return verbs.Window{}, fmt.Errorf("a message of %d bytes; want %d", c.Bytes, infoBytes)
	}
	b := p.mem[:infoBytes]
	w := verbs.Window{Addr: binary.BigEndian.Uint64(b), RKey: binary.BigEndian.Uint32(b[8:]), SizeBytes: int64(binary.BigEndian.Uint32(b[12:]))}
	if p.long {
		return w, nil
	}
	return w, p.receive(b)
}

// tell sends a message. What is in it matters only where it names a buffer. It waits for no answer, since rping may
// disconnect when it has the last one.
func (p *pinger) tell(w verbs.Window) error {
	b := p.mem[infoBytes : 2*infoBytes]
	binary.BigEndian.PutUint64(b, w.Addr)
	binary.BigEndian.PutUint32(b[8:], w.RKey)
	binary.BigEndian.PutUint32(b[12:], uint32(w.SizeBytes))
	if err := p.conn.Post(&verbs.WorkRequest{Op: verbs.OpSend, Local: [][]byte{b}, Unfenced: true}, p.send); err != nil {
		return err
	}
	return wait(p.ctx, p.send)
}

func wait(ctx context.Context, q *verbs.Queue) error {
	c, err := q.Wait(ctx)
	return errors.Join(err, c.Err)
}

// dial connects to rping -s as soon as that listens.
func (p *pinger) dial(to netip.AddrPort) error {
	for {
		var err error
		if p.conn, err = p.dev.Dial(p.ctx, verbs.EndpointAt(to), nil); err == nil {
			return p.expect()
		}
		if p.ctx.Err() != nil {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// ping does what rping -c does in a round: one buffer is read, the other written with the same bytes.
func (p *pinger) ping(round int, access verbs.Access) error {
	from, _ := p.buffer(0)
	to, _ := p.buffer(1)
	for i := range from { // rping -s writes as much as is a string in C
		from[i] = 'a' + byte((i*7+i/251+round)%26)
	}
	copy(from, "rdma-ping-") // as rping -c begins
	from[p.size-1] = 0
	clear(to)
	source, sink, err := p.bind(access)
	if err != nil {
		return err
	}
	defer source.Close()
	defer sink.Close()
	if err := p.offer(source.Window(verbs.Endpoint{}), sink.Window(verbs.Endpoint{})); err != nil {
		return err
	}
	if !bytes.Equal(from, to) {
		return fmt.Errorf("round %d: the bytes that were written are not those that were read", round)
	}
	return nil
}

// bind opens the first buffer for READs, and the second with the access given.
func (p *pinger) bind(access verbs.Access) (source, sink verbs.Binding, err error) {
	_, off := p.buffer(0)
	if source, err = p.reg.Bind(off, int64(p.size), verbs.RemoteRead); err != nil {
		return nil, nil, err
	}
	_, off = p.buffer(1)
	sink, err = p.reg.Bind(off, int64(p.size), access)
	return source, sink, err
}

// offer names the two buffers to rping -s, each when the one before has been used.
func (p *pinger) offer(windows ...verbs.Window) error {
	for _, w := range windows {
		if err := p.tell(w); err != nil {
			return err
		}
		if _, err := p.message(); err != nil {
			return err
		}
	}
	return nil
}

// listen accepts the connection of rping -c, which start starts.
func (p *pinger) listen(at netip.AddrPort, start func()) error {
	accepted := make(chan error, 1)
	l, err := p.dev.Listen(at, func(c verbs.Conn) {
		p.conn = c
		accepted <- p.expect()
	})
	if err != nil {
		return err
	}
	defer l.Close()
	start()
	select {
	case err := <-accepted:
		return err
	case <-p.ctx.Done():
		return p.ctx.Err()
	}
}

// pong does what rping -s does in a round.
func (p *pinger) pong() error {
	b, _ := p.buffer(0)
	source, err := p.message()
	if err == nil {
		err = p.req.Read(p.ctx, p.conn, source, 0, [][]byte{b[:source.SizeBytes]})
	}
	if err == nil {
		err = p.tell(verbs.Window{})
	}
	if err != nil {
		return err
	}
	sink, err := p.message()
	if err == nil {
		err = p.req.Write(p.ctx, p.conn, sink, 0, [][]byte{b[:source.SizeBytes]}, false)
	}
	if err == nil {
		err = p.tell(verbs.Window{})
	}
	return err
}

// mark fills a buffer with the pattern of siwpeer.c, of which each side has its own.
func mark(b []byte, seed int) {
	for i := range b {
		b[i] = byte(i*131 + i>>8*7 + seed)
	}
}

// bothWays does what siwpeer.c says that each side does. Our side reads and writes while siw does.
func (p *pinger) bothWays(dialled bool) error {
	ours, off := p.buffer(0)
	written, _ := p.buffer(1)
	read, _ := p.buffer(2)
	sent, _ := p.buffer(3)
	mark(ours, 2)
	b, err := p.reg.Bind(off, int64(2*p.size), verbs.RemoteRead|verbs.RemoteWrite|verbs.Scratch)
	if err != nil {
		return err
	}
	defer b.Close()
	if dialled {
		err = p.tell(b.Window(verbs.Endpoint{}))
	}
	if err != nil {
		return err
	}
	theirs, err := p.message()
	if err == nil && !dialled {
		err = p.tell(b.Window(verbs.Endpoint{}))
	}
	if err == nil {
		err = p.req.Read(p.ctx, p.conn, theirs, 0, [][]byte{read})
	}
	if err == nil {
		// Unfenced: siw answers a READ of no bytes with those of the work request before, if it has one in hand.
		err = p.req.Write(p.ctx, p.conn, theirs, int64(p.size), [][]byte{ours}, true)
	}
	if err == nil {
		err = p.conn.Post(&verbs.WorkRequest{Op: verbs.OpSend, Local: [][]byte{ours}, Unfenced: true}, p.send)
	}
	if err != nil {
		return err
	}
	if err := errors.Join(wait(p.ctx, p.send), wait(p.ctx, p.recv)); err != nil {
		return err
	}
	want := make([]byte, p.size)
	mark(want, 1)
	for name, got := range map[string][]byte{"what was written": written, "what was read": read, "the message": sent} {
		if !bytes.Equal(got, want) {
			err = errors.Join(err, fmt.Errorf("%s: the bytes are wrong", name))
		}
	}
	return err
}
