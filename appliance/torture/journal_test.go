package torture

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strconv"

	"github.com/millrace/millrace/s3/client"
)

// content is what may be stored under a key: bytes that follow from a seed. Its zero value is no object.
type content struct {
	seed      uint64 // also kept in the object's metadata; never 0
	sizeBytes int
}

func (c content) bytes() []byte {
	p := make([]byte, c.sizeBytes)
	var key [32]byte
	for i := range 8 {
		key[i] = byte(c.seed >> (8 * i))
	}
	_, _ = rand.NewChaCha8(key).Read(p)
	return p
}

func (c content) metadata() map[string]string {
	return map[string]string{"seed": strconv.FormatUint(c.seed, 10)}
}

func (c content) String() string {
	if c == (content{}) {
		return "no object"
	}
	return fmt.Sprintf("%d bytes of seed %d", c.sizeBytes, c.seed)
}

// entry is what is known of a key: the last acknowledged content, and those that calls without an answer may
// have put there since.
type entry struct {
	acked content
	maybe []content
}

// journal is what one worker did to its own keys.
type journal struct {
	worker  int
	entries map[string]*entry
}

func newJournal(worker int) *journal { return &journal{worker: worker, entries: map[string]*entry{}} }

// prefix begins the worker's keys.
func (j *journal) prefix() string { return fmt.Sprintf("w%d/", j.worker) }

func (j *journal) of(key string) *entry {
	e := j.entries[key]
	if e == nil {
		e = &entry{}
		j.entries[key] = e
	}
	return e
}

// did notes the outcome of a call that makes c the content of key.
func (e *entry) did(c content, err error) {
	if err != nil {
		e.maybe = append(e.maybe, c)
		return
	}
	e.acked, e.maybe = c, nil
}

// settle takes what was found as what is there from now on. It says whether it may be that.
func (e *entry) settle(found content) bool {
	ok := found == e.acked
	for _, m := range e.maybe {
		ok = ok || found == m
	}
	e.acked, e.maybe = found, nil
	return ok
}

// recognise gives the content that an object is, judged by its bytes and its metadata.
func (e *entry) recognise(data []byte, info client.Info) (content, error) {
	for _, c := range append([]content{e.acked}, e.maybe...) {
		if c == (content{}) || info.Metadata["seed"] != c.metadata()["seed"] {
			continue
		}
		if int64(c.sizeBytes) != info.SizeBytes || !bytes.Equal(c.bytes(), data) {
			return c, fmt.Errorf("%d bytes that are not the %v", len(data), c)
		}
		return c, nil
	}
	return content{}, fmt.Errorf("%d bytes of seed %q; want %v or one of %v",
		len(data), info.Metadata["seed"], e.acked, e.maybe)
}
