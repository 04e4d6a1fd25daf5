package client

import (
	"bytes"
	"context"
	"fmt"
	"hash"
	"io"
	"sync"

	"github.com/millrace/millrace/s3/checksum"
)

// Defaults of DownloadOptions and UploadOptions.
const (
	DefaultPartBytes = 16 << 20
	DefaultParallel  = 4
	// MaxParallel limits the parts in flight.
	MaxParallel = 64
)

// DownloadOptions say how an object is cut. The zero value is fine.
type DownloadOptions struct {
	PartBytes int64 // 0 is DefaultPartBytes
	Parallel  int   // parts in flight; 0 is DefaultParallel
	NoVerify  bool
	// Info is what Head gave for the object, if it was asked already.
	Info *Info
	// Progress is called with the number of bytes that came, from many goroutines; it may be nil.
	Progress func(n int64)
}

// Download writes the object to w by parallel ranged GETs, all of one version of the object. The
// checksums of the ranges fold into that of the whole, so the bytes are read once.
func (c *Client) Download(
	ctx context.Context, bucket, key string, w io.WriterAt, o DownloadOptions,
) (GetResult, error) {
	var info Info
	if o.Info != nil {
		info = *o.Info
	} else {
		var err error
		if info, err = c.Head(ctx, bucket, key); err != nil {
			return GetResult{}, err
		}
	}
	part := o.PartBytes
	if part <= 0 {
		part = DefaultPartBytes
	}
	d := &download{client: c, bucket: bucket, key: key, w: w, info: info, partBytes: part, o: o}
	d.parts = make([]checksum.Part, (info.SizeBytes+part-1)/part)
	if err := d.run(ctx); err != nil {
		return GetResult{}, err
	}
	result := GetResult{Transfer: c.transfer, Info: info, Bytes: info.SizeBytes}
	if d.verify() {
		whole, err := checksum.FullObjectOf(info.Checksum, d.parts)
		if err != nil {
			return result, err
		}
		if !bytes.Equal(whole, info.ChecksumValue) {
			return result, fmt.Errorf("GetObject %s/%s: %w", bucket, key, ErrChecksum)
		}
		result.Verified = true
	}
	return result, nil
}

// download is one Download in progress.
type download struct {
	client      *Client
	bucket, key string
	w           io.WriterAt
	info        Info
	partBytes   int64
	o           DownloadOptions
	parts       []checksum.Part // each is written by the worker that fetches the part
}

func (d *download) verify() bool { return !d.o.NoVerify && d.info.Checksum != checksum.None }

// run fetches all parts; the first error stops the others.
func (d *download) run(ctx context.Context) error {
	return parallel(ctx, d.o.Parallel, len(d.parts), d.fetch)
}

func (d *download) fetch(ctx context.Context, i int) error {
	off := int64(i) * d.partBytes
	n := min(d.partBytes, d.info.SizeBytes-off)
	to := &offsetWriter{w: d.w, off: off, progress: d.o.Progress}
	if d.verify() {
		to.sum = checksum.New(d.info.Checksum)
	}
	result, err := d.client.Get(ctx, d.bucket, d.key, to,
		GetOptions{Offset: off, Length: n, IfMatch: d.info.ETag, NoVerify: true})
	if err != nil {
		return err
	}
	if result.Bytes != n {
		return fmt.Errorf("GetObject %s/%s: %d bytes came, not %d", d.bucket, d.key, result.Bytes, n)
	}
	if to.sum != nil {
		d.parts[i] = checksum.Part{Value: to.sum.Sum(nil), SizeBytes: n}
	}
	return nil
}

// offsetWriter writes in order from an offset.
type offsetWriter struct {
	w        io.WriterAt
	off      int64
	sum      hash.Hash
	progress func(int64)
}

func (o *offsetWriter) Write(p []byte) (int, error) {
	n, err := o.w.WriteAt(p, o.off)
	o.off += int64(n)
	if o.sum != nil {
		o.sum.Write(p[:n])
	}
	if o.progress != nil {
		o.progress(int64(n))
	}
	return n, err
}

// parallel calls do for 0 … n-1 from a few goroutines; after the first error no further one is
// started, the context of those that run is cancelled, and that error is returned.
func parallel(ctx context.Context, workers, n int, do func(context.Context, int) error) error {
	if workers <= 0 {
		workers = DefaultParallel
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan int)
	var group sync.WaitGroup
	for range min(workers, MaxParallel, n) {
		group.Go(func() {
			for i := range next {
				if err := do(ctx, i); err != nil {
					cancel(err)
				}
			}
		})
	}
feed:
	for i := range n {
		select {
		case next <- i:
		case <-ctx.Done():
			break feed
		}
	}
	close(next)
	group.Wait()
	return context.Cause(ctx)
}
