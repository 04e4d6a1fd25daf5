package clienttest

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/minio/minio-go/v7"
)

const pulledObjectBytes = 192 << 20

// TestDrivesPulled takes two of six drives away while a download runs, starts again without
// them, and puts them back. The bytes are the same all the time.
func TestDrivesPulled(t *testing.T) {
	if _, external := externalEndpoint(); external {
		t.Skip("needs a server of its own")
	}
	dir := t.TempDir()
	s := startServer(t, dir)
	c := newMinio(t, s.endpoint, pathStyle).(*minioGo)
	bucket := newBucket(t, c)
	file, sum := randomFile(t, pulledObjectBytes)
	small, smallSum := randomFile(t, 3000)
	c.put(t, bucket, "large", file)
	c.put(t, bucket, "small", small)

	if got := downloadWhile(t, c, bucket, "large", func() { pull(t, dir, "01", "04") }); got != sum {
		t.Errorf("download while drives go: sha256 = %s; want %s", got, sum)
	}
	wantObject(t, c, bucket, "small", smallSum)
	later, laterSum := randomFile(t, 9<<20)
	c.put(t, bucket, "while two are gone", later)

	check := func(when string) {
		t.Helper()
		c = newMinio(t, s.endpoint, pathStyle).(*minioGo)
		t.Log(when)
		wantKeys(t, c, bucket, "", "", []string{"large", "small", "while two are gone"}, nil)
		wantObject(t, c, bucket, "large", sum)
		wantObject(t, c, bucket, "small", smallSum)
		wantObject(t, c, bucket, "while two are gone", laterSum)
	}
	s.stop(t)
	s = startServer(t, dir)
	check("started without the two drives")
	wantMissing(t, dir, "01", "04")

	s.stop(t)
	putBack(t, dir, "01", "04")
	s = startServer(t, dir)
	check("started with the drives put back")
	s.stop(t)
	checkPool(t, dir)
}

// downloadWhile reads the first part of an object, calls the function, reads the rest, and
// returns the SHA-256 of it all. The object is larger than what sockets and buffers hold.
func downloadWhile(t *testing.T, c *minioGo, bucket, key string, during func()) string {
	t.Helper()
	core := minio.Core{Client: c.Client}
	body, _, _, err := core.GetObject(t.Context(), bucket, key, minio.GetObjectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	hash := sha256.New()
	if _, err := io.CopyN(hash, body, 1<<20); err != nil {
		t.Fatal(err)
	}
	during()
	if _, err := io.Copy(hash, body); err != nil {
		t.Fatalf("download after the drives went: %v", err)
	}
	return hex.EncodeToString(hash.Sum(nil))
}

// pull moves drives away from under the server, as if pulled from their slots.
func pull(t *testing.T, dir string, drives ...string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(dir, "pulled"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, d := range drives {
		if err := os.Rename(filepath.Join(dir, "drives", d), filepath.Join(dir, "pulled", d)); err != nil {
			t.Fatal(err)
		}
	}
}

func putBack(t *testing.T, dir string, drives ...string) {
	t.Helper()
	for _, d := range drives {
		if err := os.Rename(filepath.Join(dir, "pulled", d), filepath.Join(dir, "drives", d)); err != nil {
			t.Fatal(err)
		}
	}
}

// wantMissing wants that nobody made the drives anew.
func wantMissing(t *testing.T, dir string, drives ...string) {
	t.Helper()
	for _, d := range drives {
		if _, err := os.Stat(filepath.Join(dir, "drives", d)); !os.IsNotExist(err) {
			t.Errorf("drive %s was made anew (%v)", d, err)
		}
	}
}
