package torture

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/millrace/millrace/s3/client"
)

var fullDir = flag.String("full-dir", "", "a small file system to fill with metadata, for TestFullServer; \"\" means none")

// full is a small pool, served by the real program, that is filled.
type full struct {
	t      *testing.T
	binary string
	dir    string
	p      *process
	client *client.Client
	want   map[string]content
	made   int
}

// TestFullServer fills a pool with objects of one size and of another until it refuses them with StorageFull, kills the
// server, and wants that the next one starts, reads, lists and deletes, and then takes more.
func TestFullServer(t *testing.T) {
	f := &full{t: t, binary: buildMillrace(t), dir: filepath.Join(t.TempDir(), "pool"), want: map[string]content{}}
	if *fullDir != "" {
		f.dir = filepath.Join(*fullDir, "pool")
	}
	f.start("--drives", "3", "--drive-size", "64MiB", "--scheme", "2+1")
	if err := f.client.CreateBucket(t.Context(), bucket); err != nil {
		t.Fatal(err)
	}
	const large, small, tiny = 1 << 20, 20 << 10, 4 << 10
	f.fill(large)
	f.fill(small)
	if *fullDir != "" {
		f.fill(tiny)
	}
	t.Logf("%d objects", len(f.want))
	f.kill()
	f.start()
	f.verify()
	if err := f.put(small); !isFull(err) {
		t.Errorf("put to a full pool after a restart = %v; want StorageFull", err)
	}
	n := 0
	for key := range f.want {
		if n++; n%2 == 0 {
			if err := f.client.Delete(t.Context(), bucket, key); err != nil {
				t.Fatalf("delete of %s in a full pool = %v; want nil", key, err)
			}
			delete(f.want, key)
		}
	}
	f.goesOn(large)
	f.fill(large)
	f.kill()
	f.start()
	f.verify()
	f.p.terminate(t)
	fsck(t, f.binary, f.dir)
}

func (f *full) start(args ...string) {
	f.t.Helper()
	f.p = spawn(f.t, f.binary, append([]string{"--dir", f.dir}, args...)...)
	var err error
	f.client, err = client.New(client.Config{Endpoint: f.p.waitReady(f.t).s3, Credential: credential, Retries: -1})
	if err != nil {
		f.t.Fatal(err)
	}
}

// kill is kill -9, and a check of the drives.
func (f *full) kill() {
	f.t.Helper()
	f.client.Close()
	f.p.kill()
	fsck(f.t, f.binary, f.dir)
}

func isFull(err error) bool {
	var answer *client.Error
	return errors.As(err, &answer) && answer.Code == "StorageFull" && answer.StatusCode == http.StatusInsufficientStorage
}

func (f *full) put(sizeBytes int) error {
	f.made++
	key, c := fmt.Sprintf("k%05d", f.made), content{seed: uint64(f.made), sizeBytes: sizeBytes}
	_, err := f.client.Put(context.Background(), bucket, key, c.bytes(), client.PutOptions{Metadata: c.metadata()})
	if err == nil {
		f.want[key] = c
	}
	return err
}

// fill puts objects until one is refused.
func (f *full) fill(sizeBytes int) {
	f.t.Helper()
	for range 200_000 {
		if err := f.put(sizeBytes); isFull(err) {
			return
		} else if err != nil {
			f.t.Fatalf("put = %v; want nil or StorageFull", err)
		}
	}
	f.t.Fatal("the pool is never full")
}

// goesOn waits until there is space again.
func (f *full) goesOn(sizeBytes int) {
	f.t.Helper()
	for range 1000 {
		err := f.put(sizeBytes)
		if err == nil {
			return
		}
		if !isFull(err) {
			f.t.Fatalf("put = %v; want nil or StorageFull", err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	f.t.Fatal("no space after deletes")
}

// verify reads and lists all that is there.
func (f *full) verify() {
	f.t.Helper()
	for key, c := range f.want {
		var data bytes.Buffer
		if _, err := f.client.Get(context.Background(), bucket, key, &data, client.GetOptions{}); err != nil {
			f.t.Fatalf("get of %s = %v; want nil", key, err)
		}
		if !bytes.Equal(data.Bytes(), c.bytes()) {
			f.t.Errorf("get of %s gives %d other bytes", key, data.Len())
		}
	}
	listed := 0
	for _, err := range f.client.List(context.Background(), bucket, client.ListOptions{}) {
		if err != nil {
			f.t.Fatalf("list = %v; want nil", err)
		}
		listed++
	}
	if listed != len(f.want) {
		f.t.Errorf("%d keys are listed; want %d", listed, len(f.want))
	}
}
