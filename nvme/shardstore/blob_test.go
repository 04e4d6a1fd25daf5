package shardstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// blobDrive gives a drive whose records of 3000 bytes lie in blob files, half of them deleted since, with the names
// of the files.
func blobDrive(t *testing.T) (*vfs.MemFS, *testDrive, []string) {
	t.Helper()
	d := newTestDrive(t, 64<<20)
	s := d.open(t)
	for i := range 200 {
		b := s.NewBatch()
		b.Set(blobKey(i), shardBytes(3000, uint64(i)))
		if err := s.Commit(context.Background(), b, i%50 == 49); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.db.Flush(); err != nil {
		t.Fatal(err)
	}
	for i := 0; i < 200; i += 2 {
		b := s.NewBatch()
		b.Delete(blobKey(i))
		if err := s.Commit(context.Background(), b, true); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	all, err := d.fs.List("meta")
	if err != nil {
		t.Fatal(err)
	}
	var blobs []string
	for _, name := range all {
		if strings.HasSuffix(name, ".blob") {
			blobs = append(blobs, "meta/"+name)
		}
	}
	if len(blobs) == 0 {
		t.Fatal("no blob files")
	}
	return d.fs.(*vfs.MemFS), d, blobs
}

func blobKey(i int) []byte { return fmt.Appendf(nil, "key%03d", i) }

// damage rewrites a file, changed.
func damage(t *testing.T, fs vfs.FS, name string, change func([]byte) []byte) {
	t.Helper()
	f, err := fs.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	f, err = fs.Create(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(change(bytes.Clone(text))); err != nil {
		t.Fatal(err)
	}
	f.Close()
}

// TestDamagedBlob damages a blob file everywhere. Every read gives the right bytes or an error, compactions and
// rewrites of it do no harm, and the process lives.
func TestDamagedBlob(t *testing.T) {
	flip := func(at func(n int) int) func([]byte) []byte {
		return func(b []byte) []byte { b[at(len(b))] ^= 0x20; return b }
	}
	for name, change := range map[string]func([]byte) []byte{
		"first block":  flip(func(int) int { return 100 }),
		"middle":       flip(func(n int) int { return n / 2 }),
		"index":        flip(func(n int) int { return n - 45 }),
		"footer":       flip(func(n int) int { return n - 20 }),
		"magic":        flip(func(n int) int { return n - 1 }),
		"checksum":     flip(func(n int) int { return n - 38 }),
		"cut off":      func(b []byte) []byte { return b[:len(b)/2] },
		"nearly empty": func(b []byte) []byte { return b[:10] },
		"empty":        func([]byte) []byte { return nil },
	} {
		for _, compact := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, compact=%v", name, compact), func(t *testing.T) {
				fs, d, blobs := blobDrive(t)
				damage(t, fs, blobs[0], change)
				s, err := Open(context.Background(), d.options())
				if err != nil {
					return // told at once
				}
				if compact { // in the background of Pebble, where a panic would end the process
					if err := s.db.Compact(context.Background(), []byte{0}, []byte{255}, false); err != nil {
						t.Logf("Compact = %v", err)
					}
				}
				for i := 1; i < 200; i += 2 {
					got, err := s.Get(blobKey(i), nil)
					if err == nil && !bytes.Equal(got, shardBytes(3000, uint64(i))) || errors.Is(err, ErrNotFound) {
						t.Errorf("Get(%d) = %d bytes, %v; want the right ones, or another error", i, len(got), err)
					}
				}
				if s.Err() == nil {
					t.Error("nobody noticed the damage")
				}
				_ = s.Close() // a dead drive can't end well
			})
		}
	}
}
