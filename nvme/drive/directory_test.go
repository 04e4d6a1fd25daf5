package drive_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/millrace/millrace/nvme/blockdev"
	"github.com/millrace/millrace/nvme/drive"
)

const testSizeBytes = 4 << 20

func create(t *testing.T, path string) *drive.Drive {
	t.Helper()
	d, err := drive.Create(context.Background(), path, drive.CreateOptions{SizeBytes: testSizeBytes})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func probe(t *testing.T, path string) drive.Found {
	t.Helper()
	found, err := drive.Probe(path)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestDirectoryLifeCycle(t *testing.T) {
	ctx := context.Background()
	path := filepath.Join(t.TempDir(), "drives", "00")
	if _, err := drive.Open(ctx, path, drive.Options{}); !errors.Is(err, drive.ErrNoDrive) {
		t.Errorf("Open(nothing) = %v; want ErrNoDrive", err)
	}
	d := create(t, path)
	if got := d.Data.SizeBytes(); got != testSizeBytes {
		t.Errorf("SizeBytes() = %d; want %d", got, testSizeBytes)
	}
	page := blockdev.AlignedBuffer(4096)
	copy(page, "hello")
	if err := d.Data.WriteAt([][]byte{page}, 8192); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(d.MetaDir, "note"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := drive.Open(ctx, path, drive.Options{}); !errors.Is(err, blockdev.ErrInUse) {
		t.Errorf("second Open() = %v; want ErrInUse", err)
	}
	if _, err := drive.Create(ctx, path, drive.CreateOptions{SizeBytes: testSizeBytes}); !errors.Is(err, drive.ErrExists) {
		t.Errorf("second Create() = %v; want ErrExists", err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if got := probe(t, path).State; got != drive.Millrace {
		t.Errorf("Probe() = %s; want millrace", got)
	}
	d, err := drive.Open(ctx, path, drive.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	clear(page)
	if err := d.Data.ReadAt([][]byte{page}, 8192); err != nil || string(page[:5]) != "hello" {
		t.Errorf("ReadAt() = %q, %v; want hello", page[:5], err)
	}
	if _, err := os.Stat(filepath.Join(path, "meta", "note")); err != nil {
		t.Error(err)
	}
}

func TestDirectoryMovedAway(t *testing.T) {
	root := t.TempDir()
	at := func(name string) string { return filepath.Join(root, name) }
	d, spare := create(t, at("00")), create(t, at("spare"))
	defer d.Close()
	defer spare.Close()
	rename := func(from, to string) {
		t.Helper()
		if err := os.Rename(at(from), at(to)); err != nil {
			t.Fatal(err)
		}
	}
	present := func(when string, want error) {
		t.Helper()
		if err := d.Present(); !errors.Is(err, want) {
			t.Errorf("Present() %s = %v; want %v", when, err, want)
		}
	}
	present("at first", nil)
	rename("00", "away")
	present("when moved away", blockdev.ErrGone)
	rename("spare", "00")
	present("with another drive in its place", blockdev.ErrGone)
	// The drive still writes to its own directory, never to the one in its place.
	if err := os.WriteFile(filepath.Join(d.MetaDir, "note"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(at("away/meta/note")); err != nil {
		t.Error(err)
	}
	rename("00", "spare")
	rename("away", "00")
	present("when moved back", nil)
	for _, name := range []string{"meta", "data"} {
		rename("00/"+name, "kept")
		present("without "+name, blockdev.ErrGone)
		rename("kept", "00/"+name)
	}
	present("at last", nil)
}

func TestDirectoryProbe(t *testing.T) {
	tests := []struct {
		name  string
		paths []string // to make; those that end in a slash are folders
		want  drive.State
	}{
		{"nothing in it", nil, drive.Empty},
		{"a file system of its own", []string{"lost+found/"}, drive.Empty},
		{"broken off after meta", []string{"meta/"}, drive.Empty},
		{"broken off in preallocation", []string{"meta/", "data.new"}, drive.Empty},
		{"whole", []string{"meta/", "data"}, drive.Millrace},
		{"whole, in use", []string{"meta/", "data", "meta/CURRENT"}, drive.Millrace},
		{"data alone", []string{"data"}, drive.Foreign},
		{"metadata without data", []string{"meta/", "meta/CURRENT"}, drive.Foreign},
		{"something else", []string{"thesis.tex"}, drive.Foreign},
		{"something beside it", []string{"meta/", "data", "thesis.tex"}, drive.Foreign},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			for _, p := range tt.paths {
				err := error(nil)
				if p[len(p)-1] == '/' {
					err = os.Mkdir(filepath.Join(dir, p), 0o700)
				} else {
					err = os.WriteFile(filepath.Join(dir, p), make([]byte, 8192), 0o600)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if got := probe(t, dir); got.State != tt.want || got.Kind != drive.Directory {
				t.Errorf("Probe() = %+v; want %s", got, tt.want)
			}
			want := map[drive.State]error{drive.Millrace: drive.ErrExists, drive.Foreign: drive.ErrForeign}[tt.want]
			d, err := drive.Create(context.Background(), dir, drive.CreateOptions{SizeBytes: testSizeBytes, Force: true})
			if !errors.Is(err, want) {
				t.Errorf("Create() = %v; want %v", err, want)
			}
			if err == nil {
				d.Close()
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, "/dev/null"} {
		if got := probe(t, path); got.State != drive.Foreign {
			t.Errorf("Probe(%s) = %+v; want foreign", path, got)
		}
	}
	want := "drive " + file + ": is neither a directory nor a block device; not touched: not a Millrace drive"
	if _, err := drive.Open(context.Background(), file, drive.Options{}); err == nil || err.Error() != want {
		t.Errorf("Open(file) = %v; want %s", err, want)
	}
	small := drive.CreateOptions{SizeBytes: drive.MinSizeBytes - 1}
	if _, err := drive.Create(context.Background(), filepath.Join(dir, "small"), small); err == nil {
		t.Error("Create(too small) = nil; want an error")
	}
	if _, err := os.Stat(filepath.Join(dir, "small")); err == nil {
		t.Error("a refused Create left something")
	}
}
