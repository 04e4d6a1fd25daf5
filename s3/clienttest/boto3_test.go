package clienttest

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"testing"
)

// boto3 is the Python library, driven by testdata/boto3_client.py.
type boto3 struct {
	runner
	python string
}

func newBoto3(t *testing.T, e endpoint, s style) client {
	c := &boto3{python: pythonWith(t, "boto3"), runner: newRunner(t,
		"AWS_ACCESS_KEY_ID="+e.accessKey, "AWS_SECRET_ACCESS_KEY="+e.secretKey,
		"AWS_DEFAULT_REGION=us-east-1", "CLIENTTEST_ENDPOINT="+e.url, "CLIENTTEST_STYLE="+s.boto3())}
	return c
}

// pythonWith finds the interpreter, and wants that it has the module.
func pythonWith(t *testing.T, module string) string {
	t.Helper()
	python := tool(t, "python3")
	if err := exec.Command(python, "-c", "import "+module).Run(); err != nil {
		missing(t, "the Python module "+module)
	}
	return python
}

func (s style) boto3() string {
	if s == hostStyle {
		return "virtual"
	}
	return "path"
}

// call runs one operation and decodes its answer into out, unless that is nil.
func (c *boto3) call(t *testing.T, out any, args ...string) {
	t.Helper()
	answer := c.run(t, c.python, append([]string{"testdata/boto3_client.py"}, args...)...)
	if out == nil {
		return
	}
	if err := json.Unmarshal(answer, out); err != nil {
		t.Fatalf("boto3 %s: %v in %.200q", args[0], err, answer)
	}
}

func (c *boto3) makeBucket(t *testing.T, bucket string)   { c.call(t, nil, "make_bucket", bucket) }
func (c *boto3) emptyBucket(t *testing.T, bucket string)  { c.call(t, nil, "empty_bucket", bucket) }
func (c *boto3) removeBucket(t *testing.T, bucket string) { c.call(t, nil, "remove_bucket", bucket) }

func (c *boto3) put(t *testing.T, bucket, key, file string) {
	c.call(t, nil, "put", bucket, key, file)
}

func (c *boto3) putTree(t *testing.T, bucket, prefix, dir string) {
	c.call(t, nil, "put_tree", bucket, prefix, dir)
}

func (c *boto3) get(t *testing.T, bucket, key, file string) {
	c.call(t, nil, "get", bucket, key, file)
}

func (c *boto3) getRange(t *testing.T, bucket, key string, off, n int64) []byte {
	file := filepath.Join(t.TempDir(), "range")
	c.call(t, nil, "get_range", bucket, key, rangeHeader(off, n), file)
	return readFile(t, file)
}

func (c *boto3) list(t *testing.T, bucket, prefix, delimiter string) (keys, prefixes []string) {
	var page struct{ Keys, Prefixes []string }
	c.call(t, &page, "list_objects", bucket, prefix, delimiter)
	return page.Keys, page.Prefixes
}

func (c *boto3) copyObject(t *testing.T, bucket, from, to string) {
	c.call(t, nil, "copy", bucket, from, to)
}

func (c *boto3) deleteObject(t *testing.T, bucket, key string) {
	c.call(t, nil, "delete", bucket, key)
}

// presign returns a URL that anybody can use for the method (get_object or put_object).
func (c *boto3) presign(t *testing.T, method, bucket, key string) string {
	t.Helper()
	var url string
	c.call(t, &url, "presign", method, bucket, key)
	return url
}
