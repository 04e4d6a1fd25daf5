package nbd

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

const testBlocks = 64

func newDrive(t testing.TB) (*Drive, string) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	d, err := Serve(testBlocks*4096, socket, 4096)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d, socket
}

// connect is a client up to the end of the handshake, as QEMU does it.
func connect(t *testing.T, socket string) net.Conn {
	t.Helper()
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	hello := make([]byte, 18)
	if _, err := io.ReadFull(conn, hello); err != nil || string(hello[:16]) != "NBDMAGICIHAVEOPT" || hello[17] != 3 {
		t.Fatalf("the server says %q, %v", hello, err)
	}
	out := binary.BigEndian.AppendUint32(nil, 3)
	for _, option := range []uint32{8, optionGo} { // structured replies, which it doesn't know, and then the export
		out = append(out, "IHAVEOPT"...)
		out = binary.BigEndian.AppendUint32(out, option)
		out = binary.BigEndian.AppendUint32(out, 2)
		out = append(out, 0, 0)
	}
	if _, err := conn.Write(out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []uint32{replyUnsupported, replyInfo, replyAck} {
		var head struct {
			Magic                uint64
			Option, Kind, Length uint32
		}
		if err := binary.Read(conn, binary.BigEndian, &head); err != nil || head.Kind != want {
			t.Fatalf("reply %+v, %v; want kind %#x", head, err, want)
		}
		data := make([]byte, head.Length)
		if _, err := io.ReadFull(conn, data); err != nil {
			t.Fatal(err)
		}
		if want == replyInfo && binary.BigEndian.Uint64(data[2:]) != testBlocks*4096 {
			t.Fatalf("export %x; want %d bytes", data, testBlocks*4096)
		}
	}
	return conn
}

// ask sends a request and gives the error of the reply, and the data of a read.
func ask(t *testing.T, conn net.Conn, command, flags uint16, offset uint64, n int, data []byte) ([]byte, error) {
	t.Helper()
	b := binary.BigEndian.AppendUint32(nil, magicRequest)
	b = binary.BigEndian.AppendUint16(b, flags)
	b = binary.BigEndian.AppendUint16(b, command)
	b = binary.BigEndian.AppendUint64(b, offset^0xabc) // a handle
	b = binary.BigEndian.AppendUint64(b, offset)
	b = binary.BigEndian.AppendUint32(b, uint32(n))
	if _, err := conn.Write(append(b, data...)); err != nil {
		return nil, err
	}
	var head struct {
		Magic, Error uint32
		Handle       uint64
	}
	if err := binary.Read(conn, binary.BigEndian, &head); err != nil {
		return nil, err
	}
	if head.Magic != magicReply || head.Handle != offset^0xabc {
		t.Fatalf("reply %+v", head)
	}
	if head.Error != 0 {
		return nil, syscall.Errno(head.Error)
	}
	if command != commandRead {
		return nil, nil
	}
	got := make([]byte, n)
	_, err := io.ReadFull(conn, got)
	return got, err
}

func TestRequests(t *testing.T) {
	_, socket := newDrive(t)
	conn := connect(t, socket)
	want := bytes.Repeat([]byte("x"), 8192)
	for _, tc := range []struct {
		name    string
		command uint16
		offset  uint64
		n       int
		data    []byte
		err     error
	}{
		{"write", commandWrite, 4096, 8192, want, nil},
		{"flush", commandFlush, 0, 0, nil, nil},
		{"last block", commandRead, (testBlocks - 1) * 4096, 4096, nil, nil},
		{"beyond the end", commandRead, testBlocks * 4096, 512, nil, syscall.EINVAL},
		{"across the end", commandRead, (testBlocks - 1) * 4096, 8192, nil, syscall.EINVAL},
		{"offset overflows", commandRead, ^uint64(0) - 511, 1024, nil, syscall.EINVAL},
		{"not aligned", commandRead, 1, 512, nil, syscall.EINVAL},
		{"trim", 4, 0, 4096, nil, syscall.EINVAL},
	} {
		if _, err := ask(t, conn, tc.command, 0, tc.offset, tc.n, tc.data); !errors.Is(err, tc.err) {
			t.Errorf("%s = %v; want %v", tc.name, err, tc.err)
		}
	}
	if got, err := ask(t, conn, commandRead, 0, 4096, 8192, nil); err != nil || !bytes.Equal(got, want) {
		t.Errorf("read = %.8q…, %v; want what was written", got, err)
	}
}

func TestModes(t *testing.T) {
	d, socket := newDrive(t)
	conn := connect(t, socket)
	read := func() error {
		_, err := ask(t, conn, commandRead, 0, 0, 512, nil)
		return err
	}
	d.Set(Failing)
	if err := read(); !errors.Is(err, syscall.EIO) {
		t.Errorf("failing: %v; want EIO", err)
	}
	d.Set(Slow)
	if begin := time.Now(); read() != nil || time.Since(begin) < SlowDelay {
		t.Error("slow: it was not")
	}
	d.Set(Hanging)
	done := make(chan error, 1)
	go func() { done <- read() }()
	for before := d.Requests(); d.Requests() == before; time.Sleep(time.Millisecond) {
	}
	select {
	case err := <-done:
		t.Errorf("hanging: answered with %v", err)
	default:
	}
	d.Set(Healthy)
	if err := <-done; err != nil {
		t.Errorf("after it hung: %v", err)
	}
	d.Set(Gone)
	if err := read(); err == nil {
		t.Error("gone: answered")
	}
}

// TestDropLosesWhatWasNotFlushed writes three runs of blocks: flushed, written through, and neither.
func TestDropLosesWhatWasNotFlushed(t *testing.T) {
	d, socket := newDrive(t)
	conn := connect(t, socket)
	write := func(text string, flags uint16, first, blocks uint64) {
		for b := first; b < first+blocks; b++ {
			if _, err := ask(t, conn, commandWrite, flags, b*4096, 4096, bytes.Repeat([]byte(text), 4096)); err != nil {
				t.Fatal(err)
			}
		}
	}
	write("a", 0, 0, testBlocks)
	if _, err := ask(t, conn, commandFlush, 0, 0, 0, nil); err != nil {
		t.Fatal(err)
	}
	write("b", 0, 0, 32)
	write("c", flagFUA, 32, 8)
	d.WriteThrough(func(offset int64, n int) bool { return offset == 40*4096 && n == 8*4096 })
	if _, err := ask(t, conn, commandWrite, 0, 40*4096, 8*4096, bytes.Repeat([]byte("c"), 8*4096)); err != nil {
		t.Fatal(err)
	}
	conn.Close()
	lost, of, err := d.Drop(rand.New(rand.NewPCG(1, 2)))
	if err != nil || of != 32 || lost == 0 || lost == 32 {
		t.Errorf("Drop() = %d of %d, %v; want some of 32", lost, of, err)
	}
	conn = connect(t, socket)
	got, err := ask(t, conn, commandRead, 0, 0, testBlocks*4096, nil)
	if err != nil {
		t.Fatal(err)
	}
	count := map[byte]int{}
	for i := 0; i < len(got); i += 4096 {
		if !bytes.Equal(got[i:i+4096], bytes.Repeat(got[i:i+1], 4096)) {
			t.Errorf("block %d is torn", i/4096)
		}
		count[got[i]]++
	}
	if count['a'] != 16+lost || count['b'] != 32-lost || count['c'] != 16 {
		t.Errorf("%v with %d lost", count, lost)
	}
}

// FuzzServe sends anything to a server: it ends the connection, and asks for no more memory than the limits allow.
func FuzzServe(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x03IHAVEOPT\x00\x00\x00\x01\x00\x00\x00\x00" +
		"\x25\x60\x95\x13\x00\x00\x00\x00handle##\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00"))
	f.Add([]byte("\x00\x00\x00\x03IHAVEOPT\x00\x00\x00\x07\x00\x00\x00\x02xx"))
	d, _ := newDrive(f)
	f.Fuzz(func(t *testing.T, in []byte) {
		if err := d.serve(stream{bytes.NewReader(in), io.Discard}); err == nil {
			return // disconnected as it should be
		}
	})
}

type stream struct {
	io.Reader
	io.Writer
}
