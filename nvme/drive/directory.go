package drive

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/millrace/millrace/nvme/blockdev"
)

// A directory drive holds these entries. Create works on dataNew and renames it last, so a
// directory with dataName is whole.
const (
	metaName = "meta"
	dataName = "data"
	dataNew  = "data.new"
)

// maxForeignNames is how many entries of a directory are read to judge it.
const maxForeignNames = 16

func probeDirectory(path string) (Found, error) {
	dir, err := os.Open(path)
	if err != nil {
		return Found{}, err
	}
	names, err := dir.Readdirnames(maxForeignNames)
	dir.Close()
	if err != nil && len(names) > 0 {
		return Found{}, err
	}
	has := make(map[string]bool)
	for _, name := range names {
		switch name {
		case metaName, dataName, dataNew:
			has[name] = true
		case "lost+found": // the directory is a file system of its own
		default:
			return Found{State: Foreign, Kind: Directory, What: fmt.Sprintf("holds %q", name)}, nil
		}
	}
	if has[dataName] && has[metaName] {
		return Found{State: Millrace, Kind: Directory}, nil
	}
	if has[dataName] {
		return Found{State: Foreign, Kind: Directory, What: `holds "data" without "meta"`}, nil
	}
	if has[metaName] {
		inside, err := os.ReadDir(filepath.Join(path, metaName))
		if err != nil {
			return Found{}, err
		}
		if len(inside) > 0 {
			return Found{State: Foreign, Kind: Directory, What: `holds "meta" without "data"`}, nil
		}
	}
	return Found{State: Empty, Kind: Directory}, nil
}

// createDirectory makes what is missing, and gives the data file its name last.
func createDirectory(path string, opt CreateOptions) error {
	size := opt.SizeBytes &^ (blockdev.AlignBytes - 1)
	if size < MinSizeBytes {
		return fmt.Errorf("size of %d bytes: less than %d", opt.SizeBytes, MinSizeBytes)
	}
	if err := os.MkdirAll(path, 0o750); err != nil {
		return err
	}
	unlock, err := lockDirectory(path) // two Creates at the same time
	if err != nil {
		return err
	}
	defer unlock()
	if found, err := probeDirectory(path); err != nil || found.State != Empty {
		return errors.Join(err, ErrExists)
	}
	meta, data := filepath.Join(path, metaName), filepath.Join(path, dataName)
	if err := os.MkdirAll(meta, 0o750); err != nil {
		return err
	}
	if err := preallocate(filepath.Join(path, dataNew), size); err != nil {
		return err
	}
	if err := os.Rename(filepath.Join(path, dataNew), data); err != nil {
		return err
	}
	return errors.Join(syncDir(path), syncDir(filepath.Dir(filepath.Clean(path))))
}

// preallocate makes the file with all its space, where the file system can do that.
func preallocate(path string, sizeBytes int64) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o640)
	if err != nil {
		return err
	}
	err = allocate(f, sizeBytes)
	if errors.Is(err, errors.ErrUnsupported) {
		err = f.Truncate(sizeBytes)
	}
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err != nil {
		os.Remove(path)
		return fmt.Errorf("preallocate %d bytes: %w", sizeBytes, err)
	}
	return nil
}

func openDirectory(path string, opt Options) (*Drive, error) {
	path, err := absolute(path)
	if err != nil {
		return nil, err
	}
	dir, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	d := &Drive{Path: path, Kind: Directory, close: []func() error{dir.Close}}
	if err := d.openEntries(dir, opt); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// openEntries opens what is in the directory that is open as dir.
func (d *Drive) openEntries(dir *os.File, opt Options) error {
	pinned := pinnedPath(dir)
	d.MetaDir = filepath.Join(pinned, metaName)
	file, err := blockdev.OpenFile(filepath.Join(pinned, dataName), blockdev.FileOptions{
		MaxInFlight: opt.MaxInFlight,
		Name:        filepath.Join(d.Path, dataName),
	})
	if err != nil {
		return err
	}
	d.Data = file
	d.close = append(d.close, file.Close)
	dirInfo, err := dir.Stat()
	if err != nil {
		return err
	}
	metaInfo, err := os.Stat(d.MetaDir)
	if err != nil {
		return err
	}
	if !metaInfo.IsDir() {
		return fmt.Errorf("%s is not a directory: %w", metaName, ErrForeign)
	}
	dataInfo, err := file.Stat()
	if err != nil {
		return err
	}
	identities := []identity{
		{d.Path, dirInfo},
		{filepath.Join(d.Path, metaName), metaInfo},
		{filepath.Join(d.Path, dataName), dataInfo},
	}
	d.present = func() error {
		for _, id := range identities {
			if err := id.check(); err != nil {
				return err
			}
		}
		return nil
	}
	return nil
}

// identity is a path and what was there when the drive was opened.
type identity struct {
	path string
	info os.FileInfo
}

func (id identity) check() error {
	now, err := os.Stat(id.path)
	if err != nil {
		return err
	}
	if !os.SameFile(id.info, now) {
		return fmt.Errorf("%s is another %s now", id.path, kindOf(now))
	}
	return nil
}

func kindOf(info os.FileInfo) string {
	if info.IsDir() {
		return "directory"
	}
	return "file"
}

// pinnedPath is a path that leads to the open directory wherever it is moved; the plain path
// where the system has no such thing.
func pinnedPath(dir *os.File) string {
	pinned := "/proc/self/fd/" + strconv.Itoa(int(dir.Fd()))
	if mine, err := dir.Stat(); err == nil {
		if there, err := os.Stat(pinned); err == nil && os.SameFile(mine, there) {
			return pinned
		}
	}
	return dir.Name()
}
