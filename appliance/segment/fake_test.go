package segment

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minio/crc64nvme"

	"github.com/millrace/millrace/appliance/arena"
	"github.com/millrace/millrace/appliance/erasure"
)

var errDrive = errors.New("drive error")

// fakeShard is a shard in memory. It checks how it is called and verifies checksums on reads.
type fakeShard struct {
	data []byte
	crcs []uint64

	failWriteAt int64         // the WriteAt that reaches this offset fails; -1: none
	failReadAt  int64         // the ReadShard that covers this offset fails; -1: none
	gate        chan struct{} // what the first ReadShard from gateFrom on waits for
	gateFrom    int64
	gateHeld    atomic.Bool

	mu        sync.Mutex
	next      int64
	broken    bool
	reads     int
	readBytes int64
	seen      [][]byte // the buffers of the calls, if wanted
	keep      bool
}

func newFakeShard(g erasure.Geometry) *fakeShard {
	return &fakeShard{
		data: make([]byte, g.ShardBytes()), crcs: make([]uint64, g.Blocks()), failWriteAt: -1, failReadAt: -1,
	}
}

func (s *fakeShard) WriteAt(bufs [][]byte, off int64, crcs []uint64) error {
	n := int64(0)
	for _, b := range bufs {
		n += int64(len(b))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keep {
		s.seen = append(s.seen, bufs...)
	}
	end := off + n
	if off != s.next || s.broken || off%erasure.BlockBytes != 0 ||
		(end%erasure.BlockBytes != 0 && end != int64(len(s.data))) || end > int64(len(s.data)) {
		panic(fmt.Sprintf("WriteAt %d+%d; expected at %d, broken %v", off, n, s.next, s.broken))
	}
	s.next = end
	if s.failWriteAt >= 0 && end > s.failWriteAt {
		s.broken = true
		return errDrive
	}
	for at := off; len(bufs) > 0; bufs = bufs[1:] {
		copy(s.data[at:], bufs[0])
		at += int64(len(bufs[0]))
	}
	if want := blockCRCs(s.data[off:end]); !slices.Equal(crcs, want) {
		panic(fmt.Sprintf("WriteAt %d+%d with checksums %x; want %x", off, n, crcs, want))
	}
	copy(s.crcs[off/erasure.BlockBytes:], crcs)
	return nil
}

func (s *fakeShard) ReadShard(off int64, bufs [][]byte) error {
	n := int64(0)
	for _, b := range bufs {
		n += int64(len(b))
	}
	end := off + n
	if off%erasure.BlockBytes != 0 || n == 0 || end > int64(len(s.data)) ||
		(end%erasure.BlockBytes != 0 && end != int64(len(s.data))) {
		panic(fmt.Sprintf("ReadShard %d+%d of %d", off, n, len(s.data)))
	}
	if s.gate != nil && off >= s.gateFrom && s.gateHeld.CompareAndSwap(false, true) {
		<-s.gate
		for _, b := range bufs { // a late answer that scribbles over what it was given
			for i := range b {
				b[i] = 0xEE
			}
		}
		return nil
	}
	s.mu.Lock()
	s.reads++
	s.readBytes += n
	if s.keep {
		s.seen = append(s.seen, bufs...)
	}
	s.mu.Unlock()
	if s.failReadAt >= off && s.failReadAt < end {
		for _, b := range bufs { // a failed read leaves anything behind
			clear(b)
		}
		return errDrive
	}
	for at := off; len(bufs) > 0; bufs = bufs[1:] {
		copy(bufs[0], s.data[at:])
		at += int64(len(bufs[0]))
	}
	for at := off; at < end; at += erasure.BlockBytes {
		if crc64nvme.Checksum(s.data[at:min(end, at+erasure.BlockBytes)]) != s.crcs[at/erasure.BlockBytes] {
			return errors.New("checksum mismatch")
		}
	}
	return nil
}

// rig is an IO over an arena that must be empty, and a process without new goroutines, at the end.
type rig struct {
	*IO
	t     testing.TB
	arena *arena.Arena
}

func newRig(t testing.TB, arenaBytes int64, cfg Config) *rig {
	t.Helper()
	a, err := arena.New(arena.Config{SizeBytes: arenaBytes, Strict: true})
	if err != nil {
		t.Fatal(err)
	}
	before := runtime.NumGoroutine()
	t.Cleanup(func() {
		for i := 0; (runtime.NumGoroutine() > before || a.InUseBytes() > 0) && i < 2000; i++ {
			time.Sleep(time.Millisecond)
		}
		if n := runtime.NumGoroutine(); n > before {
			t.Errorf("%d goroutines, %d before", n, before)
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	if cfg.HedgeAfter == 0 {
		cfg.HedgeAfter = time.Minute // hedging, without being surprised by a busy machine
	}
	cfg.Arena = a
	return &rig{IO: New(cfg), t: t, arena: a}
}

func (r *rig) wantIdle() {
	r.t.Helper()
	if n := r.arena.InUseBytes(); n != 0 {
		r.t.Fatalf("%d bytes of the arena in use", n)
	}
}

// dirty fills the arena with bytes that are not zero, so that missing padding shows.
func (r *rig) dirty() {
	b, err := r.arena.AcquireN(context.Background(), int(r.arena.CapacityBytes()/arena.MaxBytes), arena.MaxBytes)
	if err != nil {
		r.t.Fatal(err)
	}
	for i := range b.Len() {
		p := b.At(i)
		for j := range p {
			p[j] = 0xA5
		}
	}
	b.Release()
}

func (r *rig) geometry(s erasure.Scheme, size int64) erasure.Geometry {
	r.t.Helper()
	g, err := erasure.NewGeometry(s, size)
	if err != nil {
		r.t.Fatal(err)
	}
	return g
}

func newShards(g erasure.Geometry) []*fakeShard {
	shards := make([]*fakeShard, g.Scheme.Shards())
	for j := range shards {
		shards[j] = newFakeShard(g)
	}
	return shards
}

func writers(shards []*fakeShard) []ShardWriter {
	out := make([]ShardWriter, len(shards))
	for j, s := range shards {
		if s != nil {
			out[j] = s
		}
	}
	return out
}

// readers leaves out the shards of the set lost.
func readers(shards []*fakeShard, lost uint) []ShardReader {
	out := make([]ShardReader, len(shards))
	for j, s := range shards {
		if lost>>j&1 == 0 {
			out[j] = s
		}
	}
	return out
}

// store writes data and returns the shards.
func (r *rig) store(g erasure.Geometry, data []byte) []*fakeShard {
	r.t.Helper()
	shards := newShards(g)
	res, err := r.Write(context.Background(), g, writers(shards), bytes.NewReader(data), nil)
	if err != nil || res.FailedShards() != 0 {
		r.t.Fatalf("Write %v of %d bytes: %v, failed %v", g.Scheme, g.SizeBytes, err, res.Failed)
	}
	if want := crc64nvme.Checksum(data); res.CRC64NVME != want {
		r.t.Fatalf("Write %v of %d bytes: CRC %x; want %x", g.Scheme, g.SizeBytes, res.CRC64NVME, want)
	}
	r.wantIdle()
	return shards
}

// wantRange reads a range and compares.
func (r *rig) wantRange(g erasure.Geometry, from []ShardReader, data []byte, off, n int64) ReadReport {
	r.t.Helper()
	var got bytes.Buffer
	report, err := r.Read(context.Background(), g, from, off, n, &got)
	if err != nil {
		r.t.Fatalf("Read %v of %d bytes, range %d+%d: %v", g.Scheme, g.SizeBytes, off, n, err)
	}
	if !bytes.Equal(got.Bytes(), data[off:off+n]) {
		r.t.Fatalf("Read %v of %d bytes, range %d+%d: wrong bytes", g.Scheme, g.SizeBytes, off, n)
	}
	return report
}

// payload is n bytes that differ from place to place.
func payload(n int64, seed uint64) []byte {
	p := make([]byte, n+7)
	rng := rand.NewPCG(seed, 0)
	for i := int64(0); i < n; i += 8 {
		binary.LittleEndian.PutUint64(p[i:], rng.Uint64())
	}
	return p[:n:n]
}

// trickle gives a body in odd bits, with io.EOF together with the last.
type trickle struct {
	p    []byte
	step int
}

func (t *trickle) Read(p []byte) (int, error) {
	t.step = t.step*7%9973 + 1
	n := copy(p[:min(len(p), t.step)], t.p)
	if t.p = t.p[n:]; len(t.p) == 0 {
		return n, io.EOF
	}
	return n, nil
}

func parseSchemes(t testing.TB, texts ...string) []erasure.Scheme {
	t.Helper()
	var out []erasure.Scheme
	for _, text := range texts {
		s, err := erasure.ParseScheme(text)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, s)
	}
	return out
}
