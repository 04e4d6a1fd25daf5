package clienttest

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/feature/s3/transfermanager"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
)

// sdk is aws-sdk-go-v2 with its transfer manager.
type sdk struct {
	*s3.Client
	transfers *transfermanager.Client
}

func newSDK(_ *testing.T, e endpoint, s style) client {
	return openSDK(e, e.url, s, &http.Client{Transport: dialing(e)})
}

// openSDK connects by the given client to a URL, which may be that of a proxy before the endpoint.
func openSDK(e endpoint, url string, s style, by *http.Client) *sdk {
	if s == hostStyle {
		url = localhost(url)
	}
	c := s3.New(s3.Options{
		BaseEndpoint: aws.String(url), Region: "us-east-1", UsePathStyle: s == pathStyle, HTTPClient: by,
		Credentials:      credentials.NewStaticCredentialsProvider(e.accessKey, e.secretKey, ""),
		RetryMaxAttempts: 1,
	})
	return &sdk{c, transfermanager.New(c, func(o *transfermanager.Options) {
		o.PartSizeBytes = 5 << 20
		o.MultipartUploadThreshold = 8 << 20
	})}
}

func (c *sdk) makeBucket(t *testing.T, bucket string) {
	if _, err := c.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: &bucket}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.HeadBucket(t.Context(), &s3.HeadBucketInput{Bucket: &bucket}); err != nil {
		t.Fatal(err)
	}
}

func (c *sdk) emptyBucket(t *testing.T, bucket string) {
	keys, _ := c.list(t, bucket, "", "")
	for len(keys) > 0 {
		n := min(len(keys), 1000)
		var batch []types.ObjectIdentifier
		for _, key := range keys[:n] {
			batch = append(batch, types.ObjectIdentifier{Key: aws.String(key)})
		}
		out, err := c.DeleteObjects(t.Context(), &s3.DeleteObjectsInput{Bucket: &bucket, Delete: &types.Delete{Objects: batch}})
		if err != nil {
			t.Fatal(err)
		}
		if len(out.Errors) > 0 || len(out.Deleted) != n {
			t.Fatalf("DeleteObjects of %d: %d deleted, errors %v", n, len(out.Deleted), out.Errors)
		}
		keys = keys[n:]
	}
}

func (c *sdk) removeBucket(t *testing.T, bucket string) {
	if _, err := c.DeleteBucket(t.Context(), &s3.DeleteBucketInput{Bucket: &bucket}); err != nil {
		t.Fatal(err)
	}
}

func (c *sdk) put(t *testing.T, bucket, key, file string) {
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := c.transfers.UploadObject(t.Context(), &transfermanager.UploadObjectInput{
		Bucket: &bucket, Key: &key, Body: f, Metadata: map[string]string{"source": "aws-sdk-go-v2"},
	}); err != nil {
		t.Fatal(err)
	}
	head, err := c.HeadObject(t.Context(), &s3.HeadObjectInput{Bucket: &bucket, Key: &key})
	if err != nil {
		t.Fatal(err)
	}
	if head.Metadata["source"] != "aws-sdk-go-v2" {
		t.Errorf("head %s: metadata = %v; want source aws-sdk-go-v2", key, head.Metadata)
	}
}

func (c *sdk) putTree(t *testing.T, bucket, prefix, dir string) {
	for _, name := range filesBelow(t, dir) {
		f, err := os.Open(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.PutObject(t.Context(), &s3.PutObjectInput{Bucket: &bucket, Key: aws.String(prefix + name), Body: f})
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
	}
}

func (c *sdk) get(t *testing.T, bucket, key, file string) {
	out, err := c.GetObject(t.Context(), &s3.GetObjectInput{Bucket: &bucket, Key: &key, ChecksumMode: types.ChecksumModeEnabled})
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, file, out.Body)
}

func (c *sdk) getRange(t *testing.T, bucket, key string, off, n int64) []byte {
	out, err := c.GetObject(t.Context(), &s3.GetObjectInput{Bucket: &bucket, Key: &key, Range: aws.String(rangeHeader(off, n))})
	if err != nil {
		t.Fatal(err)
	}
	defer out.Body.Close()
	content, err := io.ReadAll(out.Body)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func (c *sdk) list(t *testing.T, bucket, prefix, delimiter string) (keys, prefixes []string) {
	in := &s3.ListObjectsV2Input{Bucket: &bucket, Prefix: &prefix}
	if delimiter != "" {
		in.Delimiter = &delimiter
	}
	for pages := s3.NewListObjectsV2Paginator(c, in); pages.HasMorePages(); {
		page, err := pages.NextPage(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range page.Contents {
			keys = append(keys, *o.Key)
		}
		for _, p := range page.CommonPrefixes {
			prefixes = append(prefixes, *p.Prefix)
		}
	}
	return keys, prefixes
}

func (c *sdk) copyObject(t *testing.T, bucket, from, to string) {
	source := bucket + "/" + strings.ReplaceAll(from, " ", "%20")
	if _, err := c.CopyObject(t.Context(), &s3.CopyObjectInput{Bucket: &bucket, Key: &to, CopySource: &source}); err != nil {
		t.Fatal(err)
	}
}

func (c *sdk) deleteObject(t *testing.T, bucket, key string) {
	if _, err := c.DeleteObject(t.Context(), &s3.DeleteObjectInput{Bucket: &bucket, Key: &key}); err != nil {
		t.Fatal(err)
	}
}

// TestUnsignedTrailers uploads with a checksum in the trailer of an unsigned chunked body. The SDK
// does so over TLS only, so TLS ends in a proxy that passes the bytes on unchanged.
func TestUnsignedTrailers(t *testing.T) {
	e := anyEndpoint(t)
	url, by := tlsProxy(t, e)
	c := openSDK(e, url, pathStyle, by)
	bucket := newBucket(t, c)
	for _, algorithm := range []types.ChecksumAlgorithm{
		types.ChecksumAlgorithmCrc32, types.ChecksumAlgorithmCrc32c, types.ChecksumAlgorithmSha1,
		types.ChecksumAlgorithmSha256, types.ChecksumAlgorithmCrc64nvme,
	} {
		t.Run(string(algorithm), func(t *testing.T) {
			file, sum := randomFile(t, 1<<20+1)
			f, err := os.Open(file)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			key := string(algorithm)
			_, err = c.PutObject(t.Context(), &s3.PutObjectInput{Bucket: &bucket, Key: &key, Body: f, ChecksumAlgorithm: algorithm})
			if err != nil {
				t.Fatal(err)
			}
			wantObject(t, c, bucket, key, sum)
		})
	}
	c.emptyBucket(t, bucket)
	c.removeBucket(t, bucket)
}

// tlsProxy ends TLS before the endpoint, and returns its URL and a client that trusts it.
func tlsProxy(t *testing.T, e endpoint) (string, *http.Client) {
	t.Helper()
	certified := httptest.NewTLSServer(nil) // only for its certificate and its client
	t.Cleanup(certified.Close)
	l, err := tls.Listen("tcp", "127.0.0.1:0", certified.TLS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			front, err := l.Accept()
			if err != nil {
				return
			}
			go splice(front, e.host())
		}
	}()
	by := certified.Client()
	by.Transport.(*http.Transport).ForceAttemptHTTP2 = false
	by.Transport.(*http.Transport).TLSClientConfig.NextProtos = []string{"http/1.1"}
	return "https://" + l.Addr().String(), by
}

// splice passes bytes in both directions until either side ends.
func splice(front net.Conn, host string) {
	defer front.Close()
	back, err := new(net.Dialer).DialContext(context.Background(), "tcp", host)
	if err != nil {
		return
	}
	go func() {
		defer back.Close()
		_, _ = io.Copy(back, front)
	}()
	_, _ = io.Copy(front, back)
}
