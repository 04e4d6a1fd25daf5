package iwarp

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"github.com/millrace/millrace/verbs"
)

// answering is a peer that waits for a READ request and sends what answer makes of it.
func answering(t *testing.T, crc bool, answer func(readRequest) [][]byte) verbs.Endpoint {
	return silentPeer(t, func(c net.Conn) {
		skip := len(sealed(appendTagged(nil, opWrite, true, 0, 0, 0), crc)) + lengthBytes + untaggedBytes
		b := make([]byte, skip+readRequestBytes)
		if _, err := io.ReadFull(c, b); err != nil {
			return
		}
		for _, frame := range answer(parseReadRequest(b[skip:])) {
			if _, err := c.Write(sealed(frame, crc)); err != nil {
				return
			}
			if rand.IntN(40) == 0 {
				time.Sleep(time.Millisecond)
			}
		}
		_, _ = io.Copy(io.Discard, c)
	})
}

// cut makes an answer in segments of the given sizes, over and over.
func cut(r readRequest, data []byte, sizes ...int) [][]byte {
	var out [][]byte
	to := r.sinkTO
	for i := 0; len(data) > 0; i++ {
		n := min(len(data), sizes[i%len(sizes)])
		b := appendTagged(nil, opReadResponse, n == len(data), r.sinkSTag, to, n)
		out = append(out, append(b, data[:n]...))
		data, to = data[n:], to+uint64(n)
	}
	return out
}

func readFrom(t *testing.T, cfg Config, n int, ep verbs.Endpoint) ([]byte, error) {
	t.Helper()
	dev := Open(cfg)
	t.Cleanup(func() { _ = dev.Close() })
	c, err := dev.Dial(context.Background(), ep, nil)
	if err != nil {
		t.Fatal(err)
	}
	r, err := dev.Register(make([]byte, n))
	if err != nil {
		t.Fatal(err)
	}
	local := [][]byte{r.Bytes()[:n/3], r.Bytes()[n/3 : n/2], r.Bytes()[n/2:]}
	return r.Bytes(), verbs.NewRequester(dev.Info(), 1).Read(context.Background(), c, verbs.Window{SizeBytes: int64(n)}, 0, local)
}

// TestAnswers: however a peer cuts its answer, the bytes are right.
func TestAnswers(t *testing.T) {
	data := make([]byte, 1_200_001)
	for i := range data {
		data[i] = byte(rand.Uint32())
	}
	for _, sizes := range [][]int{
		{65520}, {32768}, {9001}, {60_000, 60_000, 60_000, 1}, {5000, 65520, 0, 1}, {65521, 65520}, {50_000, 50_001},
		{65520, 65520, 65520, 65520, 65519},
	} {
		for _, crc := range []bool{false, true} {
			ep := answering(t, crc, func(r readRequest) [][]byte { return cut(r, data, sizes...) })
			got, err := readFrom(t, Config{NoCRC: !crc}, len(data), ep)
			if err != nil || !bytes.Equal(got, data) {
				t.Errorf("answer in segments of %v, CRC %v: %v, or wrong bytes", sizes, crc, err)
			}
		}
	}
}

// TestWrongAnswers: an answer that is not to the question ends the connection.
func TestWrongAnswers(t *testing.T) {
	data := make([]byte, 1_000_000)
	for _, tc := range []struct {
		name   string
		change func([][]byte) [][]byte
	}{
		{"other tag", func(f [][]byte) [][]byte { f[3][4]++; return f }},
		{"other offset", func(f [][]byte) [][]byte { f[3][15]++; return f }},
		{"out of order", func(f [][]byte) [][]byte { f[3], f[4] = f[4], f[3]; return f }},
		{"twice", func(f [][]byte) [][]byte { f[4] = f[3]; return f }},
		{"ends too soon", func(f [][]byte) [][]byte { f[3][2] |= ddpLast; return f }},
		{"does not end", func(f [][]byte) [][]byte { f[len(f)-1][2] &^= ddpLast; return f }},
		{"other operation", func(f [][]byte) [][]byte { f[3][3] = rdmapVersion | byte(opWrite); return f }},
		{"a SEND between", func(f [][]byte) [][]byte { f[3] = appendUntagged(nil, opSend, true, 0, 1, 0, 0); return f }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ep := answering(t, false, func(r readRequest) [][]byte { return tc.change(cut(r, data, 65520)) })
			if _, err := readFrom(t, Config{NoCRC: true, StallTimeout: 200 * time.Millisecond}, len(data), ep); !errors.Is(err, verbs.ErrPeer) {
				t.Errorf("Read = %v; want ErrPeer", err)
			}
		})
	}
}
