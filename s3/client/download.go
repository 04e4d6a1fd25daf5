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
// checksums of the ranges fold into that of the whole, so the bytes are read once. By RDMA the parts come through the
// pool of the device.
func (c *Client) Download(
	ctx context.Context, bucket, key string, w io.WriterAt, o DownloadOptions,
) (GetResult, error) {
	device, without, err := c.path.ready()
	if err != nil {
		return GetResult{}, err
	}
	return c.download(ctx, &download{client: c, bucket: bucket, key: key, w: w, o: o, device: device, without: without})
}

// DownloadBuffer fills dst from its start with the object, of any size, as Download does. By RDMA the server writes
// straight into dst, which must be registered (Register) for that.
func (c *Client) DownloadBuffer(ctx context.Context, bucket, key string, dst []byte, o DownloadOptions) (GetResult, error) {
	return c.download(ctx, &download{client: c, bucket: bucket, key: key, dst: dst, o: o})
}

func (c *Client) download(ctx context.Context, d *download) (GetResult, error) {
	if d.o.Info != nil {
		d.info = *d.o.Info
	} else {
		var err error
		if d.info, err = c.Head(ctx, d.bucket, d.key); err != nil {
			return GetResult{}, err
		}
	}
	size := d.info.SizeBytes
	if d.w == nil && size > int64(len(d.dst)) {
		return GetResult{}, fmt.Errorf("GetObject %s/%s: %d bytes into %d: %w", d.bucket, d.key, size, len(d.dst), ErrTooSmall)
	}
	d.partBytes = min(d.o.PartBytes, maxWindowBytes)
	if d.partBytes <= 0 {
		d.partBytes = DefaultPartBytes
	}
	if d.device != nil {
		d.partBytes = min(d.partBytes, d.device.pool.sizeBytes())
	}
	if size == 0 && d.client.path.mode != ModeOff {
		return d.client.GetBuffer(ctx, d.bucket, d.key, nil, GetOptions{IfMatch: d.info.ETag, NoVerify: d.o.NoVerify})
	}
	d.parts = make([]checksum.Part, (size+d.partBytes-1)/d.partBytes)
	if err := parallel(ctx, d.o.Parallel, len(d.parts), d.fetch); err != nil {
		return GetResult{}, err
	}
	result := GetResult{Transfer: d.via.total(), Info: d.info, Bytes: size}
	if d.verify() {
		whole, err := checksum.FullObjectOf(d.info.Checksum, d.parts)
		if err != nil {
			return result, err
		}
		if !bytes.Equal(whole, d.info.ChecksumValue) {
			return result, fmt.Errorf("GetObject %s/%s: %w", d.bucket, d.key, ErrChecksum)
		}
		result.Verified = true
	}
	return result, nil
}

// maxWindowBytes is the most that one request gets by RDMA: a window is smaller than 4 GiB.
const maxWindowBytes = 4<<30 - DefaultPartBytes

// download is one Download in progress.
type download struct {
	client      *Client
	bucket, key string
	w           io.WriterAt // nil: to dst
	dst         []byte
	device      *Device  // from whose pool buffers for w come; nil: by HTTP,
	without     Transfer // because of that
	info        Info
	partBytes   int64
	o           DownloadOptions
	parts       []checksum.Part // each is written by the worker that fetches the part
	via         carried
}

func (d *download) verify() bool { return !d.o.NoVerify && d.info.Checksum != checksum.None }

// fetch gets one part.
func (d *download) fetch(ctx context.Context, i int) error {
	off := int64(i) * d.partBytes
	n := min(d.partBytes, d.info.SizeBytes-off)
	var sum hash.Hash
	if d.verify() {
		sum = checksum.New(d.info.Checksum)
	}
	transfer, err := d.fetchPart(ctx, off, n, sum)
	if err != nil {
		return err
	}
	if sum != nil {
		d.parts[i] = checksum.Part{Value: sum.Sum(nil), SizeBytes: n}
	}
	d.via.add(transfer)
	return nil
}

func (d *download) fetchPart(ctx context.Context, off, n int64, sum hash.Hash) (Transfer, error) {
	c, to := d.client, &offsetWriter{w: d.w, off: off, progress: d.o.Progress, sum: sum}
	if d.w != nil && d.device == nil {
		o := GetOptions{Offset: off, Length: n, IfMatch: d.info.ETag, NoVerify: true}
		result, err := c.getBody(ctx, d.bucket, d.key, o, &copier{client: c, w: to}, d.without)
		if err == nil && result.Bytes != n {
			err = fmt.Errorf("GetObject %s/%s: %d bytes came, not %d", d.bucket, d.key, result.Bytes, n)
		}
		return result.Transfer, err
	}
	var buf []byte
	if d.w == nil {
		buf, to.w = d.dst[off:off+n], nowhere{}
	} else {
		var err error
		if buf, err = d.device.pool.take(ctx, int(n)); err != nil {
			return Transfer{}, err
		}
		defer d.device.pool.give(buf)
	}
	transfer, err := c.getPart(ctx, d.bucket, d.key, buf, off, d.info.ETag)
	for rest := buf; len(rest) > 0 && err == nil; {
		n := min(len(rest), chunkBytes)
		_, err = to.Write(rest[:n])
		rest = rest[n:]
	}
	return transfer, err
}

// chunkBytes is how much of a part is summed and written at a time: little enough to stay in the cache in between.
const chunkBytes = 256 << 10

// nowhere is for bytes that are already where they belong.
type nowhere struct{}

func (nowhere) WriteAt(p []byte, _ int64) (int, error) { return len(p), nil }

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
