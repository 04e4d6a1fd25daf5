package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// file writes a file of random bytes and returns its path and content.
func file(t *testing.T, name string, size int) (string, []byte) {
	t.Helper()
	data := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{3}).Read(data)
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path, data
}

// names lists a folder.
func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, entry := range entries {
		list = append(list, entry.Name())
	}
	return list
}

func TestPutAndGet(t *testing.T) {
	m := newMillrace(t, endpoint(t))
	m.ok("mb", "s3://bucket")
	for _, size := range []int{0, 5, 300 << 10, 12<<20 + 7} {
		path, data := file(t, "cat.jpg", size)
		var put transferResult
		if err := json.Unmarshal([]byte(m.ok("put", path, "s3://bucket/pets/", "--json", "--part-size", "5MiB")), &put); err != nil {
			t.Fatal(err)
		}
		parts := 0
		if size > 5<<20 {
			parts = 3
		}
		if put.Object != "s3://bucket/pets/cat.jpg" || put.SizeBytes != int64(size) || put.Parts != parts || !put.Verified ||
			put.Transport != "http" || !strings.Contains(put.Reason, "RDMANotSupported") {
			t.Errorf("put of %d bytes = %+v; want %d parts, verified", size, put, parts)
		}
		dir := t.TempDir()
		var get transferResult
		if err := json.Unmarshal([]byte(m.ok("get", "s3://bucket/pets/cat.jpg", dir, "--json", "--part-size", "1MiB",
			"--rdma", "off")), &get); err != nil {
			t.Fatal(err)
		}
		if get.SizeBytes != int64(size) || !get.Verified || get.ETag != put.ETag || get.Reason != "" {
			t.Errorf("get of %d bytes = %+v; want verified", size, get)
		}
		if got, err := os.ReadFile(filepath.Join(dir, "cat.jpg")); err != nil || !bytes.Equal(got, data) {
			t.Errorf("get of %d bytes: the file has %d, %v", size, len(got), err)
		}
		if diff := cmp.Diff([]string{"cat.jpg"}, names(t, dir)); diff != "" {
			t.Errorf("files left (-want +got):\n%s", diff)
		}
		if got := m.ok("get", "s3://bucket/pets/cat.jpg", "-"); got != string(data) {
			t.Errorf("get to standard output: %d bytes; want %d", len(got), size)
		}
	}
}

func TestPutFromStdin(t *testing.T) {
	m := newMillrace(t, endpoint(t))
	m.ok("mb", "s3://bucket")
	_, data := file(t, "x", 11<<20)
	m.stdin = bytes.NewReader(data)
	m.ok("put", "-", "s3://bucket/k", "--part-size", "5MiB", "--parallel", "2")
	if got := m.ok("get", "s3://bucket/k", "-"); got != string(data) {
		t.Errorf("%d bytes came back; want %d", len(got), len(data))
	}
}

// TestGetLeavesNothingBehind: a failed download makes no file, and keeps the one that was there.
func TestGetLeavesNothingBehind(t *testing.T) {
	m := newMillrace(t, endpoint(t))
	m.ok("mb", "s3://bucket")
	path, data := file(t, "k", 100)
	if _, _, code := m.run("get", "s3://bucket/none", path); code != exitFailed {
		t.Errorf("exit %d; want 1", code)
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, data) {
		t.Errorf("the old file: %d bytes, %v; want it untouched", len(got), err)
	}
	if diff := cmp.Diff([]string{"k"}, names(t, filepath.Dir(path))); diff != "" {
		t.Errorf("files left (-want +got):\n%s", diff)
	}
}

// TestGetReplacesFilesOnly: a pipe is written to, and what a link leads to is replaced, not the link.
func TestGetReplacesFilesOnly(t *testing.T) {
	m := newMillrace(t, endpoint(t))
	m.ok("mb", "s3://bucket")
	path, data := file(t, "k", 3<<20)
	m.ok("put", path, "s3://bucket/k")
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(unix.Mkfifo(at("pipe"), 0o600), os.WriteFile(at("old"), []byte("old"), 0o600),
		os.Symlink("old", at("link"))); err != nil {
		t.Fatal(err)
	}
	read := make(chan []byte, 1)
	go func() {
		b, _ := os.ReadFile(at("pipe"))
		read <- b
	}()
	m.ok("get", "s3://bucket/k", at("pipe"))
	m.ok("get", "s3://bucket/k", at("link"))
	if got := <-read; !bytes.Equal(got, data) {
		t.Errorf("%d bytes came through the pipe; want %d", len(got), len(data))
	}
	if got, err := os.ReadFile(at("old")); err != nil || !bytes.Equal(got, data) {
		t.Errorf("what the link leads to: %d bytes, %v; want %d", len(got), err, len(data))
	}
	if _, err := os.Readlink(at("link")); err != nil {
		t.Errorf("the link is none any more: %v", err)
	}
	if diff := cmp.Diff([]string{"link", "old", "pipe"}, names(t, dir)); diff != "" {
		t.Errorf("files left (-want +got):\n%s", diff)
	}
}

func TestListAndRemove(t *testing.T) {
	m := newMillrace(t, endpoint(t))
	m.ok("mb", "s3://bucket")
	path, _ := file(t, "x", 3)
	for _, key := range []string{"a", "b/1", "b/2", "c d\x01é"} {
		m.ok("put", path, "s3://bucket/"+key)
	}
	if got := m.ok("ls"); !strings.HasSuffix(strings.TrimSpace(got), "  bucket") {
		t.Errorf("ls = %q; want the bucket", got)
	}
	list := func(args ...string) []string {
		t.Helper()
		var keys []string
		for line := range strings.Lines(m.ok(append([]string{"ls", "--json"}, args...)...)) {
			var l listLine
			if err := json.Unmarshal([]byte(line), &l); err != nil {
				t.Fatal(err)
			}
			keys = append(keys, l.Key+l.Prefix)
		}
		return keys
	}
	for _, test := range []struct{ args, want []string }{
		{[]string{"s3://bucket"}, []string{"a", "b/", "c d\x01é"}},
		{[]string{"s3://bucket/b/"}, []string{"b/1", "b/2"}},
		{[]string{"-r", "s3://bucket"}, []string{"a", "b/1", "b/2", "c d\x01é"}},
		{[]string{"s3://bucket/z"}, nil},
	} {
		if diff := cmp.Diff(test.want, list(test.args...)); diff != "" {
			t.Errorf("ls %q (-want +got):\n%s", test.args, diff)
		}
	}
	if got := m.ok("ls", "s3://bucket/b/"); !strings.Contains(got, "3  b/1\n") {
		t.Errorf("ls = %q; want size and key", got)
	}
	m.ok("rm", "s3://bucket/a", "s3://bucket/never")
	if got := m.ok("rm", "-r", "s3://bucket/b/", "--json"); got != "{\"removed\":2}\n" {
		t.Errorf("rm -r = %q; want 2 removed", got)
	}
	if diff := cmp.Diff([]string{"c d\x01é"}, list("s3://bucket")); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
	if _, stderr, code := m.run("rb", "s3://bucket"); code != exitFailed || !strings.Contains(stderr, "BucketNotEmpty") {
		t.Errorf("rb of a full bucket: exit %d, %q; want BucketNotEmpty", code, stderr)
	}
	m.ok("rb", "--force", "s3://bucket")
	if got := m.ok("ls"); got != "" {
		t.Errorf("ls after rb = %q; want nothing", got)
	}
}

func TestCredentialsFile(t *testing.T) {
	m := newMillrace(t, endpoint(t))
	path := filepath.Join(t.TempDir(), "credentials")
	if err := os.WriteFile(path, []byte("access_key=ak\nsecret_key=secret-key\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	delete(m.env, "AWS_ACCESS_KEY_ID")
	m.ok("ls", "--credentials", path)
	m.env["AWS_ACCESS_KEY_ID"], m.env["AWS_SECRET_ACCESS_KEY"] = "ak", "wrong"
	if _, stderr, code := m.run("ls"); code != exitFailed || !strings.Contains(stderr, "SignatureDoesNotMatch") {
		t.Errorf("ls with a wrong secret: exit %d, %q", code, stderr)
	}
}

func TestProgress(t *testing.T) {
	p := newProgress(&environment{}, false, "k", 4<<20)
	p.add(1 << 20)
	p.finish()
	want := "k  [=======                       ]  25%  1.0 MiB of 4.0 MiB  0.5 MiB/s  0:06"
	if got := p.line(2 * time.Second); got != want {
		t.Errorf("line() = %q; want %q", got, want)
	}
	var out bytes.Buffer
	p = newProgress(&environment{terminal: true, stderr: &out}, false, "k", 0)
	p.add(1 << 20)
	p.finish()
	if !strings.Contains(out.String(), "k  1.0 MiB") || !strings.HasSuffix(out.String(), "\n") {
		t.Errorf("bar on a terminal = %q", out.String())
	}
}

func TestBench(t *testing.T) {
	m := newMillrace(t, endpoint(t))
	for _, op := range []string{"put", "get", "head", "list"} {
		lines := strings.Split(strings.TrimSpace(m.ok("bench", op, "--sizes", "1KiB,300KiB", "--concurrency", "1,4",
			"--count", "8", "--keys", "5", "--json", "--verify", "--checksum")), "\n")
		want := 4
		if op == "list" {
			want = 2 // one size
		}
		if len(lines) != want {
			t.Errorf("bench %s: %d rows; want %d", op, len(lines), want)
		}
		var row struct {
			Ops, Errors int64
			Client      struct {
				CPU float64 `json:"cpu_us_per_op"`
			}
		}
		if err := json.Unmarshal([]byte(lines[0]), &row); err != nil || row.Ops != 8 || row.Errors != 0 {
			t.Errorf("bench %s: %s, %v; want 8 operations", op, lines[0], err)
		}
	}
	table := m.ok("bench", "put", "--sizes", "1KiB", "--count", "3")
	if !strings.Contains(table, "ops/s") || !strings.Contains(table, "1KiB") || !strings.Contains(table, "http") {
		t.Errorf("table:\n%s", table)
	}
	if got := m.ok("ls"); got != "" {
		t.Errorf("bench left buckets: %s", got)
	}
}
