package guest

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"

	"github.com/millrace/millrace/appliance/guest/agent"
	"github.com/millrace/millrace/appliance/guest/cpio"
)

// An image is what a guest boots.
type image struct{ kernel, initramfs string }

// makeImage fetches what the configuration asks for, if it isn't there, and writes the initial RAM file system to a
// file in dir.
func (c *Cache) makeImage(ctx context.Context, cfg Config, dir string) (image, error) {
	kernelDir, release, err := c.kernel(ctx, cfg.Arch)
	if err != nil {
		return image{}, err
	}
	mods, err := modules(ctx, kernelDir, release, cfg.modules())
	if err != nil {
		return image{}, err
	}
	var names []string
	for _, s := range cfg.Sets {
		names = append(names, s.Packages...)
	}
	packages, err := c.packages(ctx, cfg.Arch, names)
	if err != nil {
		return image{}, err
	}
	initProgram := filepath.Join(dir, initName)
	if err := buildInit(ctx, cfg.Arch, initProgram); err != nil {
		return image{}, err
	}
	img := image{kernel: vmlinux(kernelDir, release, cfg.Arch), initramfs: filepath.Join(dir, initramfsName)}
	out, err := os.Create(img.initramfs)
	if err != nil {
		return image{}, err
	}
	defer out.Close()
	b := builder{w: cpio.NewWriter(out), root: root(packages)}
	if err := b.fill(cfg, mods, kernelDir, initProgram); err != nil {
		return image{}, err
	}
	return img, out.Close()
}

// modules are those of the configuration, after those that every guest needs.
func (c Config) modules() []string {
	names := []string{"virtio_pci", "virtio_net", "virtio-rng"}
	if len(c.Drives) > 0 {
		names = append(names, "nvme")
	}
	if len(c.Links) > 0 || len(c.Sets) > 0 {
		names = append(names, "crc32_generic") // rdma_rxe asks for it by another name than modprobe can know
	}
	for _, s := range c.Sets {
		names = append(names, s.Modules...)
	}
	return append(names, c.Modules...)
}

func buildInit(ctx context.Context, arch Arch, path string) error {
	_, err := output(ctx, "", "env", "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+string(arch),
		"go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, "github.com/millrace/millrace/appliance/guest/guestinit")
	return err
}

// builder fills an initial RAM file system.
type builder struct {
	w    *cpio.Writer
	root root
}

func (b builder) fill(cfg Config, mods []module, kernelDir, initProgram string) error {
	for _, dir := range []string{"proc", "sys", "dev", "tmp", "run", "root", "mnt", "bin", "sbin"} {
		if err := b.w.Directory(dir); err != nil {
			return err
		}
	}
	setup := cfg.setup()
	for _, m := range mods {
		path, ok := strings.CutPrefix(m.path, kernelDir)
		if !ok {
			path = "/lib/modules/" + filepath.Base(m.path)
		}
		if err := b.file(path, m.path, 0o644); err != nil {
			return err
		}
		setup.Modules = append(setup.Modules, agent.Module{Path: path, Params: m.params})
	}
	if err := b.file("/init", initProgram, 0o755); err != nil {
		return err
	}
	for _, s := range cfg.Sets {
		if err := b.set(s); err != nil {
			return err
		}
	}
	for _, f := range cfg.Files {
		if err := b.program(f); err != nil {
			return err
		}
	}
	text, err := json.Marshal(setup)
	if err != nil {
		return err
	}
	for _, f := range []struct{ path, text string }{
		{agent.SetupPath, string(text)},
		{"/etc/hosts", "127.0.0.1 localhost\n::1 localhost\n"},
		{"/etc/passwd", "root:x:0:0:root:/root:/bin/sh\n"},
		{"/etc/group", "root:x:0:\n"},
	} {
		if err := b.w.File(f.path, 0o644, int64(len(f.text)), bytes.NewReader([]byte(f.text))); err != nil {
			return err
		}
	}
	if b.w.Has("/bin/busybox") {
		if err := b.w.Symlink("/bin/sh", "busybox"); err != nil {
			return err
		}
	}
	return b.w.Close()
}

func (b builder) set(s Set) error {
	for _, pattern := range s.Paths {
		paths, err := b.root.glob(pattern)
		if err != nil {
			return err
		}
		for _, path := range paths {
			real, err := b.root.resolve(path)
			if err != nil {
				return err
			}
			info, err := os.Stat(real)
			if err != nil {
				return err
			}
			if err := b.program(File{Path: path, Source: real, Mode: uint32(info.Mode().Perm())}); err != nil {
				return err
			}
		}
	}
	return nil
}

// program adds a file with the libraries that it needs.
func (b builder) program(f File) error {
	mode := f.Mode
	if mode == 0 {
		mode = 0o755
	}
	if err := b.file(f.Path, f.Source, mode); err != nil {
		return err
	}
	libs, err := b.root.libraries(f.Source)
	if err != nil {
		return err
	}
	for _, lib := range libs {
		real, err := b.root.resolve(lib)
		if err != nil {
			return err
		}
		if err := b.file(lib, real, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// file adds a file of this machine, unless the guest has one at that path.
func (b builder) file(path, source string, mode uint32) error {
	if b.w.Has(path) {
		return nil
	}
	f, err := os.Open(source)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	return b.w.File(path, mode, info.Size(), f)
}

// setup is what the init program is told, but for the modules.
func (c Config) setup() agent.Setup {
	s := agent.Setup{Links: c.Links}
	for _, d := range c.Drives {
		if d.Source != "" {
			s.Namespaces++
		}
	}
	// The user network of QEMU: this address, the machine outside at 10.0.2.2.
	s.Interfaces = append(s.Interfaces, agent.Interface{Name: "eth0", Addresses: []string{"10.0.2.15/24"}})
	if c.Fabric != nil {
		s.Interfaces = append(s.Interfaces, agent.Interface{Name: "eth1", Addresses: c.Fabric.Addresses, MTU: c.Fabric.MTU})
	}
	s.Interfaces = append(s.Interfaces, c.Interfaces...)
	return s
}
