package rdma_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/s3/gateway"
	"github.com/millrace/millrace/s3/store"
	"github.com/millrace/millrace/s3/store/memstore"
	"github.com/millrace/millrace/verbs/iwarp"
)

// scripted is a store whose reads, and the end of whose writes, are what a test says.
type scripted struct {
	store.Store
	sizeBytes int64
	read      func(ctx context.Context, w io.Writer, off, n int64) error
	finish    func()
}

func (s *scripted) Open(ctx context.Context, bucket, key string) (store.Reader, error) {
	r, err := s.Store.Open(ctx, bucket, key)
	if err != nil || s.read == nil {
		return r, err
	}
	return scriptedReader{r, s}, nil
}

func (s *scripted) Put(ctx context.Context, r store.PutRequest) (store.Object, error) {
	inner := r.Finish
	r.Finish = func(d store.Digests) (store.Seal, error) {
		if s.finish != nil {
			s.finish()
		}
		return inner(d)
	}
	return s.Store.Put(ctx, r)
}

type scriptedReader struct {
	store.Reader
	s *scripted
}

func (r scriptedReader) Info() store.Object {
	o := r.Reader.Info()
	o.SizeBytes = r.s.sizeBytes
	return o
}

func (r scriptedReader) WriteRange(ctx context.Context, w io.Writer, off, n int64) error {
	return r.s.read(ctx, w, off, n)
}

func newScripted(t *testing.T, limit time.Duration) (*scripted, *rig) {
	t.Helper()
	s := &scripted{Store: memstore.New()}
	r := newRig(t, options{store: s, gateway: func(c *gateway.Config) { c.Limits.RDMA = limit }})
	r.must("PUT", "/bucket/o", "data")
	return s, r
}

// TestBeyondTheWindow: an object that is larger than any window is read by ranges.
func TestBeyondTheWindow(t *testing.T) {
	s, r := newScripted(t, 0)
	s.sizeBytes = 6 << 30
	s.read = func(_ context.Context, w io.Writer, off, n int64) error {
		_, err := w.Write(bytes.Repeat([]byte{byte(off >> 30)}, int(n)))
		return err
	}
	h := newHost(t, 70_000, iwarp.Config{})
	a := r.do("GET", "/bucket/o", "", tokenHeader+h.window(70_000))
	expect(t, "GET of 6 GiB", a, 400, "", "InvalidRDMAToken")
	a = r.do("GET", "/bucket/o", "", tokenHeader+h.window(70_000), "Range: bytes=5368709120-5368779119")
	expect(t, "GET of a range", a, 206, "206", "")
	same(t, "GET of a range", h.memory(), bytes.Repeat([]byte{5}, 70_000))
}

// TestStoreFails: when the store fails in the middle, what was written has arrived before the answer, and
// nothing comes after it.
func TestStoreFails(t *testing.T) {
	s, r := newScripted(t, 0)
	s.sizeBytes = 1 << 20
	s.read = func(_ context.Context, w io.Writer, _, n int64) error {
		if _, err := w.Write(bytes.Repeat([]byte{7}, int(n)/2)); err != nil {
			return err
		}
		return errors.New("a drive is on fire")
	}
	h := newHost(t, 1<<20, iwarp.Config{})
	a := r.do("GET", "/bucket/o", "", tokenHeader+h.window(1<<20))
	expect(t, "GET", a, 500, "", "InternalError")
	if strings.Contains(a.body, "fire") {
		t.Errorf("the answer tells of the inside: %s", a.body)
	}
	want := make([]byte, 1<<20)
	copy(want, bytes.Repeat([]byte{7}, 1<<19))
	same(t, "the window at the answer", h.memory(), want)
	if n := r.device.Counters().Live; n != 1 {
		t.Errorf("%d connections live; want 1", n)
	}
	s.read = func(_ context.Context, w io.Writer, _, n int64) error {
		_, err := w.Write(make([]byte, n+1))
		return err
	}
	expect(t, "GET with a store that writes too much", r.do("GET", "/bucket/o", "", tokenHeader+h.window(1<<20)),
		500, "500", "RDMATransferFailed")
	s.read = func(_ context.Context, w io.Writer, _, n int64) error {
		_, err := w.Write(make([]byte, n-1))
		return err
	}
	expect(t, "GET with a store that writes too little", r.do("GET", "/bucket/o", "", tokenHeader+h.window(1<<20)),
		500, "", "InternalError")
}

// TestStoreIsSlow: the limit of time holds for the drives, too.
func TestStoreIsSlow(t *testing.T) {
	s, r := newScripted(t, 200*time.Millisecond)
	s.sizeBytes = 1 << 20
	h := newHost(t, 1<<20, iwarp.Config{})
	for _, tc := range []struct {
		first       int
		status      int
		reply, code string
	}{
		{0, 503, "", "SlowDown"}, {1000, 500, "500", "RDMATransferFailed"},
	} {
		s.read = func(ctx context.Context, w io.Writer, _, _ int64) error {
			if tc.first > 0 {
				if _, err := w.Write(make([]byte, tc.first)); err != nil {
					return err
				}
			}
			<-ctx.Done()
			return ctx.Err()
		}
		expect(t, "GET", r.do("GET", "/bucket/o", "", tokenHeader+h.window(1<<20)), tc.status, tc.reply, tc.code)
	}
	s.read, s.finish = nil, func() { time.Sleep(400 * time.Millisecond) }
	expect(t, "PUT", r.do("PUT", "/bucket/p", "", tokenHeader+h.window(1<<20)), 500, "500", "RDMATransferFailed")
	if a := r.do("GET", "/bucket/p", ""); a.status != 404 {
		t.Errorf("GET after a PUT that took too long = %d; want 404", a.status)
	}
}
