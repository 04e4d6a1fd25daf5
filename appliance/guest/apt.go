package guest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// apt is an installation of apt of its own, for an architecture: it reads the mirrors of this machine's apt, and
// changes nothing of the machine.
type apt struct {
	arch Arch
	dir  string
}

func newApt(ctx context.Context, arch Arch, dir string) (*apt, error) {
	a := &apt{arch: arch, dir: dir}
	for _, sub := range []string{"state/lists/partial", "cache/archives/partial", "empty"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return nil, err
		}
	}
	targets, err := output(ctx, "", "apt-get", "indextargets", "--format",
		"$(CREATED_BY)|$(ORIGIN)|$(REPO_URI)|$(RELEASE)|$(COMPONENT)|$(SIGNED_BY)")
	if err != nil {
		return nil, err
	}
	sources := debianSources(string(targets), arch)
	if sources == "" {
		return nil, errors.New("this machine's apt knows no Debian mirror: has it run apt-get update?")
	}
	err = errors.Join(
		os.WriteFile(filepath.Join(dir, "sources.list"), []byte(sources), 0o644),
		os.WriteFile(filepath.Join(dir, "status"), nil, 0o644)) // nothing is installed: dependencies are fetched too
	if err != nil {
		return nil, err
	}
	_, err = a.get(ctx, "update")
	return a, err
}

// debianKeyring signs Debian's archives (package debian-archive-keyring).
const debianKeyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// debianSources makes lines of a sources.list from apt's index targets of the machine.
func debianSources(targets string, arch Arch) string {
	var lines strings.Builder
	seen := map[string]bool{}
	for _, line := range strings.Split(targets, "\n") {
		f := strings.Split(strings.TrimSpace(line), "|")
		if len(f) < 5 || f[0] != "Packages" || f[1] != "Debian" || f[4] != "main" {
			continue
		}
		source := fmt.Sprintf("deb [arch=%s signed-by=%s] %s %s main\n", arch, debianKeyring, f[2], f[3])
		if !seen[source] {
			lines.WriteString(source)
		}
		seen[source] = true
	}
	return lines.String()
}

func (a *apt) options() []string {
	return []string{
		"-o", "APT::Architecture=" + string(a.arch), "-o", "APT::Architectures=" + string(a.arch),
		"-o", "Dir::Etc::sourcelist=" + filepath.Join(a.dir, "sources.list"),
		"-o", "Dir::Etc::sourceparts=" + filepath.Join(a.dir, "empty"),
		"-o", "Dir::State=" + filepath.Join(a.dir, "state"),
		"-o", "Dir::State::status=" + filepath.Join(a.dir, "status"),
		"-o", "Dir::Cache=" + filepath.Join(a.dir, "cache"),
		"-o", "APT::Sandbox::User=root", "-o", "Debug::NoLocking=true", "-q",
	}
}

func (a *apt) get(ctx context.Context, args ...string) ([]byte, error) {
	return output(ctx, filepath.Join(a.dir, "cache", "archives"), "apt-get", append(a.options(), args...)...)
}

// dependency is the package that another depends on and whose name begins with prefix. So linux-image-<arch> stands for
// the kernel of today.
func (a *apt) dependency(ctx context.Context, of, prefix string) (string, error) {
	out, err := output(ctx, "", "apt-cache", append(a.options(), "depends", of)...)
	if err != nil {
		return "", err
	}
	for _, line := range strings.Split(string(out), "\n") {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "Depends: "); ok && strings.HasPrefix(name, prefix) {
			return name, nil
		}
	}
	return "", fmt.Errorf("%s depends on no %s…", of, prefix)
}

// unpack unpacks what was fetched into dir, and removes the archives and all of this apt.
func (a *apt) unpack(ctx context.Context, dir string) error {
	debs, err := filepath.Glob(filepath.Join(a.dir, "cache", "archives", "*.deb"))
	if err != nil {
		return err
	}
	if len(debs) == 0 {
		return errors.New("apt fetched nothing")
	}
	for _, deb := range debs {
		if _, err := output(ctx, "", "dpkg-deb", "-x", deb, dir); err != nil {
			return err
		}
	}
	return os.RemoveAll(a.dir)
}
