package object

import (
	"context"

	"github.com/millrace/millrace/appliance/placement"
	"github.com/millrace/millrace/appliance/record"
	"github.com/millrace/millrace/s3/store"
)

// uploadsStart is where a page of uploads begins.
func uploadsStart(bucket uint64, r store.UploadsRequest) []byte {
	switch {
	case r.KeyAfter < r.Prefix || r.KeyAfter == "":
		return record.UploadsPrefix(bucket, r.Prefix)
	case r.IDAfter == "":
		return record.PrefixEnd(record.UploadsOfKey(bucket, r.KeyAfter))
	}
	id, err := record.ParseUploadID(r.IDAfter)
	if err != nil { // no such ID: all of the key's uploads come after it, or none do
		return record.PrefixEnd(record.UploadsOfKey(bucket, r.KeyAfter))
	}
	return append(record.UploadKey(bucket, r.KeyAfter, id), 0)
}

func (e *Engine) listUploadsOnce(ctx context.Context, bucket uint64, r store.UploadsRequest) (store.UploadsPage, error) {
	var page store.UploadsPage
	if r.MaxEntries <= 0 {
		return page, nil
	}
	c, err := e.openCursor(record.UploadsPrefix(bucket, r.Prefix), groupOfUpload)
	if err != nil {
		return page, err
	}
	defer c.close()
	c.seek(uploadsStart(bucket, r))
	for c.valid() {
		if err := ctx.Err(); err != nil {
			return page, err
		}
		_, key, id, err := record.ParseUploadKey(c.key())
		if err != nil {
			return page, err
		}
		common, rolled := commonPrefix(key, r.Prefix, r.Delimiter)
		if rolled && common <= r.KeyAfter {
			c.seek(record.PrefixEnd(record.UploadsPrefix(bucket, common)))
			continue
		}
		if len(page.Uploads)+len(page.Prefixes) == r.MaxEntries {
			page.Truncated = true
			break
		}
		if rolled {
			page.Prefixes = append(page.Prefixes, common)
			page.NextKey, page.NextID = common, ""
			c.seek(record.PrefixEnd(record.UploadsPrefix(bucket, common)))
			continue
		}
		value, err := c.value()
		if err != nil {
			return page, err
		}
		u := store.Upload{Bucket: r.Bucket, Key: key, ID: id.String()}
		if err := record.DecodeUpload(value, &u); err != nil {
			return page, err
		}
		page.Uploads = append(page.Uploads, u)
		page.NextKey, page.NextID = key, u.ID
		c.next()
	}
	return page, c.err()
}

func groupOfUpload(v *placement.View, k []byte) int {
	bucket, key, _, err := record.ParseUploadKey(k)
	if err != nil {
		return 0 // the walk will report it
	}
	return v.GroupOf(bucket, key)
}
