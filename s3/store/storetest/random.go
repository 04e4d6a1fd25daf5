package storetest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/millrace/millrace/s3/store"
	"github.com/millrace/millrace/s3/store/memstore"
)

// RunRandom does the same random operations on a new store and on memstore, and compares every
// answer. It logs its seed.
func RunRandom(t *testing.T, open New, ops int) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("RunRandom: seed %d", seed)
	RunSeeded(t, open, ops, seed)
}

// RunSeeded is RunRandom with a given seed, to repeat a failure.
func RunSeeded(t *testing.T, open New, ops int, seed uint64) {
	p := &pair{t: t, rand: rand.New(rand.NewPCG(seed, 0)), got: withBucket(t, open), want: memstore.New()}
	mustCreate(t, p.want, bucketName)
	for i := range ops {
		p.step = fmt.Sprintf("seed %d, operation %d", seed, i)
		p.operate()
	}
	p.list(store.ListRequest{Bucket: bucketName, MaxEntries: store.MaxListEntries})
	for _, key := range randomKeys() {
		p.read(key)
	}
}

// pair is the store under test and the model, with what names their uploads.
type pair struct {
	t         *testing.T
	rand      *rand.Rand
	got, want store.Store
	uploads   []uploadPair // ended ones too
	step      string
}

type uploadPair struct{ got, want store.Upload }

func randomKeys() []string {
	return []string{"a", "a/b", "a/c", "a/c/d", "b", "b/", "b//", "b/x", "c\x00", "c\U0010ffff", "c", "d/e/f"}
}

func (p *pair) key() string { return pick(p.rand, randomKeys()) }

func pick[T any](r *rand.Rand, list []T) T { return list[r.IntN(len(list))] }

func (p *pair) operate() {
	switch n := p.rand.IntN(100); {
	case n < 25:
		p.put()
	case n < 45:
		p.read(p.key())
	case n < 55:
		key := p.key()
		p.same("Delete "+key, func(s store.Store, _ int) (any, error) {
			return nil, s.Delete(p.t.Context(), store.DeleteRequest{Bucket: bucketName, Key: key})
		})
	case n < 70:
		p.list(store.ListRequest{
			Bucket: bucketName, Prefix: pick(p.rand, []string{"", "a", "a/", "b/", "c"}),
			Delimiter: pick(p.rand, []string{"", "", "/", "//", "c"}),
			After:     pick(p.rand, append(randomKeys(), "", "", "a/", "b/0")), MaxEntries: p.rand.IntN(5),
		})
	case n < 75:
		p.createUpload()
	case n < 88:
		p.putPart()
	case n < 94:
		p.complete()
	case n < 96:
		p.abort()
	case n < 98:
		p.listParts()
	default:
		p.listUploads()
	}
}

// same does one thing on both stores and compares: both fail with the same sentinel, or both
// give the same value. Times and upload IDs are not compared.
func (p *pair) same(what string, do func(s store.Store, i int) (any, error)) {
	p.t.Helper()
	got, gotErr := do(p.got, 0)
	want, wantErr := do(p.want, 1)
	if sentinel(gotErr) != sentinel(wantErr) {
		p.t.Fatalf("%s: %s: error %v; want %v", p.step, what, gotErr, wantErr)
	}
	ignore := []cmp.Option{
		cmpopts.EquateEmpty(), cmpopts.IgnoreTypes(time.Time{}), cmpopts.IgnoreFields(store.Upload{}, "ID"),
		cmpopts.IgnoreFields(store.UploadsPage{}, "NextKey", "NextID"),
	}
	if d := cmp.Diff(want, got, ignore...); d != "" {
		p.t.Fatalf("%s: %s differs (-want +got):\n%s", p.step, what, d)
	}
}

func (p *pair) put() {
	key, seed := p.key(), p.rand.Uint64()
	data := content(seed, p.size())
	how := p.rand.IntN(8)
	user := map[string]string{"seed": fmt.Sprint(seed)}
	p.same(fmt.Sprintf("Put %q, %d bytes, way %d", key, len(data), how), func(s store.Store, _ int) (any, error) {
		r := store.PutRequest{
			Bucket: bucketName, Key: key, SizeBytes: int64(len(data)), Body: bytes.NewReader(data), User: user,
		}
		switch how {
		case 0:
			r.SizeBytes++
		case 1:
			r.Body = failingReader{bytes.NewReader(data), errStop}
		case 2:
			r.Precondition = func(o *store.Object) error {
				if o != nil {
					return errStop
				}
				return nil
			}
		}
		return s.Put(p.t.Context(), r)
	})
}

func (p *pair) size() int {
	switch p.rand.IntN(20) {
	case 0:
		return 1<<20 + p.rand.IntN(1<<20)
	case 1, 2, 3:
		return p.rand.IntN(200_000)
	case 4:
		return 0
	default:
		return p.rand.IntN(20_000)
	}
}

func (p *pair) read(key string) {
	off, n := p.rand.Float64(), p.rand.Float64()
	p.same("read "+key, func(s store.Store, _ int) (any, error) {
		r, err := s.Open(p.t.Context(), bucketName, key)
		if err != nil {
			return nil, err
		}
		info := r.Info()
		start := int64(off * float64(info.SizeBytes))
		length := int64(n * float64(info.SizeBytes-start))
		if off < 0.5 {
			start, length = 0, info.SizeBytes
		}
		var buf bytes.Buffer
		if err := r.WriteRange(p.t.Context(), &buf, start, length); err != nil {
			return nil, err
		}
		return []any{info, length, etag(buf.Bytes())}, r.Close()
	})
}

func (p *pair) list(r store.ListRequest) {
	p.same(fmt.Sprintf("List %+v", r), func(s store.Store, _ int) (any, error) {
		page, err := s.List(p.t.Context(), r)
		if !page.Truncated {
			page.Next = ""
		}
		for i := range page.Objects { // a listing may leave these out
			page.Objects[i].System, page.Objects[i].User, page.Objects[i].Attributes = nil, nil, nil
		}
		return page, err
	})
}
