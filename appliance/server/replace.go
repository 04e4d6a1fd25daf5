package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/millrace/millrace/appliance/config"
	"github.com/millrace/millrace/appliance/object"
)

// openOrReplace opens the drives at the paths, and makes new ones for the slots of --replace. r is the record of the
// pool, nil where there is none.
func (d *drives) openOrReplace(ctx context.Context, c *config.Config, paths []string, r *record) error {
	places, err := c.Replacements()
	if err != nil {
		return err
	}
	rest := slices.Clone(paths)
	for slot, path := range places {
		if path == "" {
			places[slot] = virtualPath(c.Dir, slot)
		} else if _, err := os.Stat(path); err != nil { // as checkNew
			return fmt.Errorf("replace drive of slot %d: %w", slot, err)
		}
		rest = slices.DeleteFunc(rest, func(p string) bool { return p == places[slot] })
	}
	if err := d.openAll(ctx, rest); err != nil || len(places) == 0 {
		return err
	}
	if r == nil {
		r = &record{Pool: d.list[0].store.Label().Pool.String(), DriveSize: c.DriveSize}
		if r.DriveSize == 0 {
			r.DriveSize = config.DefaultDriveSize
		}
	}
	for slot, path := range places {
		if err := d.replace(ctx, path, slot, r); err != nil {
			return fmt.Errorf("replace drive of slot %d: %w", slot, err)
		}
	}
	return nil
}

// replace makes a new drive at path for the slot. One that was made there by an earlier start, and has joined the pool
// since, is opened as it is: so --replace may stay in the configuration.
func (d *drives) replace(ctx context.Context, path string, slot int, r *record) error {
	err := d.open(ctx, path)
	switch {
	case fatal(err):
		return err
	case err == nil:
		last := len(d.list) - 1
		found := d.list[last]
		joined, err := object.HasJoined(found.store)
		label := found.store.Label()
		if err == nil && joined && label.Pool.String() == r.Pool && label.Slot == slot {
			d.log.Info("replaced already", "slot", slot, "path", path)
			return nil
		}
		d.list = d.list[:last]
		if err = errors.Join(err, found.store.Close(), found.drive.Close()); err != nil {
			return err
		}
		if joined {
			return fmt.Errorf("%s is slot %d of pool %s: wipe it first if it is to be used here", path, label.Slot, label.Pool)
		}
	case !errors.Is(err, errBlank):
		d.log.Warn("what is at the place of a new drive can't be opened", "slot", slot, "path", path, "err", err)
	}
	if err := d.make(ctx, path, slot, r); err != nil {
		return err
	}
	d.list[len(d.list)-1].isNew = true
	d.log.Info("new drive", "slot", slot, "path", path)
	return nil
}
