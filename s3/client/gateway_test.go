package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/s3/client"
	"github.com/millrace/millrace/s3/gateway"
	"github.com/millrace/millrace/s3/sigv4"
	"github.com/millrace/millrace/s3/store"
	"github.com/millrace/millrace/s3/store/memstore"
	"github.com/millrace/millrace/s3/wire"
)

// account is the one account of the test's endpoint.
type account struct{}

func (account) Principal(context.Context, string) (gateway.Principal, error) {
	return gateway.Principal{Account: wire.Account{ID: "id", DisplayName: "root"}, Root: true}, nil
}

func (account) Account(id string) wire.Account { return wire.Account{ID: id, DisplayName: "root"} }

// serve returns a client of our own S3 front over a store in memory, with a bucket "bucket".
func serve(t testing.TB) (*client.Client, *memstore.Store) {
	t.Helper()
	credential := sigv4.Credential{AccessKey: "ak", SecretKey: "secret", SessionToken: "token"}
	s := memstore.New()
	server := httptest.NewServer(gateway.New(gateway.Config{Store: s, Accounts: account{}, Region: "eu-1",
		Verifier: &sigv4.Verifier{Region: "eu-1", StrictRegion: true,
			Lookup: func(context.Context, string) (sigv4.Credential, error) { return credential, nil }}}))
	t.Cleanup(server.Close)
	c, err := client.New(client.Config{Endpoint: server.URL, Region: "eu-1", Credential: credential})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	if err := c.CreateBucket(context.Background(), "bucket"); err != nil {
		t.Fatal(err)
	}
	return c, s
}

func random(n int) []byte {
	data := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{9}).Read(data)
	return data
}

func get(t *testing.T, c *client.Client, key string) ([]byte, client.GetResult) {
	t.Helper()
	var b bytes.Buffer
	result, err := c.Get(context.Background(), "bucket", key, &b, client.GetOptions{})
	if err != nil {
		t.Fatalf("Get(%q) = %v", key, err)
	}
	return b.Bytes(), result
}

func TestPutGetHead(t *testing.T) {
	ctx := context.Background()
	c, _ := serve(t)
	for _, size := range []int{0, 1, 70 << 10, 3 << 20} {
		data := random(size)
		put, err := c.Put(ctx, "bucket", "a b/é", data, client.PutOptions{ContentType: "text/x",
			Metadata: map[string]string{"colour": "red"}})
		if err != nil || !put.ChecksumVerified {
			t.Fatalf("Put of %d bytes = %+v, %v; want verified", size, put, err)
		}
		got, result := get(t, c, "a b/é")
		if !bytes.Equal(got, data) || !result.Verified || result.Info.ETag != put.ETag {
			t.Errorf("Get of %d bytes = %d bytes, %+v; want all, verified", size, len(got), result)
		}
		info, err := c.Head(ctx, "bucket", "a b/é")
		if err != nil || info.SizeBytes != int64(size) || info.ContentType != "text/x" || info.Metadata["colour"] != "red" {
			t.Errorf("Head of %d bytes = %+v, %v", size, info, err)
		}
	}
	_, err := c.Put(ctx, "bucket", "a b/é", nil, client.PutOptions{IfNoneMatch: true})
	if client.Code(err) != "PreconditionFailed" {
		t.Errorf("Put(IfNoneMatch) over an object = %v; want PreconditionFailed", err)
	}
}

func TestUpload(t *testing.T) {
	ctx := context.Background()
	c, _ := serve(t)
	const part = 5 << 20
	for _, size := range []int{0, 1, part - 1, part, part + 1, 2 * part, 3*part + 77} {
		data := random(size)
		var progress atomic.Int64
		put, err := c.Upload(ctx, "bucket", "k", iotest.HalfReader(bytes.NewReader(data)), client.UploadOptions{PartBytes: part,
			Parallel: 2, Progress: func(n int64) { progress.Add(n) }})
		want := client.PutResult{Transfer: put.Transfer, ETag: put.ETag, SizeBytes: int64(size), ChecksumVerified: true}
		if size >= part {
			want.Parts = (size + part - 1) / part
		}
		if diff := cmp.Diff(want, put); err != nil || diff != "" || progress.Load() != int64(size) {
			t.Errorf("Upload of %d bytes: %v, progress %d (-want +got):\n%s", size, err, progress.Load(), diff)
		}
		if got, result := get(t, c, "k"); !bytes.Equal(got, data) || !result.Verified {
			t.Errorf("Get of %d bytes = %d bytes, %+v; want all, verified", size, len(got), result)
		}
	}
}

// TestUploadAborts: an upload that fails leaves no parts and no object.
func TestUploadAborts(t *testing.T) {
	ctx := context.Background()
	c, s := serve(t)
	broken := errors.New("broken")
	body := io.MultiReader(bytes.NewReader(random(12<<20)), iotest.ErrReader(broken))
	_, err := c.Upload(ctx, "bucket", "k", body, client.UploadOptions{PartBytes: 5 << 20})
	if !errors.Is(err, broken) {
		t.Errorf("Upload of a broken body = %v; want its error", err)
	}
	page, err := s.ListUploads(ctx, store.UploadsRequest{Bucket: "bucket", MaxEntries: 10})
	if err != nil || len(page.Uploads) != 0 {
		t.Errorf("%d uploads left, %v; want none", len(page.Uploads), err)
	}
	if _, err := c.Head(ctx, "bucket", "k"); !client.NotFound(err) {
		t.Errorf("Head() = %v; want not found", err)
	}
}

func TestListAndDelete(t *testing.T) {
	ctx := context.Background()
	c, _ := serve(t)
	var want []string
	for n := range 25 {
		want = append(want, fmt.Sprintf("k%02d&<\x01>", n))
	}
	for _, key := range want {
		if _, err := c.Put(ctx, "bucket", key, []byte(key), client.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for entry, err := range c.List(ctx, "bucket", client.ListOptions{PageKeys: 10}) {
		if err != nil {
			t.Fatal(err)
		}
		if entry.SizeBytes != int64(len(entry.Key)) || entry.ETag == "" || entry.Modified.IsZero() {
			t.Errorf("entry %+v", entry)
		}
		got = append(got, entry.Key)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("List() (-want +got):\n%s", diff)
	}
	if err := c.DeleteMany(ctx, "bucket", append(want, "never&there")); err != nil {
		t.Fatal(err)
	}
	if err := c.DeleteBucket(ctx, "bucket"); err != nil {
		t.Errorf("DeleteBucket of an emptied bucket = %v", err)
	}
	buckets, err := c.ListBuckets(ctx)
	if err != nil || len(buckets) != 0 {
		t.Errorf("ListBuckets() = %v, %v; want none", buckets, err)
	}
}

func BenchmarkGet4KiB(b *testing.B) {
	c, _ := serve(b)
	if _, err := c.Put(context.Background(), "bucket", "k", random(4096), client.PutOptions{}); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Get(context.Background(), "bucket", "k", io.Discard, client.GetOptions{NoVerify: true}); err != nil {
			b.Fatal(err)
		}
	}
}
