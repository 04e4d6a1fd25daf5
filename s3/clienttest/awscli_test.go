package clienttest

import (
	"encoding/json"
	"path/filepath"
	"testing"
)

// awsCLI is the aws command, as in Debian.
type awsCLI struct {
	runner
	path string
	url  string
}

func newAWSCLI(t *testing.T, e endpoint) client {
	path := tool(t, "aws")
	return &awsCLI{path: path, url: e.url, runner: newRunner(t,
		"AWS_ACCESS_KEY_ID="+e.accessKey, "AWS_SECRET_ACCESS_KEY="+e.secretKey,
		"AWS_DEFAULT_REGION=us-east-1", "AWS_PAGER=", "AWS_EC2_METADATA_DISABLED=true")}
}

func (c *awsCLI) aws(t *testing.T, args ...string) []byte {
	t.Helper()
	return c.run(t, c.path, append([]string{"--endpoint-url", c.url}, args...)...)
}

func (c *awsCLI) makeBucket(t *testing.T, bucket string) { c.aws(t, "s3", "mb", "s3://"+bucket) }

func (c *awsCLI) emptyBucket(t *testing.T, bucket string) {
	c.aws(t, "s3", "rm", "--quiet", "--recursive", "s3://"+bucket)
}

func (c *awsCLI) removeBucket(t *testing.T, bucket string) { c.aws(t, "s3", "rb", "s3://"+bucket) }

func (c *awsCLI) put(t *testing.T, bucket, key, file string) {
	c.aws(t, "s3", "cp", "--quiet", file, "s3://"+bucket+"/"+key)
}

func (c *awsCLI) putTree(t *testing.T, bucket, prefix, dir string) {
	c.aws(t, "s3", "cp", "--quiet", "--recursive", dir, "s3://"+bucket+"/"+prefix)
}

func (c *awsCLI) get(t *testing.T, bucket, key, file string) {
	c.aws(t, "s3", "cp", "--quiet", "s3://"+bucket+"/"+key, file)
}

func (c *awsCLI) getRange(t *testing.T, bucket, key string, off, n int64) []byte {
	file := filepath.Join(t.TempDir(), "range")
	c.aws(t, "s3api", "get-object", "--bucket", bucket, "--key", key, "--range", rangeHeader(off, n), file)
	return readFile(t, file)
}

func (c *awsCLI) list(t *testing.T, bucket, prefix, delimiter string) (keys, prefixes []string) {
	args := []string{"s3api", "list-objects-v2", "--bucket", bucket, "--prefix", prefix, "--output", "json"}
	if delimiter != "" {
		args = append(args, "--delimiter", delimiter)
	}
	out := c.aws(t, args...)
	if len(out) == 0 { // the program prints nothing for an empty answer
		return nil, nil
	}
	var page struct {
		Contents       []struct{ Key string }
		CommonPrefixes []struct{ Prefix string }
	}
	if err := json.Unmarshal(out, &page); err != nil {
		t.Fatalf("aws list-objects-v2: %v", err)
	}
	for _, o := range page.Contents {
		keys = append(keys, o.Key)
	}
	for _, p := range page.CommonPrefixes {
		prefixes = append(prefixes, p.Prefix)
	}
	return keys, prefixes
}

func (c *awsCLI) copyObject(t *testing.T, bucket, from, to string) {
	c.aws(t, "s3", "cp", "--quiet", "s3://"+bucket+"/"+from, "s3://"+bucket+"/"+to)
}

func (c *awsCLI) deleteObject(t *testing.T, bucket, key string) {
	c.aws(t, "s3", "rm", "--quiet", "s3://"+bucket+"/"+key)
}
