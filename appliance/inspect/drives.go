// Package inspect looks at the drives of a pool that no server has open: it checks them (fsck) and shows what
// is on them (dump). It opens the drives for itself, so that nothing changes under its eyes.
//
// It is not a repair tool, and it doesn't decide what is wrong: object.Engine.Check and
// shardstore.Store.Verify do. Before they can, the recovery that every start begins with must have run;
// here it runs over copies of what it changes, in a scratch folder.
//
// Invariant: no byte of a drive changes, neither of its data nor of its metadata. (The kernel, when it
// mounts the metadata file system of a block device, may replay that file system's journal.)
package inspect

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/millrace/millrace/appliance/object"
	"github.com/millrace/millrace/nvme/blockdev"
	"github.com/millrace/millrace/nvme/drive"
	"github.com/millrace/millrace/nvme/shardstore"
)

// The memory that the drives' metadata share.
const (
	cacheBytes = 64 << 20
	cacheFiles = 512
)

// ErrInUse: another process, probably a server, has a drive open.
var ErrInUse = errors.New("in use")

// Drive is one path that was looked at.
type Drive struct {
	Path  string
	Label *shardstore.Label // nil if it could not be read
	Err   error             // why there is no store to look into; nil if there is
	drive *drive.Drive
	meta  *overlay
	store *shardstore.Store // under mu of Drives, for Progress
}

// Drives are drives opened for inspection.
type Drives struct {
	List    []*Drive // in the order of the paths
	cache   *shardstore.Cache
	log     *slog.Logger
	scratch string
	mu      sync.Mutex
}

// Open opens the drives at the paths, all at once. A drive that can't be opened has its error in the
// list; one that is in use ends it all with ErrInUse. The scratch folder is made in the system's
// folder for temporary files.
func Open(ctx context.Context, paths []string, log *slog.Logger) (*Drives, error) {
	scratch, err := os.MkdirTemp("", "millrace-inspect-")
	if err != nil {
		return nil, fmt.Errorf("scratch folder: %w", err)
	}
	d := &Drives{cache: shardstore.NewCache(cacheBytes, cacheFiles), log: log, scratch: scratch}
	var wg sync.WaitGroup
	for i, path := range paths {
		dr := &Drive{Path: path}
		d.List = append(d.List, dr)
		wg.Go(func() { dr.Err = d.open(ctx, dr, filepath.Join(scratch, strconv.Itoa(i))) })
	}
	wg.Wait()
	for _, dr := range d.List {
		if errors.Is(dr.Err, blockdev.ErrInUse) {
			return nil, errors.Join(fmt.Errorf("%w: %w (stop the server that has it)", ErrInUse, dr.Err), d.Close())
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	d.setStrangersAside()
	d.setTwinsAside()
	return d, nil
}

func (d *Drives) open(ctx context.Context, dr *Drive, scratch string) error {
	var err error
	if dr.drive, err = drive.Open(ctx, dr.Path, drive.Options{}); err != nil {
		return err
	}
	label, err := shardstore.ReadLabel(dr.drive.Data)
	if err != nil {
		return fmt.Errorf("superblock: %w", err)
	}
	dr.Label = &label
	if err := os.Mkdir(scratch, 0o700); err != nil {
		return err
	}
	dr.meta = newOverlay(vfs.Default, vfs.Default, scratch)
	return d.openStore(ctx, dr)
}

// openStore opens the store; what an earlier one has changed is still there for it.
func (d *Drives) openStore(ctx context.Context, dr *Drive) error {
	s, err := shardstore.Open(ctx, shardstore.Options{Data: readOnly{dr.drive.Data}, MetaFS: dr.meta,
		MetaDir: dr.drive.MetaDir, Cache: d.cache, Logger: d.log.With("path", dr.Path)})
	d.mu.Lock()
	dr.store = s
	d.mu.Unlock()
	return err
}

// setStrangersAside keeps the drives of the pool that most of them are of.
func (d *Drives) setStrangersAside() {
	count := map[shardstore.PoolID]int{}
	var pool shardstore.PoolID
	for _, dr := range d.List {
		if dr.Label == nil {
			continue
		}
		if count[dr.Label.Pool]++; count[dr.Label.Pool] > count[pool] {
			pool = dr.Label.Pool
		}
	}
	for _, dr := range d.List {
		if dr.store != nil && dr.Label.Pool != pool {
			dr.setAside(fmt.Errorf("%w: %s", object.ErrOtherPool, dr.Label.Pool))
		}
	}
}

// setTwinsAside keeps the drives whose identity no other one has, as the engine does.
func (d *Drives) setTwinsAside() {
	count := map[shardstore.DriveID]int{}
	for _, dr := range d.List {
		if dr.store != nil {
			count[dr.Label.Drive]++
		}
	}
	for _, dr := range d.List {
		if dr.store != nil && count[dr.Label.Drive] > 1 {
			dr.setAside(fmt.Errorf("%w: %s", object.ErrDuplicateDrive, dr.Label.Drive))
		}
	}
}

// setAside leaves the drive out because of why.
func (dr *Drive) setAside(why error) {
	dr.Err = errors.Join(why, dr.store.Close())
	dr.store = nil
}

func (d *Drives) members() []object.Member {
	var members []object.Member
	for _, dr := range d.List {
		if dr.store != nil {
			members = append(members, object.Member{Store: dr.store})
		}
	}
	return members
}

// Close closes the drives and removes the scratch folder.
func (d *Drives) Close() error {
	var errs []error
	for _, dr := range d.List {
		if dr.store != nil {
			_ = dr.store.Close() // what it couldn't write is of no account
		}
		if dr.drive != nil {
			errs = append(errs, dr.drive.Close())
		}
	}
	d.cache.Close()
	return errors.Join(append(errs, os.RemoveAll(d.scratch))...)
}
