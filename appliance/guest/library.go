package guest

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// A root is a folder with unpacked packages. Links in it lead to places in it.
type root string

// maxLinks is how many symbolic links a path may lead over.
const maxLinks = 16

// resolve gives the real file behind a path of the root.
func (r root) resolve(name string) (string, error) {
	for range maxLinks {
		real := filepath.Join(string(r), name)
		target, err := os.Readlink(real)
		if errors.Is(err, os.ErrNotExist) {
			return "", fmt.Errorf("guest: the packages have no %s", name)
		}
		if err != nil {
			return real, nil
		}
		if !path.IsAbs(target) {
			target = path.Join(path.Dir(name), target)
		}
		name = target
	}
	return "", fmt.Errorf("guest: %s: too many links", name)
}

// glob gives the paths of the root that match a pattern.
func (r root) glob(pattern string) ([]string, error) {
	found, err := filepath.Glob(filepath.Join(string(r), pattern))
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("guest: the packages have no %s", pattern)
	}
	for i := range found {
		found[i] = strings.TrimPrefix(found[i], string(r))
	}
	return found, nil
}

// libraries gives the paths of the interpreter and the libraries that a program or library needs, and those need.
func (r root) libraries(file string) ([]string, error) {
	var out []string
	queue := []string{file}
	for len(queue) > 0 {
		next := queue[0]
		queue = queue[1:]
		interpreter, needed, err := dynamic(next)
		if err != nil {
			return nil, err
		}
		if interpreter != "" {
			needed = append(needed, interpreter)
		}
		for _, lib := range needed {
			name, err := r.find(lib)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			if slices.Contains(out, name) {
				continue
			}
			out = append(out, name)
			real, err := r.resolve(name)
			if err != nil {
				return nil, err
			}
			queue = append(queue, real)
		}
	}
	return out, nil
}

// find looks for a library by its name, where the loader looks for it (ld.so(8)), or takes a path as it is.
func (r root) find(name string) (string, error) {
	if r == "" {
		return "", fmt.Errorf("guest: needs %s: no set of packages has it", name)
	}
	if path.IsAbs(name) {
		return name, nil
	}
	for _, dir := range []string{"/lib/*-linux-gnu", "/usr/lib/*-linux-gnu", "/lib", "/usr/lib"} {
		if found, err := r.glob(path.Join(dir, name)); err == nil {
			return found[0], nil
		}
	}
	return "", fmt.Errorf("guest: the packages have no library %s", name)
}

// dynamic gives the interpreter and the needed libraries of an ELF file. Other files, and static ones, need none.
func dynamic(file string) (interpreter string, needed []string, err error) {
	f, err := elf.Open(file)
	if err != nil {
		var format *elf.FormatError
		if errors.As(err, &format) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return "", nil, nil
		}
		return "", nil, err
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			b, err := io.ReadAll(io.LimitReader(p.Open(), maxSocketPath))
			if err != nil {
				return "", nil, err
			}
			interpreter = strings.TrimRight(string(b), "\x00")
		}
	}
	needed, err = f.ImportedLibraries()
	return interpreter, needed, err
}
