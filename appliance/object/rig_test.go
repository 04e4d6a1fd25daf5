package object_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/millrace/millrace/appliance/arena"
	"github.com/millrace/millrace/appliance/erasure"
	"github.com/millrace/millrace/appliance/object"
	"github.com/millrace/millrace/nvme/blockdev"
	"github.com/millrace/millrace/nvme/shardstore"
	"github.com/millrace/millrace/s3/store"
)

const driveBytes = 256 << 20

// box is a set of in-memory drives that outlives the engines opened on it.
type box struct {
	t      testing.TB
	arena  *arena.Arena
	cache  *shardstore.Cache
	drives []*boxDrive
	power  *power // nil: it never fails
	strays []object.Member

	relocateAfter time.Duration
	configure     func(*object.Config)                 // nil: nothing else
	adjust        func(*boxDrive, *shardstore.Options) // nil: nothing; how a drive is opened
}

type boxDrive struct {
	fs     *vfs.MemFS
	mem    *blockdev.Mem
	fault  *blockdev.Fault
	absent atomic.Bool // Present says so, at the next look
	gone   bool        // not there at the next start
	isNew  bool        // formatted to replace another at the next start
	power  *power      // its own supply; nil: that of the box
}

func newBox(t testing.TB, scheme erasure.Scheme, drives int) *box {
	t.Helper()
	return newBoxOf(t, scheme, drives, driveBytes)
}

// emptyBox is a box without drives.
func emptyBox(t testing.TB) *box {
	t.Helper()
	a, err := arena.New(arena.Config{SizeBytes: 64 << 20, Strict: true})
	if err != nil {
		t.Fatal(err)
	}
	b := &box{t: t, arena: a, cache: shardstore.NewCache(16<<20, 200)}
	t.Cleanup(func() {
		if n := a.InUseBytes(); n != 0 {
			t.Errorf("arena has %d bytes in use at the end; want 0", n)
		}
	})
	return b
}

func newBoxOf(t testing.TB, scheme erasure.Scheme, drives int, sizeBytes int64) *box {
	t.Helper()
	b := emptyBox(t)
	pool := shardstore.NewPoolID()
	var stores []*shardstore.Store
	for slot := range drives {
		d := &boxDrive{fs: vfs.NewCrashableMem(), mem: blockdev.NewMem(sizeBytes)}
		b.drives = append(b.drives, d)
		label := shardstore.Label{Drive: shardstore.NewDriveID(), Pool: pool, Slot: slot}
		if err := shardstore.Format(context.Background(), b.options(d), label); err != nil {
			t.Fatal(err)
		}
		stores = append(stores, b.openStore(d))
	}
	if err := object.Create(context.Background(), stores, scheme); err != nil {
		t.Fatal(err)
	}
	for _, s := range stores {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

func (b *box) options(d *boxDrive) shardstore.Options {
	d.fault = blockdev.NewFault(d.mem)
	o := shardstore.Options{Data: d.fault, MetaFS: d.fs, MetaDir: "meta", Cache: b.cache, MetaReserveBytes: -1}
	if p := cmp.Or(d.power, b.power); p != nil {
		o.Data = powered{d.fault, p}
		o.MetaFS = errorfs.Wrap(d.fs, p)
	}
	if b.adjust != nil {
		b.adjust(d, &o)
	}
	return o
}

func (b *box) openStore(d *boxDrive) *shardstore.Store {
	b.t.Helper()
	s, err := shardstore.Open(context.Background(), b.options(d))
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

var errAbsent = errors.New("drive was pulled")

// tryOpen opens an engine on the drives that are there.
func (b *box) tryOpen() (*object.Engine, error) {
	cfg := object.Config{Arena: b.arena, CheckInterval: 5 * time.Millisecond, RelocateAfter: b.relocateAfter}
	if b.configure != nil {
		b.configure(&cfg)
	}
	for _, d := range b.drives {
		if d.gone {
			continue
		}
		d.absent.Store(false)
		s, err := shardstore.Open(context.Background(), b.options(d))
		if err != nil {
			for _, m := range cfg.Members {
				_ = m.Store.Close()
			}
			return nil, err
		}
		cfg.Members = append(cfg.Members, object.Member{Store: s, New: d.isNew, Present: func() error {
			if d.absent.Load() {
				return errAbsent
			}
			return nil
		}})
	}
	cfg.Members = append(cfg.Members, b.strays...)
	rand.Shuffle(len(cfg.Members), func(i, j int) { cfg.Members[i], cfg.Members[j] = cfg.Members[j], cfg.Members[i] })
	return object.Open(context.Background(), cfg)
}

func (b *box) open() *object.Engine {
	b.t.Helper()
	e, err := b.tryOpen()
	if err != nil {
		b.t.Fatal(err)
	}
	return e
}

func closeEngine(t testing.TB, e *object.Engine) {
	t.Helper()
	if err := e.Close(); err != nil {
		t.Errorf("Close() = %v; want nil", err)
	}
}

// noise gives n bytes that depend on the seed alone.
func noise(seed uint64, n int) []byte {
	p := make([]byte, n)
	var key [32]byte
	key[0], key[1], key[2] = byte(seed), byte(seed>>8), byte(seed>>16)
	_, _ = rand.NewChaCha8(key).Read(p)
	return p
}

func mustPut(t testing.TB, e store.Store, bucket, key string, body []byte) store.Object {
	t.Helper()
	o, err := put(e, bucket, key, body)
	if err != nil {
		t.Fatalf("Put(%q, %d bytes) = %v; want nil", key, len(body), err)
	}
	return o
}

// mustPuts puts n objects of about that size, and gives their bytes by key.
func mustPuts(t testing.TB, e store.Store, n, sizeBytes int) map[string][]byte {
	t.Helper()
	want := map[string][]byte{}
	for i := range n {
		key := fmt.Sprintf("k%d", i)
		want[key] = noise(uint64(i), sizeBytes+i)
		mustPut(t, e, "b", key, want[key])
	}
	return want
}

func put(e store.Store, bucket, key string, body []byte) (store.Object, error) {
	return e.Put(context.Background(), store.PutRequest{Bucket: bucket, Key: key,
		SizeBytes: int64(len(body)), Body: bytes.NewReader(body)})
}

func get(e store.Store, bucket, key string) ([]byte, error) {
	r, err := e.Open(context.Background(), bucket, key)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	var b bytes.Buffer
	err = r.WriteRange(context.Background(), &b, 0, r.Info().SizeBytes)
	return b.Bytes(), err
}

func wantBytes(t testing.TB, e store.Store, bucket, key string, want []byte) {
	t.Helper()
	got, err := get(e, bucket, key)
	if err != nil {
		t.Fatalf("get(%q) = %v; want %d bytes", key, err, len(want))
	}
	if sha256.Sum256(got) != sha256.Sum256(want) {
		t.Fatalf("get(%q) = %d other bytes; want %d", key, len(got), len(want))
	}
}

func mustBucket(t testing.TB, e store.Store, name string) {
	t.Helper()
	if _, err := e.CreateBucket(context.Background(), store.Bucket{Name: name}); err != nil {
		t.Fatal(err)
	}
}

func waitFor(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for range 2000 {
		if ok() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("waited in vain: %s", what)
}

// freeBytes gives the free bytes of every slot's drive.
func freeBytes(e *object.Engine) string {
	var s string
	for slot := range e.Map().Slots {
		if st := e.Store(slot); st != nil {
			s += fmt.Sprintf("%d:%d ", slot, st.Stats().FreeBytes)
		}
	}
	return s
}

type shortReader struct {
	r io.Reader
	n int64
}

var errClientGone = errors.New("client gone")

func (s *shortReader) Read(p []byte) (int, error) {
	if s.n <= 0 {
		return 0, errClientGone
	}
	n, err := s.r.Read(p[:min(int64(len(p)), s.n)])
	s.n -= int64(n)
	return n, err
}
