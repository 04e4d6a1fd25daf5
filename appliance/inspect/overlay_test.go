package inspect

import (
	"errors"
	"io"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"
)

func write(t *testing.T, fs vfs.FS, name, text string) {
	t.Helper()
	f, err := fs.Create(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, fs vfs.FS, name string) string {
	t.Helper()
	f, err := fs.Open(name)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	text, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func list(t *testing.T, fs vfs.FS, dir string) string {
	t.Helper()
	names, err := fs.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

func TestOverlay(t *testing.T) {
	below, upper := vfs.NewMem(), vfs.NewMem()
	for _, fs := range []*vfs.MemFS{below, upper} {
		if err := fs.MkdirAll("d", 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"a", "b", "c"} {
		write(t, below, "d/"+name, name)
	}
	o := newOverlay(below, upper, "d")
	write(t, o, "d/b", "new b")
	write(t, o, "d/e", "e")
	for _, err := range []error{o.Rename("d/a", "d/f"), o.Remove("d/c"), o.Link("d/e", "d/g"), o.Rename("d/e", "d/h"),
		o.Link("d/f", "d/i"), o.Remove("d/g"), o.MkdirAll("d", 0o700)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	f, err := o.ReuseForWrite("d/i", "d/j", vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if got := list(t, o, "d"); got != "b f h j" {
		t.Errorf("List = %q; want b f h j", got)
	}
	var got []string
	for _, name := range []string{"b", "f", "h", "j"} {
		got = append(got, read(t, o, "d/"+name))
	}
	if diff := cmp.Diff([]string{"new b", "a", "e", ""}, got); diff != "" {
		t.Errorf("contents (-want +got):\n%s", diff)
	}
	for _, err := range []error{o.Remove("d/c"), o.Rename("d/a", "d/x"), o.Link("d/i", "d/x")} {
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a call for a file that is gone = %v; want ErrNotExist", err)
		}
	}
	if got := list(t, below, "d"); got != "a b c" || read(t, below, "d/b") != "b" {
		t.Errorf("below: %q; want a b c, unchanged", got)
	}
}
