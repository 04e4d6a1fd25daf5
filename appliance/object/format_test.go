package object_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/minio/crc64nvme"

	"github.com/millrace/millrace/appliance/erasure"
	"github.com/millrace/millrace/appliance/object"
	"github.com/millrace/millrace/appliance/record"
	"github.com/millrace/millrace/nvme/blockdev"
	"github.com/millrace/millrace/nvme/shardstore"
	"github.com/millrace/millrace/s3/store"
)

// The images in testdata are pools that the program of each format wrote. They are never made anew once the next
// format is there: -update writes only that of the format of this program.
var updateImages = flag.Bool("update", false, "write the image of the present format")

func imagePath(format int) string { return fmt.Sprintf("testdata/format%d.tar.gz", format) }

const imageBytes = 8 << 20 // of each drive's data

// imageBodies are the objects in an image, of bytes that compress well.
func imageBodies() map[string][]byte {
	bodies := map[string][]byte{}
	for key, n := range map[string]int{"empty": 0, "a/small": 100, "inline": 16 << 10, "a/large é\x01": 300 << 10, "two": 40 << 10} {
		body := make([]byte, n)
		for i := range body {
			body[i] = byte(i>>9) ^ byte(len(key))
		}
		bodies[key] = body
	}
	return bodies
}

// fillImage stores what is in an image. What it says is checked by checkImage.
func fillImage(t *testing.T, e *object.Engine) {
	t.Helper()
	ctx := context.Background()
	if _, err := e.CreateBucket(ctx, store.Bucket{Name: "b", Owner: "me", Attributes: map[string][]byte{"x": {1}}}); err != nil {
		t.Fatal(err)
	}
	for key, body := range imageBodies() {
		if _, err := e.Put(ctx, store.PutRequest{Bucket: "b", Key: key, SizeBytes: int64(len(body)), Body: bytes.NewReader(body),
			System: map[string]string{"Content-Type": "text/x"}, User: map[string]string{"k": "v"},
			Attributes: map[string][]byte{"tags": []byte("a=b")}}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := multipart(e, "multi", make([]byte, 30<<10)); err != nil {
		t.Fatal(err)
	}
	u, err := e.CreateUpload(ctx, store.Upload{Bucket: "b", Key: "unfinished"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.PutPart(ctx, store.PartRequest{Bucket: "b", Key: "unfinished", UploadID: u.ID, Number: 7, SizeBytes: 30 << 10,
		Body: bytes.NewReader(make([]byte, 30<<10))}); err != nil {
		t.Fatal(err)
	}
	mustPut(t, e, "b", "gone", make([]byte, 50<<10))
	if err := e.Delete(ctx, store.DeleteRequest{Bucket: "b", Key: "gone"}); err != nil {
		t.Fatal(err)
	}
}

func checkImage(t *testing.T, e *object.Engine) {
	t.Helper()
	ctx := context.Background()
	b, err := e.Bucket(ctx, "b")
	if err != nil || b.Owner != "me" || string(b.Attributes["x"]) != "\x01" {
		t.Errorf("Bucket = %+v, %v; want the owner and the attribute", b, err)
	}
	bodies := imageBodies()
	for key, body := range bodies {
		wantBytes(t, e, "b", key, body)
		o, err := e.Stat(ctx, "b", key)
		if err != nil || o.System["Content-Type"] != "text/x" || o.User["k"] != "v" || string(o.Attributes["tags"]) != "a=b" ||
			len(o.ETag) != 32 || time.Since(o.Modified) < 0 {
			t.Errorf("Stat(%q) = %+v, %v; want all that was put", key, o, err)
		}
	}
	zeros := make([]byte, 30<<10)
	wantBytes(t, e, "b", "multi", append(append(bytes.Clone(zeros), 1), append(zeros, 2)...))
	page, err := e.List(ctx, store.ListRequest{Bucket: "b", MaxEntries: 100})
	if err != nil || len(page.Objects) != len(bodies)+1 {
		t.Errorf("List = %d objects, %v; want %d", len(page.Objects), err, len(bodies)+1)
	}
	uploads, err := e.ListUploads(ctx, store.UploadsRequest{Bucket: "b", MaxEntries: 10})
	if err != nil || len(uploads.Uploads) != 1 || uploads.Uploads[0].Key != "unfinished" {
		t.Errorf("ListUploads = %+v, %v; want one", uploads, err)
	}
}

// writeImage packs the drives of a box.
func writeImage(t *testing.T, b *box, path string) {
	t.Helper()
	var packed bytes.Buffer
	z, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(z)
	add := func(name string, content []byte) {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content)), Format: tar.FormatUSTAR}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(content); err != nil {
			t.Fatal(err)
		}
	}
	for slot, d := range b.drives {
		data := blockdev.AlignedBuffer(int(d.mem.SizeBytes()))
		if err := d.mem.ReadAt([][]byte{data}, 0); err != nil {
			t.Fatal(err)
		}
		add(fmt.Sprintf("%02d/data", slot), data)
		names, err := d.fs.List("meta")
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			f, err := d.fs.Open(d.fs.PathJoin("meta", name))
			if err != nil {
				t.Fatal(err)
			}
			content, err := io.ReadAll(f)
			if err := errors.Join(err, f.Close()); err != nil {
				t.Fatal(err)
			}
			add(fmt.Sprintf("%02d/meta/%s", slot, name), content)
		}
	}
	if err := errors.Join(w.Close(), z.Close(), os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, packed.Bytes(), 0o644)); err != nil {
		t.Fatal(err)
	}
	t.Logf("%s: %d bytes", path, packed.Len())
}

// readImage gives a box of the drives of an image.
func readImage(t *testing.T, path string) *box {
	t.Helper()
	packed, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	b := emptyBox(t)
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if err == io.EOF {
			return b
		}
		if err != nil {
			t.Fatal(err)
		}
		var slot int
		var name string
		if _, err := fmt.Sscanf(h.Name, "%02d/%s", &slot, &name); err != nil || slot > len(b.drives) {
			t.Fatalf("file %q in %s: %v", h.Name, path, err)
		}
		if slot == len(b.drives) {
			b.drives = append(b.drives, &boxDrive{fs: vfs.NewCrashableMem(), mem: blockdev.NewMem(imageBytes)})
			if err := b.drives[slot].fs.MkdirAll("meta", 0o700); err != nil {
				t.Fatal(err)
			}
		}
		if err := b.drives[slot].restore(name, h.Size, r); err != nil {
			t.Fatalf("%s: %v", h.Name, err)
		}
	}
}

func (d *boxDrive) restore(name string, size int64, r io.Reader) error {
	content := blockdev.AlignedBuffer(int(size))
	if _, err := io.ReadFull(r, content); err != nil {
		return err
	}
	if name == "data" {
		return d.mem.WriteAt([][]byte{content}, 0)
	}
	f, err := d.fs.Create(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	return errors.Join(err, f.Sync(), f.Close())
}

func TestOlderFormats(t *testing.T) {
	if *updateImages {
		b := newBoxOf(t, erasure.Scheme{Data: 2, Parity: 1}, 3, imageBytes)
		e := b.open()
		fillImage(t, e)
		e.ClearUp()
		closeEngine(t, e)
		writeImage(t, b, imagePath(shardstore.FormatVersion))
	}
	for format := 1; format <= shardstore.FormatVersion; format++ {
		t.Run(fmt.Sprint(format), func(t *testing.T) {
			b := readImage(t, imagePath(format))
			for range 2 {
				e := b.open()
				checkImage(t, e)
				checkPool(t, e)
				mustPut(t, e, "b", "new", noise(1, 100<<10))
				if err := e.Delete(context.Background(), store.DeleteRequest{Bucket: "b", Key: "new"}); err != nil {
					t.Fatal(err)
				}
				closeEngine(t, e)
			}
			b.drives[1].gone = true
			e := b.open()
			checkImage(t, e)
			closeEngine(t, e)
		})
	}
}

// TestNewerFormatIsRefused: a drive of a format that is not known yet is left alone, with a word that tells why.
func TestNewerFormatIsRefused(t *testing.T) {
	b := readImage(t, imagePath(shardstore.FormatVersion))
	d := b.drives[1]
	sb := blockdev.AlignedBuffer(4096)
	for _, off := range []int64{0, 1 << 20, imageBytes - 2<<20, imageBytes - 1<<20} {
		if err := d.mem.ReadAt([][]byte{sb}, off); err != nil {
			t.Fatal(err)
		}
		binary.LittleEndian.PutUint32(sb[8:], shardstore.FormatVersion+1)
		binary.LittleEndian.PutUint64(sb[4088:], crc64nvme.Checksum(sb[:4088]))
		if err := d.mem.WriteAt([][]byte{sb}, off); err != nil {
			t.Fatal(err)
		}
	}
	_, err := shardstore.Open(context.Background(), b.options(d))
	want := fmt.Sprintf("the drive has format %d, this version reads up to %d", shardstore.FormatVersion+1, shardstore.FormatVersion)
	if !errors.Is(err, shardstore.ErrNewerFormat) || !strings.Contains(err.Error(), want) {
		t.Errorf("Open of a drive of a newer format = %v; want ErrNewerFormat and %q", err, want)
	}
}

// TestNewerRecordIsRefused: if a newer record slips through, it is not read as something that it isn't.
func TestNewerRecordIsRefused(t *testing.T) {
	b := readImage(t, imagePath(shardstore.FormatVersion))
	raise := func(kind record.Kind) {
		for _, d := range b.drives {
			s := b.openStore(d)
			r := record.RangeOf(kind)
			it, err := s.Scan(r.Lower, r.Upper)
			if err != nil {
				t.Fatal(err)
			}
			batch := s.NewBatch()
			for it.First(); it.Valid(); it.Next() {
				value, err := it.Value()
				if err != nil {
					t.Fatal(err)
				}
				value = bytes.Clone(value)
				value[0]++
				batch.Set(it.Key(), value)
			}
			if err := errors.Join(it.Close(), s.Commit(context.Background(), batch, true), s.Close()); err != nil {
				t.Fatal(err)
			}
		}
	}
	raise(record.ObjectRecord)
	e := b.open()
	if _, err := get(e, "b", "a/small"); !errors.Is(err, record.ErrNewer) || !strings.Contains(err.Error(), "version 2, this program reads up to 1") {
		t.Errorf("get of a newer record = %v; want ErrNewer with both versions", err)
	}
	r, err := e.Check(context.Background(), false)
	if err != nil || r.FaultCount[object.RecordFault] == 0 {
		t.Errorf("Check = %+v, %v; want faults of records", r, err)
	}
	closeEngine(t, e)
	raise(record.WatermarkRecord)
	if e, err := b.tryOpen(); !errors.Is(err, record.ErrNewer) {
		if err == nil {
			closeEngine(t, e)
		}
		t.Errorf("Open with a newer watermark = %v; want ErrNewer", err)
	}
}
