package storetest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/millrace/millrace/s3/store"
)

// sentinel reduces an error to the sentinel in it.
func sentinel(err error) error {
	for _, s := range []error{
		store.ErrNoSuchBucket, store.ErrNoSuchKey, store.ErrNoSuchUpload, store.ErrInvalidPart, store.ErrBodyTooShort,
		store.ErrBodyTooLong, store.ErrInvalidRange, errStop,
	} {
		if errors.Is(err, s) {
			return s
		}
	}
	return err
}

func (p *pair) createUpload() {
	if len(p.uploads) > 30 {
		return
	}
	key := p.key()
	var made [2]store.Upload
	p.same("CreateUpload "+key, func(s store.Store, i int) (any, error) {
		var err error
		made[i], err = s.CreateUpload(p.t.Context(), store.Upload{
			Bucket: bucketName, Key: key, Owner: "root", User: map[string]string{"n": fmt.Sprint(len(p.uploads))},
		})
		return made[i], err
	})
	p.uploads = append(p.uploads, uploadPair{made[0], made[1]})
}

// onUpload does the same with one upload, perhaps one that has ended, on both stores.
func (p *pair) onUpload(what string, do func(s store.Store, u store.Upload) (any, error)) {
	p.t.Helper()
	if len(p.uploads) == 0 {
		return
	}
	u := pick(p.rand, p.uploads[max(0, len(p.uploads)-4):])
	p.same(fmt.Sprintf("%s of upload %q of %q", what, u.got.ID, u.got.Key), func(s store.Store, i int) (any, error) {
		return do(s, []store.Upload{u.got, u.want}[i])
	})
}

func (p *pair) putPart() {
	number, data, bad := 1+p.rand.IntN(4), content(p.rand.Uint64(), p.size()), p.rand.IntN(8) == 0
	p.onUpload(fmt.Sprintf("PutPart %d, %d bytes, bad %v", number, len(data), bad),
		func(s store.Store, u store.Upload) (any, error) {
			r := store.PartRequest{
				Bucket: u.Bucket, Key: u.Key, UploadID: u.ID, Number: number, SizeBytes: int64(len(data)),
				Body: bytes.NewReader(data),
			}
			if bad {
				r.SizeBytes++
			}
			return s.PutPart(p.t.Context(), r)
		})
}

func (p *pair) complete() {
	var numbers []int
	for n := range 4 {
		if p.rand.IntN(2) == 0 {
			numbers = append(numbers, n+1)
		}
	}
	if len(numbers) == 0 {
		numbers = []int{1}
	}
	fails := p.rand.IntN(5) == 0
	p.onUpload(fmt.Sprint("CompleteUpload ", numbers), func(s store.Store, u store.Upload) (any, error) {
		return s.CompleteUpload(p.t.Context(), store.CompleteRequest{
			Bucket: u.Bucket, Key: u.Key, UploadID: u.ID, Numbers: numbers,
			Finish: func(_ store.Upload, parts []store.Part) (store.Seal, error) {
				if fails {
					return store.Seal{}, errStop
				}
				var tags []byte
				for _, part := range parts {
					tags = append(tags, part.ETag...)
				}
				return store.Seal{ETag: fmt.Sprint(etag(tags), "-", len(parts))}, nil
			},
		})
	})
}

func (p *pair) abort() {
	p.onUpload("AbortUpload", func(s store.Store, u store.Upload) (any, error) {
		return nil, s.AbortUpload(p.t.Context(), u.Bucket, u.Key, u.ID)
	})
}

func (p *pair) listParts() {
	after, maxParts := p.rand.IntN(4), p.rand.IntN(4)
	p.onUpload(fmt.Sprint("ListParts ", after, maxParts), func(s store.Store, u store.Upload) (any, error) {
		parts, more, err := s.ListParts(p.t.Context(), u.Bucket, u.Key, u.ID, after, maxParts)
		return []any{slices.Clip(parts), more}, err
	})
}

func (p *pair) listUploads() {
	r := store.UploadsRequest{
		Bucket: bucketName, Prefix: pick(p.rand, []string{"", "a", "b/"}), Delimiter: pick(p.rand, []string{"", "/"}),
		KeyAfter: pick(p.rand, append(randomKeys(), "", "")), MaxEntries: p.rand.IntN(6),
	}
	p.same(fmt.Sprintf("ListUploads %+v", r), func(s store.Store, _ int) (any, error) {
		return s.ListUploads(p.t.Context(), r)
	})
}
