package server

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/mgmt/endpoint"
	"github.com/millrace/millrace/s3/store"
)

func TestReplace(t *testing.T) {
	dir := t.TempDir()
	b, closeFirst := open(t, jbof(dir, 6), quiet())
	if _, err := b.store.CreateBucket(context.Background(), store.Bucket{Name: "b"}); err != nil {
		t.Fatal(err)
	}
	data := bytes.Repeat([]byte("millrace"), 40_000)
	put(t, b.store, "k", data)
	closeFirst()

	// One drive is gone, and of another the metadata.
	if err := os.RemoveAll(filepath.Join(dir, "drives/02")); err != nil {
		t.Fatal(err)
	}
	meta := filepath.Join(dir, "drives/03/meta")
	if err := errors.Join(os.RemoveAll(meta), os.Mkdir(meta, 0o700)); err != nil {
		t.Fatal(err)
	}
	for _, again := range []bool{false, true} { // the option may stay
		c := jbof(dir, 6)
		c.Replace = []string{"2", "3"}
		b, closeIt := open(t, c, quiet())
		for range 1000 {
			if b.health().Status == endpoint.OK {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		if h := b.health(); h.Status != endpoint.OK || h.Drives["in"] != 6 {
			t.Errorf("again %v: health = %+v; want ok, 6 in", again, h)
		}
		check(t, b.store, "k", data)
		closeIt()
	}

	for what, replace := range map[string]string{
		"wipe it first":             "0=" + filepath.Join(dir, "drives/01"),
		"no such file or directory": "0=" + filepath.Join(dir, "misspelt"),
		"the slot has its drive":    "0=" + t.TempDir(),
	} {
		c := jbof(dir, 6)
		c.Replace = []string{replace}
		if _, err := openEngine(context.Background(), c, quiet()); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("start with --replace %s: %v; want %q", replace, err, what)
		}
	}
	b, closeLast := open(t, jbof(dir, 6), quiet())
	defer closeLast()
	check(t, b.store, "k", data)
}
