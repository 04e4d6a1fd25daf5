package client

import (
	"context"
	"net/http"
	"time"
)

// Bucket is one bucket of the account.
type Bucket struct {
	Name    string    `json:"name"`
	Created time.Time `json:"created"`
}

// ListBuckets returns all buckets, by name.
func (c *Client) ListBuckets(ctx context.Context) ([]Bucket, error) {
	var answer struct {
		Buckets struct {
			Bucket []struct {
				Name         string
				CreationDate time.Time
			}
		}
	}
	if err := c.decode(ctx, call{op: "ListBuckets", method: http.MethodGet}, &answer); err != nil {
		return nil, err
	}
	var buckets []Bucket
	for _, b := range answer.Buckets.Bucket {
		buckets = append(buckets, Bucket{Name: b.Name, Created: b.CreationDate})
	}
	return buckets, nil
}

// CreateBucket makes a bucket; its name taken is Code "BucketAlreadyOwnedByYou" or "BucketAlreadyExists".
func (c *Client) CreateBucket(ctx context.Context, bucket string) error {
	_, err := c.discard(ctx, call{op: "CreateBucket", method: http.MethodPut, bucket: bucket})
	return err
}

// DeleteBucket removes an empty bucket.
func (c *Client) DeleteBucket(ctx context.Context, bucket string) error {
	_, err := c.discard(ctx, call{op: "DeleteBucket", method: http.MethodDelete, bucket: bucket})
	return err
}

// HeadBucket returns nil for a bucket that is there and may be used.
func (c *Client) HeadBucket(ctx context.Context, bucket string) error {
	_, err := c.discard(ctx, call{op: "HeadBucket", method: http.MethodHead, bucket: bucket})
	return err
}
