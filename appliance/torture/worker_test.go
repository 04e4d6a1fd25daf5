package torture

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/millrace/millrace/s3/client"
)

const (
	bucket     = "torture"
	keysOfEach = 8
	partBytes  = 5 << 20 // the least that S3 allows
)

// worker does random things to keys of its own, one after the other.
type worker struct {
	t       *testing.T
	rng     *rand.Rand
	journal *journal
	calls   *atomic.Int64
	killed  *atomic.Bool // the server is being ended: calls may fail

	client   *client.Client
	endpoint string
}

// connect points the worker at a server.
func (w *worker) connect(endpoint string) {
	c, err := client.New(client.Config{Endpoint: endpoint, Credential: credential, Retries: -1})
	if err != nil {
		w.t.Fatal(err)
	}
	w.client, w.endpoint = c, endpoint
}

// fresh gives new content, small as a rule.
func (w *worker) fresh() content {
	size := 0
	switch w.rng.IntN(10) {
	case 0:
	case 1, 2, 3, 4:
		size = 1 + w.rng.IntN(16<<10)
	case 5, 6, 7:
		size = 16<<10 + w.rng.IntN(256<<10)
	default:
		size = 1<<20 + w.rng.IntN(2<<20)
	}
	return content{seed: w.rng.Uint64() | 1, sizeBytes: size}
}

var errEnded = errors.New("the server has ended")

// verify reads all of the worker's keys, and takes what is there as the state from then on.
func (w *worker) verify() error {
	listed := map[string]client.Entry{}
	all := client.ListOptions{Prefix: w.journal.prefix(), PageKeys: 3}
	for e, err := range w.client.List(context.Background(), bucket, all) {
		if err != nil {
			return w.failed("list", err)
		}
		listed[e.Key] = e
	}
	for key, e := range w.journal.entries {
		found, info, err := w.find(key, e)
		if err != nil {
			return err
		}
		l, there := listed[key]
		delete(listed, key)
		switch {
		case there != (found != content{}):
			w.t.Errorf("%s: there is %v; its listing says it is there: %v", key, found, there)
		case there && (l.ETag != info.ETag || l.SizeBytes != info.SizeBytes):
			w.t.Errorf("%s is %q of %d bytes, and listed as %q of %d", key, info.ETag, info.SizeBytes, l.ETag, l.SizeBytes)
		}
		if before := *e; !e.settle(found) {
			w.t.Errorf("%s: found %v; want %v, or one of %v", key, found, before.acked, before.maybe)
		}
	}
	for key := range listed {
		w.t.Errorf("%s is listed, and was never put", key)
	}
	return nil
}

// find reads a key, and tells what it is.
func (w *worker) find(key string, e *entry) (content, client.Info, error) {
	var data bytes.Buffer
	r, err := w.client.Get(context.Background(), bucket, key, &data, client.GetOptions{})
	if client.NotFound(err) {
		return content{}, client.Info{}, nil
	}
	if err != nil {
		return content{}, client.Info{}, w.failed("get "+key, err)
	}
	found, err := e.recognise(data.Bytes(), r.Info)
	if err != nil {
		w.t.Errorf("%s: %v", key, err)
	}
	return found, r.Info, nil
}

// failed judges an error: once the server is being ended any will do, before that none.
func (w *worker) failed(what string, err error) error {
	if !w.killed.Load() {
		w.t.Errorf("worker %d: %s = %v; want nil", w.journal.worker, what, err)
	}
	return fmt.Errorf("%w: %w", errEnded, err)
}

// work does random things until a call fails.
func (w *worker) work() {
	for w.step() == nil {
		w.calls.Add(1)
	}
}

func (w *worker) step() error {
	key := fmt.Sprintf("%s%d", w.journal.prefix(), w.rng.IntN(keysOfEach))
	e := w.journal.of(key)
	c := w.fresh()
	var err error
	switch n := w.rng.IntN(20); {
	case n < 3:
		c = content{}
		err = w.client.Delete(context.Background(), bucket, key)
	case n < 4:
		return w.brokenOff(key, c)
	case n < 5:
		c.sizeBytes = partBytes + 1 + w.rng.IntN(1<<20)
		_, err = w.client.Upload(context.Background(), bucket, key, bytes.NewReader(c.bytes()),
			client.UploadOptions{PutOptions: client.PutOptions{Metadata: c.metadata()}, PartBytes: partBytes, Parallel: 2})
	case n < 6:
		return w.upload(key, e, c)
	case n < 8:
		return w.copy(key, e)
	case n < 12:
		return w.reread(key, e)
	default:
		_, err = w.client.Put(context.Background(), bucket, key, c.bytes(), client.PutOptions{Metadata: c.metadata()})
	}
	e.did(c, err)
	if err != nil {
		return w.failed("change of "+key, err)
	}
	return nil
}

// reread reads a key that nobody else changes.
func (w *worker) reread(key string, e *entry) error {
	found, _, err := w.find(key, e)
	if err == nil && found != e.acked {
		w.t.Errorf("%s: read %v; want %v", key, found, e.acked)
	}
	return err
}

// copy copies another key of the worker's.
func (w *worker) copy(key string, e *entry) error {
	keys := make([]string, 0, keysOfEach)
	for k, other := range w.journal.entries {
		if k != key && other.acked != (content{}) {
			keys = append(keys, k)
		}
	}
	if len(keys) == 0 {
		return nil
	}
	slices.Sort(keys)
	from := keys[w.rng.IntN(len(keys))]
	_, err := w.request(http.MethodPut, key, nil, nil, http.Header{"X-Amz-Copy-Source": {"/" + bucket + "/" + from}})
	e.did(w.journal.of(from).acked, err)
	if err != nil {
		return w.failed("copy to "+key, err)
	}
	return nil
}

var errBreak = errors.New("body broken off")

// brokenOff begins a PUT whose body ends too early; whatever comes of it, the key must stay as it is.
func (w *worker) brokenOff(key string, c content) error {
	data := c.bytes()
	body := io.MultiReader(bytes.NewReader(data[:len(data)/2]), failing{})
	_, err := w.request(http.MethodPut, key, nil, &sized{body, int64(len(data)) + 1}, nil)
	if !errors.Is(err, errBreak) {
		return w.failed("broken-off put of "+key, err)
	}
	return nil
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errBreak }

type sized struct {
	io.Reader
	n int64
}
