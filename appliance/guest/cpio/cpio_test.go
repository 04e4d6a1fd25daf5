package cpio_test

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/millrace/millrace/appliance/guest/cpio"
)

func archive(t *testing.T) []byte {
	t.Helper()
	var out bytes.Buffer
	w := cpio.NewWriter(&out)
	for _, err := range []error{
		w.File("/a/b/file", 0o755, 5, strings.NewReader("hello")),
		w.Symlink("a/link", "b/file"),
		w.Directory("a/b"),
		w.File("empty", 0o600, 0, strings.NewReader("")),
		w.Close(),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return out.Bytes()
}

// TestArchiveLayout reads the heads of an archive back, as the kernel does.
func TestArchiveLayout(t *testing.T) {
	b := archive(t)
	var got []string
	for len(b) > 0 {
		field := func(i int) (n int) {
			for _, c := range b[6+8*i : 14+8*i] {
				n = n<<4 | strings.IndexByte("0123456789abcdef", c)
			}
			return n
		}
		if string(b[:6]) != "070701" {
			t.Fatalf("no head at %q", b[:6])
		}
		mode, size, nameBytes := field(1), field(6), field(11)
		name := string(b[110 : 110+nameBytes-1])
		data := (110 + nameBytes + 3) &^ 3
		if mode&0o170000 == 0o120000 {
			name += " -> " + string(b[data:data+size])
		}
		got = append(got, name)
		b = b[(data+size+3)&^3:]
	}
	want := []string{"a", "a/b", "a/b/file", "a/link -> b/file", "empty", "TRAILER!!!"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestArchiveIsReadByCpio(t *testing.T) {
	if _, err := exec.LookPath("cpio"); err != nil {
		t.Skip(err)
	}
	cmd := exec.CommandContext(t.Context(), "cpio", "-t", "--quiet")
	cmd.Stdin = bytes.NewReader(archive(t))
	out, err := cmd.Output()
	if want := "a\na/b\na/b/file\na/link\nempty\n"; err != nil || string(out) != want {
		t.Errorf("cpio -t = %q, %v; want %q", out, err, want)
	}
}

func TestWriterRefuses(t *testing.T) {
	for _, tc := range []struct {
		name string
		do   func(w *cpio.Writer) error
	}{
		{"same path twice", func(w *cpio.Writer) error {
			w.Symlink("x", "y")
			return w.Symlink("/x", "z")
		}},
		{"short file", func(w *cpio.Writer) error { return w.File("x", 0o644, 5, strings.NewReader("four")) }},
		{"too large", func(w *cpio.Writer) error { return w.File("x", 0o644, 1<<32, nil) }},
	} {
		w := cpio.NewWriter(&bytes.Buffer{})
		if err := tc.do(w); err == nil || w.Close() == nil {
			t.Errorf("%s: %v; want an error, also of Close", tc.name, err)
		}
	}
}
