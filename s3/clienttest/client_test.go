package clienttest

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// buckets are a client's operations on whole buckets. Every method fails the test on an error.
type buckets interface {
	makeBucket(t *testing.T, bucket string)
	emptyBucket(t *testing.T, bucket string) // deletes every object
	removeBucket(t *testing.T, bucket string)
}

// objects are a client's operations on objects.
type objects interface {
	put(t *testing.T, bucket, key, file string)
	putTree(t *testing.T, bucket, prefix, dir string) // every file below dir, as prefix + its path
	get(t *testing.T, bucket, key, file string)
	getRange(t *testing.T, bucket, key string, off, n int64) []byte // off+n is the end of the object
	list(t *testing.T, bucket, prefix, delimiter string) (keys, prefixes []string)
	copyObject(t *testing.T, bucket, from, to string)
	deleteObject(t *testing.T, bucket, key string)
}

// client is somebody else's S3 client.
type client interface {
	buckets
	objects
}

// TestClients makes the same round trip with each client.
func TestClients(t *testing.T) {
	e := anyEndpoint(t)
	for name, open := range map[string]func(*testing.T, endpoint) client{
		"aws CLI":       newAWSCLI,
		"s3cmd":         newS3cmd,
		"rclone":        newRclone,
		"boto3":         func(t *testing.T, e endpoint) client { return newBoto3(t, e, pathStyle) },
		"minio-go":      func(t *testing.T, e endpoint) client { return newMinio(t, e, pathStyle) },
		"aws-sdk-go-v2": func(t *testing.T, e endpoint) client { return newSDK(t, e, pathStyle) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			roundTrip(t, open(t, e))
		})
	}
}

// TestVirtualHost makes the round trip with the bucket in the host name.
func TestVirtualHost(t *testing.T) {
	if _, external := externalEndpoint(); external {
		t.Skip("another server may need to be told its domain")
	}
	e := anyEndpoint(t)
	for name, open := range map[string]func(*testing.T, endpoint, style) client{
		"boto3":         newBoto3,
		"minio-go":      newMinio,
		"aws-sdk-go-v2": newSDK,
	} {
		t.Run(name, func(t *testing.T) {
			c := open(t, e, hostStyle)
			bucket := newBucket(t, c)
			file, sum := randomFile(t, 100_000)
			c.put(t, bucket, "dir/a b+c", file)
			wantObject(t, c, bucket, "dir/a b+c", sum)
			wantKeys(t, c, bucket, "dir/", "", []string{"dir/a b+c"}, nil)
			c.emptyBucket(t, bucket)
			c.removeBucket(t, bucket)
		})
	}
}

// style is where the name of the bucket goes.
type style int

const (
	pathStyle style = iota
	hostStyle
)

const (
	multipartBytes = 40<<20 + 12345
	treeFiles      = 1100 // more than a page of a listing
)

func roundTrip(t *testing.T, c client) {
	bucket := newBucket(t, c)
	sums := map[string]string{}
	var large []byte
	for name, size := range map[string]int{"empty": 0, "small": 1 << 10, "one MiB.bin": 1 << 20, "large": multipartBytes} {
		file, sum := randomFile(t, size)
		c.put(t, bucket, "data/"+name, file)
		wantObject(t, c, bucket, "data/"+name, sum)
		sums[name] = sum
		if name == "large" {
			large = readFile(t, file)
		}
	}
	for _, off := range []int{0, 5<<20 - 3, multipartBytes - 1} {
		got := c.getRange(t, bucket, "data/large", int64(off), int64(multipartBytes-off))
		if !bytes.Equal(got, large[off:]) {
			t.Errorf("range from %d = %d bytes that differ; want the %d bytes of the object", off, len(got), multipartBytes-off)
		}
	}
	for _, name := range []string{"one MiB.bin", "large"} {
		c.copyObject(t, bucket, "data/"+name, "copy/"+name)
		wantObject(t, c, bucket, "copy/"+name, sums[name])
	}
	wantKeys(t, c, bucket, "data/", "", []string{"data/empty", "data/large", "data/one MiB.bin", "data/small"}, nil)
	wantKeys(t, c, bucket, "", "/", nil, []string{"copy/", "data/"})
	c.deleteObject(t, bucket, "data/small")
	wantKeys(t, c, bucket, "data/", "", []string{"data/empty", "data/large", "data/one MiB.bin"}, nil)
	tree(t, c, bucket)
	c.emptyBucket(t, bucket)
	wantKeys(t, c, bucket, "", "", nil, nil)
	c.removeBucket(t, bucket)
}

// tree uploads more files than a page of a listing holds, some with names that need care.
func tree(t *testing.T, c client, bucket string) {
	dir := t.TempDir()
	var want, folder []string
	for i := range treeFiles {
		name := fmt.Sprintf("%d/%04d", i%3, i)
		if i%100 == 0 {
			name += " ä+&%20=~'.txt"
		}
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
		want = append(want, "tree/"+name)
		if i%3 == 1 {
			folder = append(folder, "tree/"+name)
		}
	}
	c.putTree(t, bucket, "tree/", dir)
	wantKeys(t, c, bucket, "tree/", "", want, nil)
	wantKeys(t, c, bucket, "tree/1/", "/", folder, nil)
	wantKeys(t, c, bucket, "tree/", "/", nil, []string{"tree/0/", "tree/1/", "tree/2/"})
	odd := "0/0000 ä+&%20=~'.txt"
	wantObject(t, c, bucket, "tree/"+odd, sumOf([]byte(odd)))
}

// newBucket makes a bucket of a name that no other test has.
func newBucket(t *testing.T, c buckets) string {
	t.Helper()
	bucket := "clients-" + strings.ToLower(rand.Text()[:12])
	c.makeBucket(t, bucket)
	return bucket
}

func wantObject(t *testing.T, c client, bucket, key, sum string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "got")
	c.get(t, bucket, key, file)
	if got := sumOf(readFile(t, file)); got != sum {
		t.Errorf("get %s: sha256 = %s; want %s", key, got, sum)
	}
}

func wantKeys(t *testing.T, c client, bucket, prefix, delimiter string, keys, prefixes []string) {
	t.Helper()
	gotKeys, gotPrefixes := c.list(t, bucket, prefix, delimiter)
	for _, s := range [][]string{keys, prefixes, gotKeys, gotPrefixes} {
		slices.Sort(s)
	}
	if !slices.Equal(gotKeys, keys) {
		t.Errorf("list %q: %d keys %.300q; want %d keys %.300q", prefix, len(gotKeys), gotKeys, len(keys), keys)
	}
	if !slices.Equal(gotPrefixes, prefixes) {
		t.Errorf("list %q by %q: prefixes = %q; want %q", prefix, delimiter, gotPrefixes, prefixes)
	}
}

// randomFile makes a file of random bytes and returns its name and SHA-256.
func randomFile(t *testing.T, size int) (name, sum string) {
	t.Helper()
	content := make([]byte, size)
	_, _ = rand.Read(content)
	name = filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, content, 0o644); err != nil {
		t.Fatal(err)
	}
	return name, sumOf(content)
}

func sumOf(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

func readFile(t *testing.T, name string) []byte {
	t.Helper()
	content, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// writeFile copies a body to a file.
func writeFile(t *testing.T, name string, body io.ReadCloser) {
	t.Helper()
	defer body.Close()
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := io.Copy(f, body); err != nil {
		t.Fatal(err)
	}
}

// filesBelow names every file below dir, relative to it.
func filesBelow(t *testing.T, dir string) []string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			rel, _ := filepath.Rel(dir, path)
			names = append(names, rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}
