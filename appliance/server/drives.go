package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/millrace/millrace/appliance/object"
	"github.com/millrace/millrace/nvme/blockdev"
	"github.com/millrace/millrace/nvme/drive"
	"github.com/millrace/millrace/nvme/shardstore"
)

// The memory that the drives' metadata share.
const (
	cacheBytes = 32 << 20
	cacheFiles = 512
)

// opened is a drive that is open, with its store.
type opened struct {
	drive *drive.Drive
	store *shardstore.Store
	isNew bool // made to replace another
}

// drives are all open drives of the appliance.
type drives struct {
	list  []opened
	cache *shardstore.Cache
	log   *slog.Logger
}

func newDrives(log *slog.Logger) *drives {
	return &drives{cache: shardstore.NewCache(cacheBytes, cacheFiles), log: log}
}

func (d *drives) options(dr *drive.Drive) shardstore.Options {
	return shardstore.Options{Data: dr.Data, MetaFS: vfs.Default, MetaDir: dr.MetaDir, Cache: d.cache,
		Logger: d.log.With("path", dr.Path)}
}

// errBlank is returned by open for a place where no drive of a pool is: nothing, an empty
// folder or device, or a drive that was never formatted.
var errBlank = errors.New("no drive of a pool")

// open opens the drive at path and its store.
func (d *drives) open(ctx context.Context, path string) error {
	dr, err := drive.Open(ctx, path, drive.Options{})
	if errors.Is(err, drive.ErrNoDrive) {
		return fmt.Errorf("%s: %w", path, errBlank)
	}
	if err != nil {
		return err
	}
	s, err := shardstore.Open(ctx, d.options(dr))
	if errors.Is(err, shardstore.ErrNotFormatted) {
		err = errBlank
	}
	if err != nil {
		return errors.Join(fmt.Errorf("%s: %w", path, err), dr.Close())
	}
	d.list = append(d.list, opened{drive: dr, store: s})
	return nil
}

// make makes the drive at path, formats it for a slot of the pool, and opens it. What is there
// already is overwritten only if it is of the same pool: what a start that was broken off has left.
func (d *drives) make(ctx context.Context, path string, slot int, r *record) (err error) {
	pool, err := r.poolID()
	if err != nil {
		return err
	}
	create := drive.CreateOptions{}
	if info, err := os.Stat(path); err != nil || info.IsDir() {
		create.SizeBytes = int64(r.DriveSize)
	}
	dr, err := drive.Create(ctx, path, create)
	if errors.Is(err, drive.ErrExists) {
		dr, err = drive.Open(ctx, path, drive.Options{})
	}
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("%s: %w", path, err), dr.Close())
		}
	}()
	options := d.options(dr)
	switch label, err := shardstore.ReadLabel(dr.Data); {
	case err == nil && label.Pool == pool:
		options.Overwrite = true
	case err == nil:
		return fmt.Errorf("belongs to pool %s: %w", label.Pool, object.ErrOtherPool)
	case !errors.Is(err, shardstore.ErrNotFormatted):
		return err
	}
	label := shardstore.Label{Drive: shardstore.NewDriveID(), Pool: pool, Slot: slot}
	if err := shardstore.Format(ctx, options, label); err != nil {
		return err
	}
	options.Overwrite = false
	s, err := shardstore.Open(ctx, options)
	if err != nil {
		return err
	}
	d.list = append(d.list, opened{drive: dr, store: s})
	return nil
}

func (d *drives) stores() []*shardstore.Store {
	var stores []*shardstore.Store
	for _, o := range d.list {
		stores = append(stores, o.store)
	}
	return stores
}

func (d *drives) members() []object.Member {
	var members []object.Member
	for _, o := range d.list {
		members = append(members, object.Member{Store: o.store, Present: o.drive.Present, New: o.isNew})
	}
	return members
}

// path tells where the drive of a store was opened.
func (d *drives) path(s *shardstore.Store) string {
	i := slices.IndexFunc(d.list, func(o opened) bool { return o.store == s })
	if i < 0 {
		return ""
	}
	return d.list[i].drive.Path
}

// close closes what open and make have opened. The stores are closed before, by the engine or here.
func (d *drives) close() error {
	var errs []error
	for _, o := range d.list {
		if err := o.store.Close(); err != nil && o.store.Err() == nil {
			errs = append(errs, err)
		}
		if err := o.drive.Close(); err != nil && !errors.Is(err, blockdev.ErrGone) {
			errs = append(errs, err)
		}
	}
	d.cache.Close()
	return errors.Join(errs...)
}

// fatal tells an error that must end the start: going on without the drive would be wrong, not
// merely degraded.
func fatal(err error) bool {
	return errors.Is(err, blockdev.ErrInUse) || errors.Is(err, shardstore.ErrNewerFormat) ||
		errors.Is(err, context.Canceled)
}
