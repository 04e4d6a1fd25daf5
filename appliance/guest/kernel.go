package guest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// vmlinux is where the kernel of the folder lies that QEMU is given: for amd64 the uncompressed one, which boots in
// half the time.
func vmlinux(dir, release string, arch Arch) string {
	name := filepath.Join(dir, "boot", "vmlinuz-"+release)
	if arch == AMD64 {
		name += uncompressedSuffix
	}
	return name
}

const uncompressedSuffix = ".elf"

// payload finds the compressed kernel in a bzImage, by the header of the x86 boot protocol since 2.08
// (Documentation/arch/x86/boot.rst of the Linux source).
func payload(image []byte) ([]byte, error) {
	const setupSects, magic, version, offset, length = 0x1f1, 0x202, 0x206, 0x248, 0x24c
	if len(image) < length+4 || string(image[magic:magic+4]) != "HdrS" || binary.LittleEndian.Uint16(image[version:]) < 0x208 {
		return nil, errors.New("not a bzImage of boot protocol 2.08 or later")
	}
	start := (uint64(image[setupSects])+1)*512 + uint64(binary.LittleEndian.Uint32(image[offset:]))
	end := start + uint64(binary.LittleEndian.Uint32(image[length:]))
	if end > uint64(len(image)) || end < start {
		return nil, errors.New("the bzImage ends within its payload")
	}
	return image[start:end], nil
}

// uncompress writes the ELF file that is in a bzImage beside it.
func uncompress(ctx context.Context, bzImage string) error {
	image, err := os.ReadFile(bzImage)
	if err != nil {
		return err
	}
	packed, err := payload(image)
	if err != nil {
		return err
	}
	out, err := os.Create(bzImage + uncompressedSuffix)
	if err != nil {
		return err
	}
	defer out.Close()
	cmd := exec.CommandContext(ctx, "xz", "-dc", "--single-stream") // four bytes of length follow
	cmd.Stdin, cmd.Stdout = strings.NewReader(string(packed)), out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("xz: %w", err)
	}
	return out.Close()
}

// A module is a kernel module to load: its file under the kernel's folder, and its parameters.
type module struct{ path, params string }

// modules gives what has to be loaded for the wanted ones, in order. A name may be followed by parameters, and may be the
// path of a file.
func modules(ctx context.Context, dir, release string, wanted []string) ([]module, error) {
	params := map[string]string{}
	var out []module
	seen := map[string]bool{}
	for _, want := range wanted {
		name, p, _ := strings.Cut(want, " ")
		if p != "" {
			params[moduleName(name)] = p
		}
	}
	for _, want := range wanted {
		name, _, _ := strings.Cut(want, " ")
		paths, err := modulePaths(ctx, dir, release, name)
		if err != nil {
			return nil, err
		}
		for _, p := range paths {
			if !seen[p] {
				out = append(out, module{path: p, params: params[moduleName(p)]})
			}
			seen[p] = true
		}
	}
	return out, nil
}

// modulePaths gives the files of a module and, before it, of what it depends on.
func modulePaths(ctx context.Context, dir, release, name string) ([]string, error) {
	if !filepath.IsAbs(name) {
		text, err := output(ctx, "", "modprobe", "-d", dir, "-S", release, "--show-depends", name)
		if err != nil {
			return nil, fmt.Errorf("guest: module %s: %w", name, err)
		}
		return showDepends(string(text))
	}
	text, err := output(ctx, "", "modinfo", "-F", "depends", name)
	if err != nil {
		return nil, fmt.Errorf("guest: module %s: %w", name, err)
	}
	var out []string
	for _, needed := range strings.FieldsFunc(string(text), func(r rune) bool { return r == ',' || r == '\n' }) {
		paths, err := modulePaths(ctx, dir, release, needed)
		if err != nil {
			return nil, err
		}
		out = append(out, paths...)
	}
	return append(out, name), nil
}

// moduleName is the name of the module in a file, with the dashes of file names as the underscores of the kernel.
func moduleName(path string) string {
	return strings.ReplaceAll(strings.TrimSuffix(filepath.Base(path), ".ko"), "-", "_")
}

// showDepends reads what modprobe --show-depends prints: "insmod PATH [parameters]" or "builtin NAME".
func showDepends(text string) ([]string, error) {
	var paths []string
	for _, line := range strings.Split(strings.TrimSpace(text), "\n") {
		f := strings.Fields(line)
		switch {
		case len(f) >= 2 && f[0] == "insmod" && strings.HasSuffix(f[1], ".ko"):
			paths = append(paths, f[1])
		case len(f) >= 2 && f[0] == "builtin":
		default:
			return nil, fmt.Errorf("guest: modprobe says %q", line)
		}
	}
	return paths, nil
}
