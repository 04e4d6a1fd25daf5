package object_test

import (
	"bytes"
	"context"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"flag"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace/millrace/appliance/erasure"
	"github.com/millrace/millrace/appliance/object"
	linear "github.com/millrace/millrace/appliance/torture/history"
	"github.com/millrace/millrace/s3/store"
)

var (
	histories    = flag.Int("histories", 4, "how many histories TestHistory records")
	historyCalls = flag.Int("history-calls", 120, "how many calls each client of a history makes")
	historySeed  = flag.Uint64("history-seed", 0, "the seed of the first history; 0 means a fresh one")
)

const (
	historyClients = 6
	judgeLimit     = time.Minute
)

// historyKeys are few, so that clients meet.
func historyKeys() []string { return []string{"a/0", "a/1", "b/0"} }

// scene is a box that clients call while things happen to its drives.
type scene struct {
	t        *testing.T
	b        *box
	rec      *linear.Recorder
	calls    atomic.Int64 // made
	failures atomic.Int64 // calls that ended with an error that says nothing
	made     atomic.Uint64

	mu sync.RWMutex // shared over each call; a restart excludes them
	e  *object.Engine

	main   *power // feeds all drives
	failed map[*boxDrive]bool

	uploadsMu sync.Mutex
	uploads   map[string][]sharedUpload // by key
}

// sharedUpload is an upload whose parts are there, for any client to complete or abort.
type sharedUpload struct{ id, value string }

// caller is one client of a scene.
type caller struct {
	s    *scene
	id   int
	rng  *rand.Rand
	seen map[string]string // by key: the version that it saw last
}

var errRefused = errors.New("precondition failed")

// body gives fresh bytes, and the value that stands for them in the history.
func (c *caller) body() ([]byte, string) {
	size := []int{1, 100, 16 << 10, 17 << 10, 200 << 10}[c.rng.IntN(5)]
	p := noise(c.s.made.Add(1), size)
	return p, valueOf(p)
}

func valueOf(p []byte) string {
	sum := md5.Sum(p)
	return hex.EncodeToString(sum[:])
}

// only makes a precondition of a Match.
func only(match string) store.Precondition {
	if match == "" {
		return nil
	}
	return func(cur *store.Object) error {
		if cur == nil && match == linear.Absent || cur != nil && cur.ETag == match {
			return nil
		}
		return errRefused
	}
}

// outcome classifies the answer of a mutation.
func (s *scene) outcome(err error) linear.Outcome {
	switch {
	case err == nil:
		return linear.Outcome{}
	case errors.Is(err, errRefused):
		return linear.Outcome{Status: linear.Refused}
	case errors.Is(err, store.ErrNoSuchKey):
		return linear.Outcome{Status: linear.NoKey}
	case errors.Is(err, store.ErrNoSuchUpload):
		return linear.Outcome{Status: linear.NoUpload}
	}
	s.failures.Add(1)
	return linear.Outcome{Status: linear.Unknown}
}

// call makes one random call.
func (c *caller) call() {
	s := c.s
	s.mu.RLock()
	defer s.mu.RUnlock()
	s.calls.Add(1)
	keys := historyKeys()
	key := keys[c.rng.IntN(len(keys))]
	switch c.rng.IntN(16) {
	case 0, 1:
		c.put(key, "")
	case 2:
		c.put(key, linear.Absent)
	case 3:
		c.put(key, c.seen[key])
	case 4, 5:
		c.delete(key, "")
	case 6:
		c.delete(key, c.seen[key])
	case 7:
		c.upload(key)
	case 8, 9:
		c.endUpload(key)
	case 10:
		c.stat(key)
	case 11, 12:
		c.list([]string{"", "a/", "b/"}[c.rng.IntN(3)])
	default:
		c.get(key)
	}
}

func (c *caller) put(key, match string) {
	body, value := c.body()
	h := linear.Call{Kind: linear.Put, Key: key, Value: value, Match: match}
	began := c.s.rec.Now()
	_, err := c.s.e.Put(context.Background(), store.PutRequest{Bucket: "b", Key: key, SizeBytes: int64(len(body)),
		Body: bytes.NewReader(body), Precondition: only(match)})
	c.s.rec.Ended(c.id, began, h, c.s.outcome(err))
}

func (c *caller) delete(key, match string) {
	h := linear.Call{Kind: linear.Delete, Key: key, Match: match}
	began := c.s.rec.Now()
	err := c.s.e.Delete(context.Background(), store.DeleteRequest{Bucket: "b", Key: key, Precondition: only(match)})
	c.s.rec.Ended(c.id, began, h, c.s.outcome(err))
}

// get opens the current version, and reads it after a while: it must be what it was when it was opened.
func (c *caller) get(key string) {
	began := c.s.rec.Now()
	r, err := c.s.e.Open(context.Background(), "b", key)
	o := c.s.outcome(err)
	if err == nil {
		o.Value = r.Info().ETag
		c.seen[key] = o.Value
	}
	c.s.rec.Ended(c.id, began, linear.Call{Kind: linear.Get, Key: key}, o)
	if err != nil {
		return
	}
	defer r.Close()
	time.Sleep(time.Duration(c.rng.IntN(3)) * time.Millisecond)
	sum := md5.New()
	switch err := readInPieces(r, sum, c.rng); {
	case err != nil:
		c.s.failures.Add(1)
		if errors.Is(err, store.ErrDamaged) {
			c.s.t.Errorf("read of %q = %v; want bytes, or another error", key, err)
		}
	case hex.EncodeToString(sum.Sum(nil)) != o.Value:
		c.s.t.Errorf("read of %q gives other bytes than those of version %s", key, o.Value)
	}
}

func readInPieces(r store.Reader, w io.Writer, rng *rand.Rand) error {
	for off, size := int64(0), r.Info().SizeBytes; off < size; {
		n := min(size-off, 1+rng.Int64N(size))
		if err := r.WriteRange(context.Background(), w, off, n); err != nil {
			return err
		}
		off += n
	}
	return nil
}

func (c *caller) stat(key string) {
	began := c.s.rec.Now()
	info, err := c.s.e.Stat(context.Background(), "b", key)
	o := c.s.outcome(err)
	if err == nil {
		o.Value = info.ETag
		c.seen[key] = o.Value
	}
	c.s.rec.Ended(c.id, began, linear.Call{Kind: linear.Get, Key: key}, o)
}

// list walks a listing. Each page says of every key in its range that it is there, or that it is not.
func (c *caller) list(prefix string) {
	r := store.ListRequest{Bucket: "b", Prefix: prefix, MaxEntries: 1 + c.rng.IntN(3)}
	for {
		began := c.s.rec.Now()
		page, err := c.s.e.List(context.Background(), r)
		ended := c.s.rec.Now()
		if err != nil {
			c.s.outcome(err)
			return
		}
		found := map[string]string{}
		for _, o := range page.Objects {
			found[o.Key] = o.ETag
		}
		for _, key := range historyKeys() {
			if key <= r.After || len(key) < len(prefix) || key[:len(prefix)] != prefix || page.Truncated && key > page.Next {
				continue
			}
			o := linear.Outcome{Value: found[key]}
			if o.Value == "" {
				o.Status = linear.NoKey
			}
			c.s.rec.Note(c.id, began, ended, linear.Call{Kind: linear.Get, Key: key}, o)
		}
		if !page.Truncated {
			return
		}
		r.After = page.Next
	}
}

// upload begins an upload and gives it two parts.
func (c *caller) upload(key string) {
	ctx, e := context.Background(), c.s.e
	began := c.s.rec.Now()
	u, err := e.CreateUpload(ctx, store.Upload{Bucket: "b", Key: key})
	o := c.s.outcome(err)
	if err != nil {
		return // nobody knows its name
	}
	c.s.rec.Ended(c.id, began, linear.Call{Kind: linear.Create, Key: key, Upload: u.ID}, o)
	var whole []byte
	for number := 1; number <= 2; number++ {
		body, _ := c.body()
		if _, err := e.PutPart(ctx, store.PartRequest{Bucket: "b", Key: key, UploadID: u.ID, Number: number,
			SizeBytes: int64(len(body)), Body: bytes.NewReader(body)}); err != nil {
			c.s.outcome(err)
			return
		}
		whole = append(whole, body...)
	}
	c.s.uploadsMu.Lock()
	defer c.s.uploadsMu.Unlock()
	c.s.uploads[key] = append(c.s.uploads[key], sharedUpload{u.ID, valueOf(whole)})
}

// endUpload completes or aborts one of the last uploads of a key; others may be at the same one.
func (c *caller) endUpload(key string) {
	c.s.uploadsMu.Lock()
	list := c.s.uploads[key]
	c.s.uploadsMu.Unlock()
	if len(list) == 0 {
		c.upload(key)
		return
	}
	u := list[len(list)-1-c.rng.IntN(min(2, len(list)))]
	h := linear.Call{Kind: linear.Abort, Key: key, Upload: u.id}
	began := c.s.rec.Now()
	if c.rng.IntN(4) == 0 {
		err := c.s.e.AbortUpload(context.Background(), "b", key, u.id)
		c.s.rec.Ended(c.id, began, h, c.s.outcome(err))
		return
	}
	h.Kind, h.Value = linear.Complete, u.value
	if c.rng.IntN(3) == 0 {
		h.Match = linear.Absent
	}
	made, err := c.s.e.CompleteUpload(context.Background(), store.CompleteRequest{Bucket: "b", Key: key, UploadID: u.id,
		Numbers: []int{1, 2}, Precondition: only(h.Match),
		Finish: func(store.Upload, []store.Part) (store.Seal, error) { return store.Seal{ETag: u.value}, nil }})
	o := c.s.outcome(err)
	if err == nil {
		o.Value = made.ETag
	}
	c.s.rec.Ended(c.id, began, h, o)
}

// TestHistory lets clients call an engine on few keys, with weather and without, and judges the answers.
func TestHistory(t *testing.T) {
	seed := *historySeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d", seed)
	calls := 0
	for i := range *histories {
		w := weathers()[i%len(weathers())]
		calls += oneHistory(t, seed+uint64(i), w)
		if t.Failed() {
			t.Fatalf("seed %d, %s", seed+uint64(i), w.name)
		}
	}
	t.Logf("tally: histories=%d history_calls=%d", *histories, calls)
}

// oneHistory gives the number of calls that were judged.
func oneHistory(t *testing.T, seed uint64, w weather) int {
	rng := rand.New(rand.NewPCG(seed, 0))
	s := &scene{t: t, b: newBox(t, erasure.Scheme{Data: 2, Parity: 2}, 5), rec: &linear.Recorder{},
		failed: map[*boxDrive]bool{}, uploads: map[string][]sharedUpload{}}
	s.reopen(rng, true, false)
	mustBucket(t, s.e, "b")
	var wg sync.WaitGroup
	left := atomic.Int64{}
	left.Store(historyClients)
	for i := range historyClients {
		c := &caller{s: s, id: i, rng: rand.New(rand.NewPCG(seed, uint64(i+1))), seen: map[string]string{}}
		wg.Go(func() {
			for range *historyCalls {
				c.call()
			}
			left.Add(-1)
		})
	}
	for n := int64(1); left.Load() > 0; n++ {
		if w.change != nil && s.calls.Load() > n*100 {
			w.change(s, rng)
		}
		time.Sleep(time.Millisecond)
	}
	wg.Wait()
	s.finish(rng)
	if n := s.failures.Load(); w.change == nil && n > 0 {
		t.Errorf("%d calls failed; want none", n)
	}
	if err := s.rec.Check(judgeLimit); err != nil {
		t.Errorf("history of %d calls, %d failed: %v", s.rec.Len(), s.failures.Load(), err)
	}
	return s.rec.Len()
}

// finish brings all drives back, reads every key once more, and lets the engine check itself.
func (s *scene) finish(rng *rand.Rand) {
	s.restart(rng, true)
	waitFor(s.t, "all in", func() bool { return s.e.Map().CountIn() == len(s.b.drives) && !s.e.Map().NeedsFill() })
	last := &caller{s: s, id: historyClients, rng: rng, seen: map[string]string{}}
	for _, key := range historyKeys() {
		last.get(key)
	}
	last.list("")
	checkPool(s.t, s.e)
	closeEngine(s.t, s.e)
}
