package guest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// A Cache is a folder with unpacked Debian packages. Several processes may share it. What it has is never fetched
// again: remove the folder to get newer packages.
type Cache struct{ dir string }

// CacheVariable is the environment variable that names another folder for OpenCache("").
const CacheVariable = "MILLRACE_GUEST_CACHE"

// OpenCache opens the cache in a folder. "" stands for the folder that CacheVariable names, or else for
// var/guest-cache in the Go module that the working folder belongs to.
func OpenCache(dir string) (*Cache, error) {
	if dir == "" {
		dir = os.Getenv(CacheVariable)
	}
	if dir == "" {
		root, err := moduleRoot()
		if err != nil {
			return nil, err
		}
		dir = filepath.Join(root, "var", "guest-cache")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	return &Cache{dir: dir}, nil
}

func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
	}
	return "", errors.New("guest: not in a Go module: say where the cache is")
}

// once makes the folder name by means of build, in a folder beside it that is renamed when it is whole. Other
// processes wait meanwhile.
func (c *Cache) once(name string, build func(dir string) error) (string, error) {
	lock, err := os.OpenFile(filepath.Join(c.dir, "lock"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return "", err
	}
	done, half := filepath.Join(c.dir, name), filepath.Join(c.dir, name+".new")
	if _, err := os.Stat(done); err == nil {
		return done, nil
	}
	if err := os.RemoveAll(half); err != nil {
		return "", err
	}
	if err := os.MkdirAll(half, 0o755); err != nil {
		return "", err
	}
	if err := build(half); err != nil {
		return "", errors.Join(err, os.RemoveAll(half))
	}
	return done, os.Rename(half, done)
}

// packages unpacks packages, and all that they depend on, into one folder. No maintainer script runs.
func (c *Cache) packages(ctx context.Context, arch Arch, names []string) (string, error) {
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	if len(names) == 0 {
		return "", nil
	}
	sum := sha256.Sum256([]byte(strings.Join(names, " ")))
	return c.once(fmt.Sprintf("packages-%s-%x", arch, sum[:6]), func(dir string) error {
		apt, err := newApt(ctx, arch, filepath.Join(dir, "apt"))
		if err != nil {
			return err
		}
		args := append([]string{"install", "--yes", "--download-only", "--no-install-recommends"}, names...)
		if _, err := apt.get(ctx, args...); err != nil {
			return err
		}
		return apt.unpack(ctx, dir)
	})
}

// kernel unpacks Debian's kernel, and gives the folder and the release, as in uname -r.
func (c *Cache) kernel(ctx context.Context, arch Arch) (dir, release string, err error) {
	dir, err = c.once("kernel-"+string(arch), func(dir string) error {
		apt, err := newApt(ctx, arch, filepath.Join(dir, "apt"))
		if err != nil {
			return err
		}
		name, err := apt.dependency(ctx, "linux-image-"+string(arch), "linux-image-")
		if err != nil {
			return err
		}
		if _, err := apt.get(ctx, "download", name); err != nil {
			return err
		}
		if err := apt.unpack(ctx, dir); err != nil {
			return err
		}
		release := strings.TrimPrefix(name, "linux-image-")
		if arch == AMD64 {
			if err := uncompress(ctx, filepath.Join(dir, "boot", "vmlinuz-"+release)); err != nil {
				return err
			}
		}
		_, err = output(ctx, "", "depmod", "-b", dir, release)
		return err
	})
	if err != nil {
		return "", "", fmt.Errorf("guest: kernel for %s: %w", arch, err)
	}
	names, err := filepath.Glob(filepath.Join(dir, "lib", "modules", "*"))
	if err != nil || len(names) != 1 {
		return "", "", fmt.Errorf("guest: %s has %d kernels: remove it", dir, len(names))
	}
	return dir, filepath.Base(names[0]), nil
}
