package guardfs

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Pebble's blob files (v2.1, sstable/blob) end in a footer; all else are blocks, each read in one call with its
// trailer: a byte for the compression, and the CRC32C of the block and that byte, rotated and offset.
const (
	blobSuffix      = ".blob"
	blobFooterBytes = 38
	blobTrailer     = 5
)

// blobFile is a blob file that is read. Where Pebble meets a fault in one it may end the process, or go on without the
// value; so any fault that is found here is the drive's failure, and Pebble gets only bytes that are right.
type blobFile struct {
	*file
	sizeBytes int64
}

func (fs *FS) openBlob(f *file) (vfs.File, error) {
	f.calls.Add(1)
	info, ended, err := apart(fs, func() (vfs.FileInfo, error) {
		defer f.calls.Done()
		return f.inner.Stat()
	}, nil)
	if !ended {
		err = errRead("stat", f.name)
	}
	if err == nil && info.Size() < blobFooterBytes {
		err = fmt.Errorf("cut off after %d bytes", info.Size())
	}
	if err != nil {
		fs.Fail(fmt.Errorf("open %s: %w", f.name, err))
		_ = f.Close() // the failure says more
		return nil, errRead("open", f.name)
	}
	return &blobFile{f, info.Size()}, nil
}

func isBlob(name string) bool { return strings.HasSuffix(name, blobSuffix) }

// ReadAt reads a block, or the footer, and checks it.
func (f *blobFile) ReadAt(p []byte, off int64) (int, error) {
	n, err := f.file.ReadAt(p, off)
	if f.fs.failed() {
		return 0, errRead("read", f.name)
	}
	if err == nil && !f.right(p, off) {
		err = fmt.Errorf("%d bytes at %d: wrong checksum", len(p), off)
	}
	if err != nil {
		f.fs.Fail(fmt.Errorf("read %s: %w", f.name, err))
		return 0, errRead("read", f.name)
	}
	return n, nil
}

func (f *blobFile) right(p []byte, off int64) bool {
	switch {
	case off+int64(len(p)) == f.sizeBytes && len(p) == blobFooterBytes:
		return binary.LittleEndian.Uint32(p) == maskedCRC(p[4:])
	case len(p) <= blobTrailer:
		return false
	}
	end := len(p) - blobTrailer + 1
	return binary.LittleEndian.Uint32(p[end:]) == maskedCRC(p[:end])
}

// maskedCRC is the CRC32C as Pebble stores it.
func maskedCRC(b []byte) uint32 {
	c := crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))
	return (c>>15 | c<<17) + 0xa282ead8
}
