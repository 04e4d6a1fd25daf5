package iwarp

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/millrace/millrace/verbs"
)

// recorder passes a TCP connection on and keeps what went through, cut into frames.
type recorder struct {
	mu     sync.Mutex
	frames []recorded
}

type recorded struct {
	fromServer bool
	data       []byte
}

// between listens in front of the endpoint and returns its own.
func (r *recorder) between(t *testing.T, ep verbs.Endpoint) verbs.Endpoint {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		a, err := l.Accept()
		if err != nil {
			return
		}
		b, err := net.Dial("tcp", netip.AddrPortFrom(ep.Addr(), uint16(ep.QPN)).String())
		if err != nil {
			return
		}
		go r.pass(a, b, false)
		r.pass(b, a, true)
	}()
	return verbs.EndpointAt(l.Addr().(*net.TCPAddr).AddrPort())
}

func (r *recorder) pass(from, to net.Conn, server bool) {
	var stream []byte
	buf := make([]byte, 64<<10)
	started := false
	for {
		n, err := from.Read(buf)
		stream = append(stream, buf[:n]...)
		r.mu.Lock()
		for {
			size := r.frameBytes(stream, started)
			if size == 0 || size > len(stream) {
				break
			}
			r.frames = append(r.frames, recorded{server, bytes.Clone(stream[:size])})
			stream, started = stream[size:], true
		}
		r.mu.Unlock()
		_, _ = to.Write(buf[:n])
		if err != nil {
			_ = to.(*net.TCPConn).CloseWrite()
			return
		}
	}
}

func (*recorder) frameBytes(b []byte, started bool) int {
	if started {
		if len(b) < headerBytes {
			return 0
		}
		h := header{ulpdu: int(binary.BigEndian.Uint16(b))}
		return h.fpduBytes()
	}
	if len(b) < mpaFixedBytes {
		return 0
	}
	return mpaFixedBytes + int(binary.BigEndian.Uint16(b[mpaFixedBytes-2:]))
}

// pcap writes the frames as a capture of raw IPv4 packets, one frame in each.
func (r *recorder) pcap() []byte {
	out := binary.LittleEndian.AppendUint32(nil, 0xa1b2c3d4)
	out = append(out, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 101, 0, 0, 0)
	seq := [2]uint32{1000, 5000}
	packet := func(from int, flags byte, data []byte) {
		ip := []byte{0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 6, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2}
		binary.BigEndian.PutUint16(ip[2:], uint16(40+len(data)))
		ports := []uint16{40000, 18515}
		if from == 1 {
			ip[15], ip[19] = 2, 1
		}
		tcp := binary.BigEndian.AppendUint16(nil, ports[from])
		tcp = binary.BigEndian.AppendUint16(tcp, ports[1-from])
		tcp = binary.BigEndian.AppendUint32(tcp, seq[from])
		tcp = binary.BigEndian.AppendUint32(tcp, seq[1-from])
		tcp = append(tcp, 0x50, flags, 0xff, 0xff, 0, 0, 0, 0)
		all := append(append(ip, tcp...), data...)
		out = append(out, 0, 0, 0, 0, 0, 0, 0, 0)
		out = binary.LittleEndian.AppendUint32(out, uint32(len(all)))
		out = binary.LittleEndian.AppendUint32(out, uint32(len(all)))
		out = append(out, all...)
		seq[from] += uint32(len(data))
		if flags&2 != 0 {
			seq[from]++
		}
	}
	packet(0, 0x02, nil)
	packet(1, 0x12, nil)
	packet(0, 0x10, nil)
	for _, f := range r.frames {
		from := 0
		if f.fromServer {
			from = 1
		}
		packet(from, 0x18, f.data)
	}
	return out
}

// TestTshark has somebody else's dissector read an exchange of every kind of message.
func TestTshark(t *testing.T) {
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		t.Skip("tshark is not installed")
	}
	var rec recorder
	exchange(t, &rec)
	file := filepath.Join(t.TempDir(), "iwarp.pcap")
	rec.mu.Lock()
	capture := rec.pcap()
	rec.mu.Unlock()
	if err := os.WriteFile(file, capture, 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) string {
		var out, errs bytes.Buffer
		cmd := exec.Command(tshark, append([]string{"-r", file, "-o", "tcp.check_checksum:FALSE"}, args...)...)
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Run(); err != nil {
			t.Fatalf("tshark %s: %v\n%s", strings.Join(args, " "), err, &errs)
		}
		return out.String()
	}
	if bad := run("-Y", "_ws.malformed || _ws.expert.severity >= 0x00600000", "-V"); bad != "" {
		t.Errorf("tshark complains:\n%s", bad)
	}
	all := run("-V")
	for _, want := range []string{
		"Request frame header", "Reply frame header", "OpCode: Write", "OpCode: Read Request", "OpCode: Read Response",
		"OpCode: Send", "OpCode: Terminate", "Good CRC32", "Message sequence number",
	} {
		if !strings.Contains(strings.ToLower(all), strings.ToLower(want)) {
			t.Errorf("tshark does not show %q", want)
		}
	}
	if t.Failed() {
		t.Log(run())
	}
}

// exchange sends a message of every kind through the recorder.
func exchange(t *testing.T, rec *recorder) {
	ctx := context.Background()
	cfg := Config{MaxPayloadBytes: 1400}
	active, passive := Open(cfg), Open(cfg)
	defer active.Close()
	defer passive.Close()
	accepted := make(chan verbs.Conn, 1)
	l, err := passive.Listen(netip.MustParseAddrPort("127.0.0.1:0"), func(c verbs.Conn) { accepted <- c })
	if err != nil {
		t.Fatal(err)
	}
	here, err1 := active.Register(make([]byte, 10_000))
	there, err2 := passive.Register(make([]byte, 10_000))
	b, err3 := there.Bind(0, 10_000, verbs.RemoteRead|verbs.RemoteWrite)
	c, err4 := active.Dial(ctx, rec.between(t, l.Endpoint()), []byte("private data"))
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		t.Fatal(err)
	}
	w := b.Window(verbs.Endpoint{})
	req := verbs.NewRequester(active.Info(), 4)
	err1 = req.Write(ctx, c, w, 0, [][]byte{here.Bytes()[:5000]}, false)
	err2 = req.Read(ctx, c, w, 3, [][]byte{here.Bytes()[:4001]})
	q, rq := verbs.NewQueue(4), verbs.NewQueue(4)
	other := <-accepted
	err3 = other.Post(&verbs.WorkRequest{Op: verbs.OpRecv, Local: [][]byte{there.Bytes()[:2000]}}, rq)
	err4 = c.Post(&verbs.WorkRequest{Op: verbs.OpSend, Local: [][]byte{here.Bytes()[:1999]}}, q)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		t.Fatal(err)
	}
	if done, err := rq.Wait(ctx); err != nil || done.Err != nil {
		t.Fatal(err, done.Err)
	}
	if err := other.Post(&verbs.WorkRequest{Op: verbs.OpRecv}, rq); err != nil {
		t.Fatal(err)
	}
	imm := verbs.WorkRequest{Op: verbs.OpWriteImm, Local: [][]byte{here.Bytes()[:10]}, Addr: w.Addr, RKey: w.RKey, Imm: 7}
	if err := c.Post(&imm, q); err != nil {
		t.Fatal(err)
	}
	if done, err := rq.Wait(ctx); err != nil || done.Err != nil || done.Imm != 7 {
		t.Fatalf("immediate value: %v, %+v", err, done)
	}
	w.RKey++
	if err := req.Write(ctx, c, w, 0, [][]byte{here.Bytes()[:100]}, false); !errors.Is(err, verbs.ErrAccess) {
		t.Fatalf("Write with a wrong key = %v; want ErrAccess", err)
	}
	<-other.Done()
}
