package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

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
	stuck bool // set by close: a drive hangs
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

// closeWait is how long a stop waits for its drives in the end. They have written all by then, so that it is only those
// that hang that take longer; for how long the kernel waits for them is its own matter.
const closeWait = 10 * time.Second

// errStuck is the outcome of a close that takes too long.
var errStuck = errors.New("does not answer: left as it is")

// close closes what open and make have opened. The stores are closed before, by the engine or here. A drive that hangs
// does not keep the others from being closed.
func (d *drives) close() error {
	var closers []func() error
	for _, o := range d.list {
		closers = append(closers, func() error {
			err := o.store.Close()
			if o.store.Err() != nil {
				o.drive.Abandon()
				err = nil
			}
			if closeErr := o.drive.Close(); !errors.Is(closeErr, blockdev.ErrGone) {
				err = errors.Join(err, closeErr)
			}
			return err
		})
	}
	errs := closeAll(closers, closeWait)
	for i, o := range d.list {
		if errors.Is(errs[i], errStuck) {
			d.stuck = true
			d.log.Warn("drive does not answer and is left as it is; the process can't end before the kernel gives it up",
				"path", o.drive.Path)
			if o.store.Err() != nil {
				errs[i] = nil // it was out before
			}
		}
	}
	d.cache.Close()
	return errors.Join(errs...)
}

// closeAll calls all at once, and gives what they return, errStuck of those that don't return in time.
func closeAll(closers []func() error, wait time.Duration) []error {
	errs := make([]error, len(closers))
	ends := make([]chan error, len(closers))
	for i, c := range closers {
		ends[i] = make(chan error, 1)
		go func() { ends[i] <- c() }()
	}
	late := time.After(wait)
	timedOut := false
	for i := range ends {
		select {
		case errs[i] = <-ends[i]:
			continue
		default:
		}
		if !timedOut {
			select {
			case errs[i] = <-ends[i]:
				continue
			case <-late:
				timedOut = true
			}
		}
		errs[i] = errStuck
	}
	return errs
}

// fatal tells an error that must end the start: going on without the drive would be wrong, not
// merely degraded.
func fatal(err error) bool {
	return errors.Is(err, blockdev.ErrInUse) || errors.Is(err, shardstore.ErrNewerFormat) ||
		errors.Is(err, context.Canceled)
}
