package clienttest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// s3cmd is the s3cmd command, as in Debian.
type s3cmd struct {
	runner
	path   string
	config string
}

func newS3cmd(t *testing.T, e endpoint) client {
	path := tool(t, "s3cmd")
	config := filepath.Join(t.TempDir(), "s3cfg")
	text := strings.Join([]string{
		"[default]", "access_key = " + e.accessKey, "secret_key = " + e.secretKey,
		"host_base = " + e.host(), "host_bucket = " + e.host(), "use_https = False",
		"bucket_location = us-east-1", "progress_meter = False", "",
	}, "\n")
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return &s3cmd{path: path, config: config, runner: newRunner(t)}
}

func (c *s3cmd) s3cmd(t *testing.T, args ...string) []byte {
	t.Helper()
	return c.run(t, c.path, append([]string{"--config", c.config}, args...)...)
}

func (c *s3cmd) makeBucket(t *testing.T, bucket string) { c.s3cmd(t, "mb", "s3://"+bucket) }

func (c *s3cmd) emptyBucket(t *testing.T, bucket string) {
	c.s3cmd(t, "del", "--recursive", "--force", "s3://"+bucket)
}

func (c *s3cmd) removeBucket(t *testing.T, bucket string) { c.s3cmd(t, "rb", "s3://"+bucket) }

func (c *s3cmd) put(t *testing.T, bucket, key, file string) {
	c.s3cmd(t, "put", file, "s3://"+bucket+"/"+key)
}

func (c *s3cmd) putTree(t *testing.T, bucket, prefix, dir string) {
	c.s3cmd(t, "put", "--recursive", dir+"/", "s3://"+bucket+"/"+prefix)
}

func (c *s3cmd) get(t *testing.T, bucket, key, file string) {
	c.s3cmd(t, "get", "--force", "s3://"+bucket+"/"+key, file)
}

// getRange asks for the rest of a file whose first off bytes are there: the program's only range.
func (c *s3cmd) getRange(t *testing.T, bucket, key string, off, _ int64) []byte {
	file := filepath.Join(t.TempDir(), "range")
	if err := os.WriteFile(file, make([]byte, off), 0o644); err != nil {
		t.Fatal(err)
	}
	c.s3cmd(t, "get", "--continue", "--no-check-md5", "s3://"+bucket+"/"+key, file)
	return readFile(t, file)[off:]
}

func (c *s3cmd) list(t *testing.T, bucket, prefix, delimiter string) (keys, prefixes []string) {
	args := []string{"ls", "s3://" + bucket + "/" + prefix}
	if delimiter == "" {
		args = append(args, "--recursive")
	}
	for _, line := range strings.Split(strings.TrimRight(string(c.s3cmd(t, args...)), "\n"), "\n") {
		about, key, ok := strings.Cut(line, "s3://"+bucket+"/")
		switch {
		case !ok:
		case strings.TrimSpace(about) == "DIR":
			prefixes = append(prefixes, key)
		default:
			keys = append(keys, key)
		}
	}
	return keys, prefixes
}

func (c *s3cmd) copyObject(t *testing.T, bucket, from, to string) {
	c.s3cmd(t, "cp", "s3://"+bucket+"/"+from, "s3://"+bucket+"/"+to)
}

func (c *s3cmd) deleteObject(t *testing.T, bucket, key string) {
	c.s3cmd(t, "del", "s3://"+bucket+"/"+key)
}
