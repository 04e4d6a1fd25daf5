package gateway

import (
	"context"
	"net/http"
	"sync"

	"github.com/millrace/millrace/s3/store"
	"github.com/millrace/millrace/s3/wire"
)

// deleteWorkers is how many keys of one DeleteObjects are deleted at the same time, so that their
// commits share the drives' flushes.
const deleteWorkers = 16

func (g *Gateway) deleteObject(ctx context.Context, _ Principal, r *request) (*response, error) {
	conditions, err := wire.ParseDeleteConditions(r.HTTP.Header)
	if err != nil {
		return nil, err
	}
	version, given := r.Query.Lookup("versionId")
	if given && version == "" {
		return nil, checkVersion(version)
	}
	key := wire.DeleteKey{Key: r.Key, VersionID: version, Conditions: conditions}
	if err := g.deleteKey(ctx, r.Bucket, key); err != nil {
		return nil, err
	}
	return &response{status: http.StatusNoContent}, nil
}

// deleteKey deletes a key, or does nothing for a version that can't be there.
func (g *Gateway) deleteKey(ctx context.Context, bucket string, k wire.DeleteKey) error {
	if k.VersionID != "" && k.VersionID != store.NullVersion {
		_, err := g.store.Bucket(ctx, bucket)
		return err
	}
	request := store.DeleteRequest{Bucket: bucket, Key: k.Key}
	if k.Conditions.HasDelete() {
		request.Precondition = k.Conditions.Delete
	}
	return g.store.Delete(ctx, request)
}

func (g *Gateway) deleteObjects(ctx context.Context, _ Principal, r *request) (*response, error) {
	in, err := wire.ParseIntegrity(r.HTTP.Header)
	if err != nil {
		return nil, err
	}
	if !in.Given() {
		return nil, wire.Refuse("Missing required header for this request: Content-MD5 OR x-amz-checksum-*")
	}
	body, err := r.readDocument(wire.MaxDeleteBytes, in)
	if err != nil {
		return nil, err
	}
	list, err := wire.ParseDelete(body)
	if err != nil {
		return nil, err
	}
	if _, err := g.store.Bucket(ctx, r.Bucket); err != nil {
		return nil, err
	}
	results := g.deleteKeys(ctx, r.Bucket, list.Keys)
	x := wire.NewXML("DeleteResult")
	for i, k := range list.Keys {
		if results[i] == nil {
			if !list.Quiet {
				x.Open("Deleted")
				x.Text("Key", k.Key)
				x.TextUnlessEmpty("VersionId", k.VersionID)
				x.Close("Deleted")
			}
			continue
		}
		e := g.render(r, results[i])
		if e.Code == wire.InternalError {
			g.log.Error("delete object", "bucket", r.Bucket, "key", k.Key, "error", results[i])
		}
		x.Open("Error")
		x.Text("Key", k.Key)
		x.TextUnlessEmpty("VersionId", k.VersionID)
		x.Text("Code", string(e.Code))
		x.Text("Message", e.Text())
		x.Close("Error")
	}
	x.Close("DeleteResult")
	return document(x.Bytes()), nil
}

// deleteKeys deletes keys and returns the error of each.
func (g *Gateway) deleteKeys(ctx context.Context, bucket string, keys []wire.DeleteKey) []error {
	results := make([]error, len(keys))
	workers := min(deleteWorkers, len(keys))
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := w; i < len(keys); i += workers {
				if results[i] = checkKeyBytes(keys[i].Key); results[i] == nil {
					results[i] = g.deleteKey(ctx, bucket, keys[i])
				}
			}
		})
	}
	wg.Wait()
	return results
}

func checkKeyBytes(key string) error {
	if len(key) > store.MaxKeyBytes {
		return &wire.Error{Code: wire.KeyTooLongError}
	}
	return nil
}
