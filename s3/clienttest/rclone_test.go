package clienttest

import (
	"encoding/json"
	"fmt"
	"testing"
)

// rclone is the rclone command, as in Debian.
type rclone struct {
	runner
	path string
}

func newRclone(t *testing.T, e endpoint) client {
	return &rclone{path: tool(t, "rclone"), runner: newRunner(t,
		"RCLONE_CONFIG_M_TYPE=s3", "RCLONE_CONFIG_M_PROVIDER=Other", "RCLONE_CONFIG_M_REGION=us-east-1",
		"RCLONE_CONFIG_M_ENDPOINT="+e.url, "RCLONE_CONFIG_M_ACCESS_KEY_ID="+e.accessKey,
		"RCLONE_CONFIG_M_SECRET_ACCESS_KEY="+e.secretKey)}
}

func (c *rclone) rclone(t *testing.T, args ...string) []byte {
	t.Helper()
	return c.run(t, c.path, append([]string{
		"--s3-upload-cutoff", "8M", "--s3-chunk-size", "5M", "--s3-copy-cutoff", "16M", "--low-level-retries", "1", "--retries", "1",
	}, args...)...)
}

func (c *rclone) makeBucket(t *testing.T, bucket string) { c.rclone(t, "mkdir", "m:"+bucket) }

func (c *rclone) emptyBucket(t *testing.T, bucket string) { c.rclone(t, "delete", "m:"+bucket) }

func (c *rclone) removeBucket(t *testing.T, bucket string) { c.rclone(t, "rmdir", "m:"+bucket) }

func (c *rclone) put(t *testing.T, bucket, key, file string) {
	c.rclone(t, "copyto", file, "m:"+bucket+"/"+key)
}

func (c *rclone) putTree(t *testing.T, bucket, prefix, dir string) {
	c.rclone(t, "copy", "--transfers", "8", dir, "m:"+bucket+"/"+prefix)
}

func (c *rclone) get(t *testing.T, bucket, key, file string) {
	c.rclone(t, "copyto", "m:"+bucket+"/"+key, file)
}

func (c *rclone) getRange(t *testing.T, bucket, key string, off, n int64) []byte {
	return c.rclone(t, "cat", "--offset", fmt.Sprint(off), "--count", fmt.Sprint(n), "m:"+bucket+"/"+key)
}

func (c *rclone) list(t *testing.T, bucket, prefix, delimiter string) (keys, prefixes []string) {
	args := []string{"lsjson", "m:" + bucket + "/" + prefix}
	if delimiter == "" {
		args = append(args, "--recursive", "--files-only", "--fast-list")
	}
	var entries []struct {
		Path  string
		IsDir bool
	}
	if err := json.Unmarshal(c.rclone(t, args...), &entries); err != nil {
		t.Fatalf("rclone lsjson: %v", err)
	}
	for _, e := range entries {
		if e.IsDir {
			prefixes = append(prefixes, prefix+e.Path+"/")
		} else {
			keys = append(keys, prefix+e.Path)
		}
	}
	return keys, prefixes
}

func (c *rclone) copyObject(t *testing.T, bucket, from, to string) {
	c.rclone(t, "copyto", "m:"+bucket+"/"+from, "m:"+bucket+"/"+to)
}

func (c *rclone) deleteObject(t *testing.T, bucket, key string) {
	c.rclone(t, "deletefile", "m:"+bucket+"/"+key)
}
