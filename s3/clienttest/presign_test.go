package clienttest

import (
	"bytes"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
)

// TestPresigned puts and gets by URLs that clients have signed, with a plain HTTP client.
func TestPresigned(t *testing.T) {
	e := anyEndpoint(t)
	m := newMinio(t, e, pathStyle).(*minioGo)
	bucket := newBucket(t, m)
	const key = "presigned/ä b+c"
	content := []byte("by anybody who has the URL")
	file := filepath.Join(t.TempDir(), "content")
	if err := os.WriteFile(file, content, 0o644); err != nil {
		t.Fatal(err)
	}
	for name, urls := range map[string]func(*testing.T) (put, get string){
		"boto3": func(t *testing.T) (string, string) {
			c := newBoto3(t, e, pathStyle).(*boto3)
			return c.presign(t, "put_object", bucket, key), c.presign(t, "get_object", bucket, key)
		},
		"aws CLI": func(t *testing.T) (string, string) { // it signs only for reading
			c := newAWSCLI(t, e).(*awsCLI)
			c.put(t, bucket, key, file)
			return "", strings.TrimSpace(string(c.aws(t, "s3", "presign", "s3://"+bucket+"/"+key)))
		},
		"minio-go": func(t *testing.T) (string, string) {
			put, err := m.PresignedPutObject(t.Context(), bucket, key, time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			get, err := m.PresignedGetObject(t.Context(), bucket, key, time.Minute, nil)
			if err != nil {
				t.Fatal(err)
			}
			return put.String(), get.String()
		},
		"aws-sdk-go-v2": func(t *testing.T) (string, string) { return sdkPresign(t, e, bucket, key) },
	} {
		t.Run(name, func(t *testing.T) {
			put, get := urls(t)
			if put != "" {
				m.deleteObject(t, bucket, key)
				wantStatus(t, http.MethodPut, put, content, http.StatusOK)
			}
			if got := wantStatus(t, http.MethodGet, get, nil, http.StatusOK); !bytes.Equal(got, content) {
				t.Errorf("get = %q; want %q", got, content)
			}
			other := strings.Replace(get, "presigned/", "presigned/other-", 1)
			wantStatus(t, http.MethodGet, other, nil, http.StatusForbidden)
		})
	}
	m.emptyBucket(t, bucket)
	m.removeBucket(t, bucket)
}

func sdkPresign(t *testing.T, e endpoint, bucket, key string) (put, get string) {
	signer := s3.NewPresignClient(newSDK(t, e, pathStyle).(*sdk).Client)
	p, err := signer.PresignPutObject(t.Context(), &s3.PutObjectInput{Bucket: &bucket, Key: &key})
	if err != nil {
		t.Fatal(err)
	}
	g, err := signer.PresignGetObject(t.Context(), &s3.GetObjectInput{Bucket: &bucket, Key: &key})
	if err != nil {
		t.Fatal(err)
	}
	return p.URL, g.URL
}

// wantStatus makes one plain request and returns the body of the answer.
func wantStatus(t *testing.T, method, url string, body []byte, status int) []byte {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != status {
		t.Fatalf("%s %s = %d %s; want %d", method, url, resp.StatusCode, got, status)
	}
	return got
}
