package clienttest

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

// minioGo is the minio-go library.
type minioGo struct {
	*minio.Client
}

func newMinio(t *testing.T, e endpoint, s style) client {
	o := minio.Options{BucketLookup: minio.BucketLookupPath}
	if s == hostStyle {
		o.BucketLookup, o.Transport = minio.BucketLookupDNS, dialing(e)
	}
	return &minioGo{openMinio(t, e, o)}
}

// openMinio fills in what all connections to the endpoint share.
func openMinio(t *testing.T, e endpoint, o minio.Options) *minio.Client {
	t.Helper()
	host := e.host()
	if o.BucketLookup == minio.BucketLookupDNS {
		host = localhost(host)
	}
	o.Creds = credentials.NewStaticV4(e.accessKey, e.secretKey, "")
	o.Region = "us-east-1"
	o.MaxRetries = 1
	c, err := minio.New(host, &o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// localhost names the loopback address, so that a bucket can be put before it.
func localhost(host string) string { return strings.Replace(host, "127.0.0.1", "localhost", 1) }

// dialing connects to the endpoint whatever the host name in the request.
func dialing(e endpoint) *http.Transport {
	return &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, e.host())
	}}
}

func (c *minioGo) makeBucket(t *testing.T, bucket string) {
	if err := c.MakeBucket(t.Context(), bucket, minio.MakeBucketOptions{}); err != nil {
		t.Fatal(err)
	}
	if ok, err := c.BucketExists(t.Context(), bucket); !ok || err != nil {
		t.Fatalf("BucketExists(%s) = %v, %v; want true", bucket, ok, err)
	}
}

func (c *minioGo) emptyBucket(t *testing.T, bucket string) {
	found := c.ListObjects(t.Context(), bucket, minio.ListObjectsOptions{Recursive: true})
	for failed := range c.RemoveObjects(t.Context(), bucket, found, minio.RemoveObjectsOptions{}) {
		t.Fatalf("remove %s: %v", failed.ObjectName, failed.Err)
	}
}

func (c *minioGo) removeBucket(t *testing.T, bucket string) {
	if err := c.RemoveBucket(t.Context(), bucket); err != nil {
		t.Fatal(err)
	}
}

func (c *minioGo) put(t *testing.T, bucket, key, file string) {
	options := minio.PutObjectOptions{PartSize: 5 << 20, UserMetadata: map[string]string{"source": "minio-go"}}
	if _, err := c.FPutObject(t.Context(), bucket, key, file, options); err != nil {
		t.Fatal(err)
	}
	about, err := c.StatObject(t.Context(), bucket, key, minio.StatObjectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := about.UserMetadata["Source"]; got != "minio-go" {
		t.Errorf("stat %s: metadata = %v; want source minio-go", key, about.UserMetadata)
	}
}

func (c *minioGo) putTree(t *testing.T, bucket, prefix, dir string) {
	for _, name := range filesBelow(t, dir) {
		if _, err := c.FPutObject(t.Context(), bucket, prefix+name, filepath.Join(dir, name), minio.PutObjectOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

func (c *minioGo) get(t *testing.T, bucket, key, file string) {
	if err := c.FGetObject(t.Context(), bucket, key, file, minio.GetObjectOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (c *minioGo) getRange(t *testing.T, bucket, key string, off, n int64) []byte {
	var o minio.GetObjectOptions
	if err := o.SetRange(off, off+n-1); err != nil {
		t.Fatal(err)
	}
	body, err := c.GetObject(t.Context(), bucket, key, o)
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	content, err := io.ReadAll(body)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// list asks by both versions of the listing, which must agree.
func (c *minioGo) list(t *testing.T, bucket, prefix, delimiter string) (keys, prefixes []string) {
	for _, v1 := range []bool{true, false} {
		var gotKeys, gotPrefixes []string
		o := minio.ListObjectsOptions{Prefix: prefix, Recursive: delimiter == "", UseV1: v1}
		for entry := range c.ListObjects(t.Context(), bucket, o) {
			switch {
			case entry.Err != nil:
				t.Fatal(entry.Err)
			case strings.HasSuffix(entry.Key, "/"):
				gotPrefixes = append(gotPrefixes, entry.Key)
			default:
				gotKeys = append(gotKeys, entry.Key)
			}
		}
		if !v1 && (len(gotKeys) != len(keys) || len(gotPrefixes) != len(prefixes)) {
			t.Errorf("list %q: v2 has %d keys, v1 %d", prefix, len(gotKeys), len(keys))
		}
		keys, prefixes = gotKeys, gotPrefixes
	}
	return keys, prefixes
}

// copyObject copies what fits in one request, and larger objects in parts.
func (c *minioGo) copyObject(t *testing.T, bucket, from, to string) {
	source := minio.CopySrcOptions{Bucket: bucket, Object: from}
	target := minio.CopyDestOptions{Bucket: bucket, Object: to}
	var err error
	if strings.Contains(from, "large") {
		first, rest := source, source
		first.MatchRange, first.Start, first.End = true, 0, 6<<20-1
		rest.MatchRange, rest.Start, rest.End = true, 6<<20, multipartBytes-1
		_, err = c.ComposeObject(t.Context(), target, first, rest)
	} else {
		_, err = c.CopyObject(t.Context(), target, source)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (c *minioGo) deleteObject(t *testing.T, bucket, key string) {
	if err := c.RemoveObject(t.Context(), bucket, key, minio.RemoveObjectOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestSignedTrailers uploads with chunk signatures and a checksum in a signed trailer.
func TestSignedTrailers(t *testing.T) {
	e := anyEndpoint(t)
	c := &minioGo{openMinio(t, e, minio.Options{BucketLookup: minio.BucketLookupPath, TrailingHeaders: true})}
	bucket := newBucket(t, c)
	for _, algorithm := range []minio.ChecksumType{
		minio.ChecksumCRC32, minio.ChecksumCRC32C, minio.ChecksumSHA1, minio.ChecksumSHA256, minio.ChecksumCRC64NVME,
	} {
		t.Run(algorithm.String(), func(t *testing.T) {
			file, sum := randomFile(t, 200_001)
			f, err := os.Open(file)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			_, err = c.PutObject(t.Context(), bucket, algorithm.String(), f, 200_001, minio.PutObjectOptions{Checksum: algorithm})
			if err != nil {
				t.Fatal(err)
			}
			wantObject(t, c, bucket, algorithm.String(), sum)
		})
	}
	c.emptyBucket(t, bucket)
	c.removeBucket(t, bucket)
}
