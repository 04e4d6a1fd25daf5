package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/millrace/millrace/appliance/config"
	"github.com/millrace/millrace/appliance/erasure"
	"github.com/millrace/millrace/appliance/object"
	"github.com/millrace/millrace/appliance/placement"
	"github.com/millrace/millrace/nvme/shardstore"
)

// drivesFolder holds the virtual drives of DIR.
const drivesFolder = "drives"

// virtualPath is the folder of a virtual drive: DIR/drives/00.
func virtualPath(dir string, slot int) string {
	return filepath.Join(dir, drivesFolder, fmt.Sprintf("%02d", slot))
}

// openPool opens the drives of the pool, and makes them where the records say that they never were.
// After an error everything is closed.
func openPool(ctx context.Context, c *config.Config, log *slog.Logger) (d *drives, err error) {
	d = newDrives(log)
	defer func() {
		if err != nil {
			err = errors.Join(err, d.close())
		}
	}()
	state := c.StatePath()
	var r record
	known := false
	if state != "" {
		if r, known, err = readRecord(state); err != nil {
			return d, err
		}
	}
	paths, err := drivePaths(c)
	if err != nil {
		return d, err
	}
	if known && r.Made {
		r.compare(c, log)
		return d, d.openOrReplace(ctx, c, paths, &r)
	}
	if !known {
		// Without a record the drives speak for themselves, if there are any.
		if err := d.openOrReplace(ctx, c, paths, nil); err == nil || !errors.Is(err, errBlank) {
			return d, err
		}
		if r, err = newRecord(c); err != nil {
			return d, err
		}
	} else {
		log.Warn("the making of the pool was broken off: making it again")
	}
	return d, d.makeAll(ctx, c, &r, state)
}

// drivePaths lists where to look for drives: all of --drive, or all folders in DIR/drives.
func drivePaths(c *config.Config) ([]string, error) {
	if c.Dir == "" {
		return c.DrivePaths, nil
	}
	return VirtualDrives(c.Dir)
}

// VirtualDrives lists the folders that may be drives of the virtual JBOF in dir; none if there is no JBOF.
func VirtualDrives(dir string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(dir, drivesFolder))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var paths []string
	for _, entry := range entries {
		if len(paths) == config.MaxDrives {
			return nil, fmt.Errorf("more than %d entries in %s", config.MaxDrives, filepath.Join(dir, drivesFolder))
		}
		path := filepath.Join(dir, drivesFolder, entry.Name())
		if info, err := os.Stat(path); err == nil && info.IsDir() { // links to folders, too
			paths = append(paths, path)
		}
	}
	return paths, nil
}

// openAll opens the drives at the paths. One that can't be opened counts as missing, and the engine
// decides whether the others are enough. With none open the error matches errBlank if all were blank.
func (d *drives) openAll(ctx context.Context, paths []string) error {
	var errs []error
	blank := true
	for _, path := range paths {
		err := d.open(ctx, path)
		if err == nil {
			continue
		}
		if fatal(err) {
			return err
		}
		blank = blank && errors.Is(err, errBlank)
		errs = append(errs, err)
	}
	if len(d.list) > 0 {
		for _, err := range errs {
			d.log.Error("drive not opened: it counts as missing", "error", err)
		}
		return nil
	}
	if !blank {
		return fmt.Errorf("no drive could be opened: %w", errors.Join(withoutBlank(errs)...))
	}
	return fmt.Errorf("none of the drives is there: %w", errors.Join(append(errs, errBlank)...))
}

func withoutBlank(errs []error) []error {
	var rest []error
	for _, err := range errs {
		if !errors.Is(err, errBlank) {
			rest = append(rest, err)
		}
	}
	return rest
}

// newRecord says with what the drives are to be made.
func newRecord(c *config.Config) (record, error) {
	r := record{Pool: shardstore.NewPoolID().String(), Drives: len(c.DrivePaths), DriveSize: c.DriveSize, Scheme: c.Scheme}
	if c.Dir != "" {
		r.Drives = c.Drives
		if r.Drives == 0 {
			r.Drives = config.DefaultDrives
		}
	}
	if r.DriveSize == 0 {
		r.DriveSize = config.DefaultDriveSize
	}
	if r.Scheme == "" {
		r.Scheme = placement.DefaultScheme(r.Drives).String()
	}
	scheme, err := erasure.ParseScheme(r.Scheme)
	if err == nil && scheme.Shards() > r.Drives {
		err = fmt.Errorf("scheme %v needs %d drives, and there are %d: %w", scheme, scheme.Shards(), r.Drives, ErrUsage)
	}
	return r, err
}

// makeAll makes the drives and the pool. The record is kept before as not made, and after as made,
// so that a start that is broken off in between is repeated from its beginning.
func (d *drives) makeAll(ctx context.Context, c *config.Config, r *record, state string) error {
	keep := func() error {
		if state == "" {
			return nil
		}
		return r.write(state)
	}
	paths := c.DrivePaths
	if c.Dir != "" {
		paths = nil
		for slot := range r.Drives {
			paths = append(paths, virtualPath(c.Dir, slot))
		}
	} else if err := d.checkNew(paths, r); err != nil {
		return err
	}
	if err := keep(); err != nil {
		return fmt.Errorf("keep the record of the pool: %w", err)
	}
	d.log.Info("making a pool", "drives", r.Drives, "scheme", r.Scheme, "drive_size", r.DriveSize.String())
	for slot, path := range paths {
		if err := d.make(ctx, path, slot, r); err != nil {
			return fmt.Errorf("make drive %d of %d (drive-size is %v): %w", slot+1, len(paths), r.DriveSize, err)
		}
	}
	scheme, err := erasure.ParseScheme(r.Scheme)
	if err != nil {
		return err
	}
	if err := object.Create(ctx, d.stores(), scheme); err != nil {
		return err
	}
	r.Made = true
	return keep()
}

// checkNew refuses paths of --drive where there is nothing: a name that is misspelt, or a file system that isn't
// mounted, must not become a new drive.
func (d *drives) checkNew(paths []string, r *record) error {
	if len(paths) != r.Drives {
		return fmt.Errorf("the pool is to be made of %d drives, and %d are given", r.Drives, len(paths))
	}
	for _, path := range paths {
		if _, err := os.Stat(path); err != nil {
			return fmt.Errorf("new drive: %w (a folder must be there before it becomes a drive)", err)
		}
	}
	return nil
}
