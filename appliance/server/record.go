package server

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/BurntSushi/toml"

	"github.com/millrace/millrace/appliance/config"
	"github.com/millrace/millrace/nvme/shardstore"
)

const (
	recordFile     = "pool.toml"
	maxRecordBytes = 64 << 10
)

// record is what is kept in the state folder about the making of the pool. It is there so that a
// missing drive is never mistaken for one that is still to be made; the pool itself is described by
// its drives alone.
type record struct {
	// Made is false while the drives are being made: nothing was stored on them yet.
	Made bool `toml:"made"`
	// Pool is the UUID that the drives get. Only drives that carry it are made anew.
	Pool string `toml:"pool"`
	// Drives, DriveSize and Scheme are what they are made with.
	Drives    int         `toml:"drives"`
	DriveSize config.Size `toml:"drive-size"`
	Scheme    string      `toml:"scheme"`
}

// readRecord returns the record in dir; ok is false where there is none.
func readRecord(dir string) (r record, ok bool, err error) {
	path := filepath.Join(dir, recordFile)
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return record{}, false, nil
	}
	if err != nil {
		return record{}, false, err
	}
	if info.Size() > maxRecordBytes {
		return record{}, false, fmt.Errorf("%s: larger than %d bytes", path, maxRecordBytes)
	}
	if _, err := toml.DecodeFile(path, &r); err != nil {
		return record{}, false, fmt.Errorf("%s: %w", path, err)
	}
	if _, err := r.poolID(); err != nil {
		return record{}, false, fmt.Errorf("%s: %w", path, err)
	}
	if r.Drives < 1 || r.Drives > config.MaxDrives {
		return record{}, false, fmt.Errorf("%s: drives = %d", path, r.Drives)
	}
	return r, true, nil
}

// poolID returns Pool as the drives' labels have it.
func (r *record) poolID() (shardstore.PoolID, error) {
	raw, err := hex.DecodeString(strings.ReplaceAll(r.Pool, "-", ""))
	if err != nil || len(raw) != len(shardstore.PoolID{}) {
		return shardstore.PoolID{}, fmt.Errorf("pool = %q is no UUID", r.Pool)
	}
	return shardstore.PoolID(raw), nil
}

// write keeps the record in dir.
func (r record) write(dir string) error {
	var text bytes.Buffer
	text.WriteString("# Made by millrace at the first start. It tells a missing drive from one that was never made.\n")
	if err := toml.NewEncoder(&text).Encode(r); err != nil {
		return err
	}
	return replaceFile(filepath.Join(dir, recordFile), text.Bytes(), 0o644)
}

// compare reports options that were said and that the pool, once made, does not follow.
func (r record) compare(c *config.Config, log *slog.Logger) {
	ignored := func(option string, asked, is any) {
		log.Warn("option ignored: the pool is made already", "option", option, "asked", asked, "is", is)
	}
	if c.Drives != 0 && c.Drives != r.Drives {
		ignored("drives", c.Drives, r.Drives)
	}
	if c.DriveSize != 0 && r.DriveSize != 0 && c.DriveSize != r.DriveSize {
		ignored("drive-size", c.DriveSize, r.DriveSize)
	}
	if c.Scheme != "" && r.Scheme != "" && c.Scheme != r.Scheme {
		ignored("scheme", c.Scheme, r.Scheme)
	}
}
