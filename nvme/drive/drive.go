// Package drive opens a path as a drive: a directory (for development and tests) or a block
// device with a partition table of its own. Either gives the same two things: a raw data area
// as a blockdev.Device, and a directory for metadata.
//
// It knows nothing of what the shard store keeps in them, and does not watch drives: Present
// is there for a monitor to call.
//
// Invariant: nothing is ever written to a path that holds anything but an empty place, a
// Millrace drive or the leftovers of a Create that was broken off, unless Force is set.
package drive

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/millrace/millrace/nvme/blockdev"
)

// The errors that callers branch on, by errors.Is; blockdev.ErrInUse and blockdev.ErrGone (from
// Present) are the others.
var (
	// ErrNoDrive: there is nothing at the path, or it is empty, or its Create was broken off.
	ErrNoDrive = errors.New("no drive")
	// ErrForeign: the path holds something that is not Millrace's. It is not touched.
	ErrForeign = errors.New("not a Millrace drive")
	// ErrExists: Create found a whole Millrace drive.
	ErrExists = errors.New("already a Millrace drive")
)

// MinSizeBytes is the smallest drive that Create makes.
const MinSizeBytes = 1 << 20

// Kind is what a drive is made of.
type Kind string

// The kinds of drives.
const (
	Directory Kind = "directory"
	Block     Kind = "block"
)

// State is what Probe finds at a path.
type State string

// The states of a path.
const (
	Empty    State = "empty"    // nothing there, or what a broken-off Create left: Create may be called
	Millrace State = "millrace" // a drive that Create finished; its stores may still be empty
	Foreign  State = "foreign"  // something else
)

// Found is what Probe reports.
type Found struct {
	State State
	Kind  Kind   // "" where nothing is there
	What  string // for Foreign: what it holds, in words
}

// Options say how a drive is opened.
type Options struct {
	// RunDir is where the metadata file systems of block devices are mounted, each in a folder
	// of its own; "" means DefaultRunDir.
	RunDir string
	// MaxInFlight bounds the calls to the kernel at the same time on the data area; 0 means
	// blockdev.DefaultMaxInFlight.
	MaxInFlight int
}

// CreateOptions say how a drive is made.
type CreateOptions struct {
	Options
	// SizeBytes is the size of the data area of a directory drive, rounded down to
	// blockdev.AlignBytes. A block device is used whole, and its SizeBytes must be 0.
	SizeBytes int64
	// Force makes a drive of a block device whatever it holds, unless it is in use. A directory
	// is never emptied.
	Force bool
}

// DefaultRunDir is where block devices' metadata is mounted unless Options say otherwise.
const DefaultRunDir = "/run/millrace"

// Drive is an open drive, held by this process alone.
type Drive struct {
	// Data is the raw data area. Close closes it.
	Data blockdev.Device
	// MetaDir is the metadata directory. For a directory drive it leads through the open
	// directory, not through Path, so it stays the same directory when Path is moved or taken
	// by another; it means nothing to other processes.
	MetaDir string
	Path    string
	Kind    Kind

	present   func() error
	close     []func() error // in the order of opening; run backwards
	abandoned atomic.Bool
}

// Open opens the drive at path for this process alone. It gives ErrNoDrive where there is none,
// ErrForeign where there is something else, and blockdev.ErrInUse where another has it.
func Open(ctx context.Context, path string, opt Options) (*Drive, error) {
	found, err := probe(path)
	if err == nil {
		switch {
		case found.State == Empty:
			err = ErrNoDrive
		case found.State == Foreign:
			err = foreign(found)
		case found.Kind == Block:
			return named(path)(openBlock(ctx, path, opt))
		default:
			return named(path)(openDirectory(path, opt))
		}
	}
	return named(path)(nil, err)
}

// Create makes a drive at path and opens it. It gives ErrExists where there is one already, and
// ErrForeign where there is something else. A directory is made if it is not there. When it is
// broken off, Probe finds the place Empty or Foreign, never Millrace.
func Create(ctx context.Context, path string, opt CreateOptions) (*Drive, error) {
	found, err := probe(path)
	if err != nil {
		return named(path)(nil, err)
	}
	forced := opt.Force && found.Kind == Block
	switch {
	case found.State == Foreign && !forced:
		return named(path)(nil, foreign(found))
	case found.State == Millrace && !forced:
		return named(path)(nil, ErrExists)
	case found.Kind == Block:
		err = createBlock(ctx, path, opt)
	default:
		err = createDirectory(path, opt)
	}
	if err != nil {
		return named(path)(nil, err)
	}
	return Open(ctx, path, opt.Options)
}

// Probe reports what is at path, without changing it.
func Probe(path string) (Found, error) {
	found, err := probe(path)
	if err != nil {
		return Found{}, fmt.Errorf("drive %s: %w", path, err)
	}
	return found, nil
}

func probe(path string) (Found, error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Found{State: Empty}, nil
	case err != nil:
		return Found{}, err
	case info.IsDir():
		return probeDirectory(path)
	case info.Mode().Type() == fs.ModeDevice: // a block device; character devices have a further bit
		return probeBlock(path)
	}
	return Found{State: Foreign, What: "is neither a directory nor a block device"}, nil
}

// Present reports whether the thing at Path is still the drive that was opened. When it was
// moved away, replaced or has vanished, the error matches blockdev.ErrGone.
func (d *Drive) Present() error {
	if err := d.present(); err != nil {
		return fmt.Errorf("drive %s: %w: %w", d.Path, blockdev.ErrGone, err)
	}
	return nil
}

// Abandon makes Close leave the metadata of a block device as a power cut would: nothing that was not flushed is written
// any more. It is for a drive that failed: after errors of writes, a clean unmount can make ext4 forget its journal, and
// with it what was flushed.
func (d *Drive) Abandon() { d.abandoned.Store(true) }

// Close releases the drive: it closes Data, and unmounts the metadata of a block device. Files
// in MetaDir must be closed before.
func (d *Drive) Close() error {
	var errs []error
	for i := len(d.close) - 1; i >= 0; i-- {
		errs = append(errs, d.close[i]())
	}
	d.close = nil
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close drive %s: %w", d.Path, err)
	}
	return nil
}

// named puts the drive's path before an error.
func named(path string) func(*Drive, error) (*Drive, error) {
	return func(d *Drive, err error) (*Drive, error) {
		if err != nil {
			return nil, fmt.Errorf("drive %s: %w", path, err)
		}
		return d, nil
	}
}

func foreign(found Found) error {
	return fmt.Errorf("%s; not touched: %w", found.What, ErrForeign)
}

// syncDir makes the entries of a directory durable.
func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// absolute makes Present and Close independent of the working directory.
func absolute(path string) (string, error) { return filepath.Abs(path) }
