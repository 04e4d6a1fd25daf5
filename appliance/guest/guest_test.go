package guest

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestShowDepends(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		want       []string
		ok         bool
	}{
		{"in order", "insmod /k/nvme-core.ko \ninsmod /k/nvme.ko poll_queues=1\n", []string{"/k/nvme-core.ko", "/k/nvme.ko"}, true},
		{"built in", "builtin ext4\n", nil, true},
		{"compressed", "insmod /k/nvme.ko.xz\n", nil, false},
		{"unknown", "remove nvme\n", nil, false},
		{"nothing", "", nil, false},
	} {
		got, err := showDepends(tc.text)
		if d := cmp.Diff(tc.want, got); d != "" || (err == nil) != tc.ok {
			t.Errorf("%s: showDepends() = %v, %v; want %v", tc.name, got, err, tc.want)
		}
	}
}

func TestModuleName(t *testing.T) {
	if got := moduleName("/lib/modules/6/kernel/nvme-core.ko"); got != "nvme_core" {
		t.Errorf("moduleName() = %s; want nvme_core", got)
	}
}

func TestSeries(t *testing.T) {
	for release, want := range map[string]string{"6.1.0-57-amd64": "6.1", "6.12.117+deb13-amd64": "6.12", "7": "7"} {
		if got := series(release); got != want {
			t.Errorf("series(%s) = %s; want %s", release, got, want)
		}
	}
}

func TestForwards(t *testing.T) {
	text := "Hub -1 (outside):\r\n  Protocol[State]    FD  Source Address  Port   Dest. Address  Port RecvQ SendQ\r\n" +
		"  TCP[HOST_FORWARD]  13       127.0.0.1 40123       10.0.2.15     7     0     0\r\n" +
		"  TCP[ESTABLISHED]   14       127.0.0.1 40124       10.0.2.15     7     0     0\r\n" +
		"  TCP[HOST_FORWARD]  15       127.0.0.1 40125       10.0.2.15  9000     0     0\r\n"
	if d := cmp.Diff(map[int]int{7: 40123, 9000: 40125}, forwards(text)); d != "" {
		t.Error(d)
	}
}

func TestDebianSources(t *testing.T) {
	text := "Packages|Debian|http://mirror.example/debian/|bookworm|main|\n" +
		"Packages|Debian|http://mirror.example/debian/|bookworm|main|\n" +
		"DEP-11|Debian|http://mirror.example/debian/|bookworm|main|\n" +
		"Packages|Debian|http://mirror.example/debian/|bookworm|contrib|\n" +
		"Packages|Somebody|http://other.example/|stable|main|\n"
	want := "deb [arch=arm64 signed-by=" + debianKeyring + "] http://mirror.example/debian/ bookworm main\n"
	if got := debianSources(text, ARM64); got != want {
		t.Errorf("debianSources() = %q; want %q", got, want)
	}
}

func TestPayload(t *testing.T) {
	image := make([]byte, 4096)
	image[0x1f1] = 1 // sectors of setup, besides the first
	copy(image[0x202:], "HdrS")
	binary.LittleEndian.PutUint16(image[0x206:], 0x20f)
	binary.LittleEndian.PutUint32(image[0x248:], 100)
	binary.LittleEndian.PutUint32(image[0x24c:], 6)
	copy(image[1024+100:], "kernel")
	if got, err := payload(image); err != nil || string(got) != "kernel" {
		t.Errorf("payload() = %q, %v; want kernel", got, err)
	}
	if got, err := payload(image[:1024+103]); err == nil {
		t.Errorf("payload of a short image = %q; want an error", got)
	}
	image[0x207] = 1
	if got, err := payload(image); err == nil {
		t.Errorf("payload of an old image = %q; want an error", got)
	}
}

func TestArguments(t *testing.T) {
	cfg, err := Config{Arch: ARM64, Drives: []Drive{{Source: "a,b"}, {}, {Source: "unix:s", SectorBytes: 4096}}, Forward: []int{9000},
		Fabric: &Fabric{Socket: "f", Listen: true}, KernelArgs: []string{"debug"}}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Join(cfg.arguments(image{"k", "i"}, "/d"), " ")
	for _, want := range []string{
		"-M virt -cpu cortex-a72", "console=ttyAMA0", "nokaslr net.ifnames=0 debug",
		"hostfwd=tcp:127.0.0.1:0-:7,hostfwd=tcp:127.0.0.1:0-:9000",
		"stream,id=fabric,server=on,addr.type=unix,addr.path=f",
		`"filename":"a,b"`, `"serial":"DRIVE0"`, `"path":"s"`, `"logical_block_size":4096`, "pcie-root-port,id=port1",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("arguments() = %s; want %s in it", got, want)
		}
	}
	if strings.Contains(got, "nvme1") {
		t.Errorf("arguments() = %s; the second port has to be empty", got)
	}
	for name, bad := range map[string]Config{
		"no architecture": {},
		"long path":       {Arch: AMD64, Fabric: &Fabric{Socket: strings.Repeat("x", 108)}},
	} {
		if _, err := bad.withDefaults(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestRoot follows links that lead to places in the folder, not on this machine.
func TestRoot(t *testing.T) {
	dir := t.TempDir()
	lib := filepath.Join(dir, "usr/lib/x-linux-gnu")
	if err := os.MkdirAll(lib, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(lib, "libx.so.1.2"), []byte("not ELF"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"libx.so.1": "libx.so.1.2", "abs": "/usr/lib/x-linux-gnu/libx.so.1", "loop": "loop"} {
		if err := os.Symlink(target, filepath.Join(lib, name)); err != nil {
			t.Fatal(err)
		}
	}
	r := root(dir)
	name, err := r.find("libx.so.1")
	if err != nil || name != "/usr/lib/x-linux-gnu/libx.so.1" {
		t.Errorf("find() = %s, %v", name, err)
	}
	for _, path := range []string{name, "/usr/lib/x-linux-gnu/abs"} {
		if real, err := r.resolve(path); err != nil || real != filepath.Join(lib, "libx.so.1.2") {
			t.Errorf("resolve(%s) = %s, %v", path, real, err)
		}
	}
	if libs, err := r.libraries(filepath.Join(lib, "libx.so.1.2")); err != nil || libs != nil {
		t.Errorf("libraries of no ELF file = %v, %v", libs, err)
	}
	for _, path := range []string{"/usr/lib/x-linux-gnu/loop", "/usr/lib/none"} {
		if real, err := r.resolve(path); err == nil {
			t.Errorf("resolve(%s) = %s; want an error", path, real)
		}
	}
	if _, err := r.glob("/bin/none"); err == nil {
		t.Error("glob of nothing: no error")
	}
	if _, err := root("").find("libc.so.6"); err == nil {
		t.Error("find without packages: no error")
	}
}
