package dputest

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/millrace/millrace/s3/client"
	"github.com/millrace/millrace/s3/sigv4"
)

const (
	bucket     = "guest"
	workers    = 4
	keysOfEach = 24
)

func credential() sigv4.Credential {
	return sigv4.Credential{AccessKey: "guestguestguest", SecretKey: "guestguestguestguest"}
}

// object is what may be under a key: bytes that follow from a seed. Its zero value is no object.
type object struct {
	seed      uint64 // never 0 of an object
	sizeBytes int
}

func (o object) bytes() []byte {
	p := make([]byte, o.sizeBytes)
	var key [32]byte
	for i := range 8 {
		key[i] = byte(o.seed >> (8 * i))
	}
	_, _ = rand.NewChaCha8(key).Read(p)
	return p
}

// known is what a worker knows of a key: what was acknowledged last, and what calls without an answer may have put
// there since.
type known struct {
	acked object
	maybe []object
}

// is says whether the bytes may be there, or, with nil, no object.
func (k *known) is(data []byte) bool {
	for _, o := range append(k.maybe, k.acked) {
		if o == (object{}) && data == nil || o != (object{}) && len(data) == o.sizeBytes && bytes.Equal(data, o.bytes()) {
			k.acked, k.maybe = o, nil
			return true
		}
	}
	return false
}

// load is workers that change objects of their own, and know what has to be there.
type load struct {
	t     *testing.T
	cut   atomic.Bool // from now on calls may fail
	calls atomic.Int64
	keys  [workers]map[string]*known
}

func newLoad(t *testing.T) *load {
	l := &load{t: t}
	for i := range l.keys {
		l.keys[i] = map[string]*known{}
	}
	return l
}

func connect(t *testing.T, endpoint string) *client.Client {
	t.Helper()
	c, err := client.New(client.Config{Endpoint: "http://" + endpoint, Credential: credential(), Mode: client.ModeOff, Retries: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// begin lets all workers work until ctx ends or a call fails. What it returns waits for them.
func (l *load) begin(ctx context.Context, endpoint string) (wait func()) {
	var wg sync.WaitGroup
	c := connect(l.t, endpoint)
	for i := range workers {
		rng := rand.New(rand.NewPCG(rand.Uint64(), uint64(i)))
		wg.Go(func() {
			for ctx.Err() == nil && l.step(c, i, rng) {
				l.calls.Add(1)
			}
		})
	}
	l.t.Cleanup(func() { // of a test that ended early
		l.cut.Store(true)
		wg.Wait()
	})
	return wg.Wait
}

// step does one call, and says whether it succeeded.
func (l *load) step(c *client.Client, worker int, rng *rand.Rand) bool {
	key := fmt.Sprintf("w%d/%d", worker, rng.IntN(keysOfEach))
	k := l.keys[worker][key]
	if k == nil {
		k = &known{}
		l.keys[worker][key] = k
	}
	ctx := l.t.Context()
	var next object
	var err error
	switch n := rng.IntN(10); {
	case n == 0:
		err = c.Delete(ctx, bucket, key)
	case n < 4:
		return l.check(c, key, k)
	default:
		next = object{seed: rng.Uint64() | 1, sizeBytes: sizeOf(rng)}
		_, err = c.Put(ctx, bucket, key, next.bytes(), client.PutOptions{})
	}
	if err != nil {
		k.maybe = append(k.maybe, next)
		return l.failed("change of "+key, err)
	}
	k.acked, k.maybe = next, nil
	return true
}

// sizeOf draws the size of an object: from 1 KiB to 8 MiB, small ones more often.
func sizeOf(rng *rand.Rand) int { return 1<<(10+rng.IntN(13)) + rng.IntN(1<<10) }

func (l *load) failed(what string, err error) bool {
	if !l.cut.Load() {
		l.t.Errorf("%s = %v; want nil", what, err)
	}
	return false
}

// check reads a key and compares.
func (l *load) check(c *client.Client, key string, k *known) bool {
	var got bytes.Buffer
	_, err := c.Get(l.t.Context(), bucket, key, &got, client.GetOptions{})
	data := append([]byte{}, got.Bytes()...)
	switch {
	case client.NotFound(err):
		data = nil
	case err != nil:
		return l.failed("get "+key, err)
	}
	if !k.is(data) {
		l.t.Errorf("%s: found %d bytes (nothing: %v); want %+v", key, len(data), data == nil, k)
	}
	return true
}

// verify reads all keys. It gives how many there are, and how many bytes.
func (l *load) verify(endpoint string) (objects, sizeBytes int) {
	l.cut.Store(false)
	c := connect(l.t, endpoint)
	listed := map[string]bool{}
	for e, err := range c.List(l.t.Context(), bucket, client.ListOptions{}) {
		if err != nil {
			l.t.Errorf("list: %v", err)
			return 0, 0
		}
		listed[e.Key] = true
	}
	for _, keys := range l.keys {
		for key, k := range keys {
			l.check(c, key, k)
			there := k.acked != (object{})
			if listed[key] != there {
				l.t.Errorf("%s is listed: %v; want %v", key, listed[key], there)
			}
			delete(listed, key)
			if there {
				objects, sizeBytes = objects+1, sizeBytes+k.acked.sizeBytes
			}
		}
	}
	for key := range listed {
		l.t.Errorf("%s is listed, and was never put", key)
	}
	return objects, sizeBytes
}
