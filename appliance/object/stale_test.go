package object_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/millrace/millrace/appliance/erasure"
	"github.com/millrace/millrace/s3/store"
)

// TestOldCopyOfADrive puts copies of drives back that are older than the pool, while it is off. The pool has not noticed
// that they were away, so the map believes them.
func TestOldCopyOfADrive(t *testing.T) {
	b := newBox(t, erasure.Scheme{Data: 2, Parity: 2}, 6)
	e := b.open()
	mustBucket(t, e, "b")
	want := mustPuts(t, e, 40, 100)
	checkPool(t, e)
	closeEngine(t, e)
	old := []*boxDrive{b.drives[1].copyOf(), b.drives[4].copyOf()}
	e = b.open()
	for i := range 20 {
		key := fmt.Sprintf("k%d", i)
		if i%2 == 0 {
			want[key] = noise(uint64(1000+i), 200+i)
			mustPut(t, e, "b", key, want[key])
			continue
		}
		delete(want, key)
		if err := e.Delete(context.Background(), store.DeleteRequest{Bucket: "b", Key: key}); err != nil {
			t.Fatal(err)
		}
	}
	checkPool(t, e)
	closeEngine(t, e)
	b.drives[1], b.drives[4] = old[0], old[1]
	e = b.open()
	defer closeEngine(t, e)
	for range 2 {
		for i := range 40 {
			key := fmt.Sprintf("k%d", i)
			if body, there := want[key]; there {
				wantBytes(t, e, "b", key, body)
			} else if _, err := get(e, "b", key); !errors.Is(err, store.ErrNoSuchKey) {
				t.Errorf("get(%q), which was deleted = %v; want ErrNoSuchKey", key, err)
			}
		}
		waitFor(t, "the old copies up to date", func() bool { return e.Map().CountIn() == 6 && !e.Map().NeedsFill() })
	}
	checkPool(t, e)
}
