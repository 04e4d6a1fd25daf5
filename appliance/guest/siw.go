package guest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// SIW gives the file of the kernel's software iWARP (siw) for guests of amd64, to be named in Config.Modules. Debian leaves
// it out of its kernels, so it is built from Debian's package of the same source, with this machine's gcc and make; this
// machine has to be amd64 too, since the kernel's build tools are programs.
//
// What the source has as constants are parameters here, which can be changed in /sys/module/siw/parameters: mpa_version,
// mpa_crc_required, mpa_crc_strict, peer_to_peer, rtr_type and try_gso.
func (c *Cache) SIW(ctx context.Context) (string, error) {
	_, release, err := c.kernel(ctx, AMD64)
	if err != nil {
		return "", err
	}
	dir, err := c.once("siw-"+release, func(dir string) error {
		if err := fetchSource(ctx, release, dir); err != nil {
			return err
		}
		return buildSIW(ctx, release, dir)
	})
	if err != nil {
		return "", fmt.Errorf("guest: siw for %s (if the mirror no longer has it, remove %s): %w", release, c.dir, err)
	}
	return filepath.Join(dir, siwName), nil
}

const siwName = "siw.ko"

// fetchSource unpacks the source of a kernel, and what it takes to build a module for it.
func fetchSource(ctx context.Context, release, dir string) error {
	apt, err := newApt(ctx, AMD64, filepath.Join(dir, "apt"))
	if err != nil {
		return err
	}
	headers := "linux-headers-" + release
	names := []string{"download", headers, "linux-source-" + series(release)}
	for _, prefix := range []string{"linux-headers-", "linux-kbuild-"} {
		name, err := apt.dependency(ctx, headers, prefix)
		if err != nil {
			return err
		}
		names = append(names, name)
	}
	if _, err := apt.get(ctx, names...); err != nil {
		return err
	}
	return apt.unpack(ctx, dir)
}

// series is the part of a kernel's release that names Debian's package of its source: 6.1 of 6.1.0-57-amd64.
func series(release string) string {
	parts := strings.SplitN(release, ".", 3)
	return strings.Join(parts[:min(2, len(parts))], ".")
}

// buildSIW builds the module in a folder with unpacked packages, and leaves nothing else there.
func buildSIW(ctx context.Context, release, dir string) error {
	source := filepath.Join("linux-source-"+series(release), "drivers", "infiniband", "sw", "siw")
	if _, err := output(ctx, dir, "tar", "-xf", filepath.Join("usr", "src", "linux-source-"+series(release)+".tar.xz"), source); err != nil {
		return err
	}
	if err := siwParameters(filepath.Join(dir, source)); err != nil {
		return err
	}
	headers := filepath.Join(dir, "usr", "src", "linux-headers-"+release)
	makefile, err := os.ReadFile(filepath.Join(headers, "Makefile"))
	if err != nil {
		return err
	}
	// It has the path that the package would be installed at.
	moved := strings.ReplaceAll(string(makefile), " /usr/src/", " "+filepath.Join(dir, "usr", "src")+"/")
	if err := os.WriteFile(filepath.Join(headers, "Makefile"), []byte(moved), 0o644); err != nil {
		return err
	}
	if _, err := output(ctx, dir, "make", "-C", headers, "M="+filepath.Join(dir, source), "CC=gcc", "CONFIG_RDMA_SIW=m", "modules"); err != nil {
		return err
	}
	if _, err := output(ctx, dir, "strip", "-g", "-o", siwName, filepath.Join(source, siwName)); err != nil {
		return err
	}
	for _, used := range []string{"usr", "lib", strings.Split(source, string(filepath.Separator))[0]} {
		if err := os.RemoveAll(filepath.Join(dir, used)); err != nil {
			return err
		}
	}
	return nil
}

// siwParameters makes parameters of constants in the source.
func siwParameters(source string) error {
	for _, edit := range []struct{ file, old, new string }{
		{"siw.h", "extern const bool ", "extern bool "},
		{"siw_main.c", "\nconst bool ", "\nbool "},
		{"siw_main.c", "\nstruct task_struct *siw_tx_thread", `
module_param(mpa_version, byte, 0644);
module_param(mpa_crc_required, bool, 0644);
module_param(mpa_crc_strict, bool, 0644);
module_param(peer_to_peer, bool, 0644);
module_param(try_gso, bool, 0644);
struct task_struct *siw_tx_thread`},
		{"siw_cm.c", "static const bool relaxed_ird_negotiation", `#include <linux/moduleparam.h>
module_param(rtr_type, ushort, 0644);
static const bool relaxed_ird_negotiation`},
	} {
		path := filepath.Join(source, edit.file)
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		changed := strings.ReplaceAll(string(text), edit.old, edit.new)
		if changed == string(text) {
			return fmt.Errorf("%s has no %q", edit.file, edit.old)
		}
		if err := os.WriteFile(path, []byte(changed), 0o644); err != nil {
			return err
		}
	}
	return nil
}
