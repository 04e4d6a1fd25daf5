package config

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// load runs the flags and the file text through the way that the command takes.
func load(t *testing.T, file string, args ...string) (Config, error) {
	t.Helper()
	if file != "" {
		path := filepath.Join(t.TempDir(), "millrace.toml")
		if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--config", path)
	}
	fs := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	flags := NewFlags(fs)
	if err := fs.Parse(args); err != nil {
		return Config{}, err
	}
	return flags.Config()
}

func TestFlagsOverrideFileOverridesDefaults(t *testing.T) {
	file := `
dir = "/srv/a"
drives = 8
drive-size = "1GiB"
domain = ["a.example", "b.example"]
drain-timeout = "5s"
`
	got, err := load(t, file, "--drives", "4", "--domain", "c.example", "--arena-size=64MiB", "--pprof")
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.Dir, want.Drives, want.DriveSize = "/srv/a", 4, GiB
	want.Domains, want.DrainTimeout = []string{"c.example"}, 5*time.Second
	want.ArenaSize, want.Pprof = 64*MiB, true
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Config() (-want +got):\n%s", diff)
	}
}

func TestFileIsStrict(t *testing.T) {
	tests := []struct{ file, want string }{
		{"dir = \"d\"\ndrivez = 3\n", `line 2: unknown option "drivez"`},
		{"dir = \"d\"\n\n[limits]\nx = 1\n", `line 3: unknown option "limits"`},
		{"dir = \"d\"\ndrives = \"six\"\n", "line 2 (last key"},
		{"dir = \"d\"\ndrive-size = \"6 quarts\"\n", `size "6 quarts": unknown unit "quarts"`},
		{"dir = \"d\n", "line 1: "},
		{"dir = \"d\"\ndir = \"e\"\n", "line 2: "},
	}
	for _, test := range tests {
		_, err := load(t, test.file)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("load(%q) = %v; want %q in it", test.file, err, test.want)
		}
	}
}

func TestValidate(t *testing.T) {
	tests := []struct {
		args string
		want string // "" for valid
	}{
		{"--dir d", ""},
		{"--dir d --drives 6 --drive-size 1GiB --scheme 4+2", ""},
		{"--drive /dev/a --drive /dev/b --scheme 1+1", ""},
		{"--dir d --rdma off --rdma-listen 127.0.0.1:7000", ""},
		{"--drive e --drive f --drive-size 1GiB", ""},
		{"--dir d --pprof --mgmt-listen [::1]:0", ""},
		{"", "no drives"},
		{"--dir d --drive e", "exclude each other"},
		{"--drive e --drives 3", "goes with --dir"},
		{"--drive e --drive e", "given twice"},
		{"--dir d --drives 201", "drives: want 1 to 200"},
		{"--dir d --drive-size 1MiB", "drive-size 1MiB: want at least 64MiB"},
		{"--dir d --scheme 4", "not of the form"},
		{"--dir d --scheme 0+2", "not supported"},
		{"--dir d --drives 5 --scheme 4+2", "needs 6 drives, and there are 5"},
		{"--drive e --scheme 1+1", "needs 2 drives, and there are 1"},
		{"--dir d --listen 9000", `listen "9000": want HOST:PORT`},
		{"--dir d --rdma soft --rdma-allow 192.0.2.0/24 --rdma-allow 2001:db8::1", ""},
		{"--dir d --rdma null", ""},
		{"--dir d --rdma-allow 192.0.2", `rdma-allow "192.0.2": want an address`},
		{"--dir d --rdma-timeout 0s", "rdma-timeout 0s"},
		{"--dir d --rdma-transfers 0", "rdma-transfers 0"},
		{"--dir d --rdma maybe", `rdma "maybe": want auto`},
		{"--drive e --drive f --drive-size 1GiB", ""},
		{"--dir d --pprof --mgmt-listen :9443", "not a loopback"},
		{"--dir d --arena-size 1MiB", "arena-size 1MiB"},
		{"--dir d --memory-limit 1MiB", "memory-limit 1MiB"},
		{"--dir d --max-connections 0", "max-connections 0"},
		{"--dir d --drain-timeout -1s", "drain-timeout -1s"},
		{"--dir d --scrub-interval 0 --scrub-rate 0 --repair-rate 1GiB", ""},
		{"--dir d --scrub-interval 1s", "scrub-interval 1s"},
		{"--dir d --log-format xml", "log-format"},
		{"--dir d --log-level loud", "log-level"},
		{"--dir d --region=", "region: empty"},
	}
	for _, test := range tests {
		_, err := load(t, "", strings.Fields(test.args)...)
		switch {
		case test.want == "" && err != nil:
			t.Errorf("load(%q) = %v; want nil", test.args, err)
		case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
			t.Errorf("load(%q) = %v; want %q in it", test.args, err, test.want)
		}
	}
}

// TestOptionsCoverConfig: each field has exactly one option, of the same name as its TOML key.
func TestOptionsCoverConfig(t *testing.T) {
	var keys, names []string
	for field := range reflect.TypeFor[Config]().Fields() {
		keys = append(keys, field.Tag.Get("toml"))
	}
	for _, o := range options {
		names = append(names, o.name)
	}
	less := cmp.Transformer("set", func(list []string) map[string]int {
		set := make(map[string]int)
		for _, name := range list {
			set[name]++
		}
		return set
	})
	if diff := cmp.Diff(keys, names, less); diff != "" {
		t.Errorf("fields and options differ (-fields +options):\n%s", diff)
	}
}

// TestDocument keeps the table in docs/configuration.md as the options are.
func TestDocument(t *testing.T) {
	const path = "../../docs/configuration.md"
	const begin, end = "<!-- options: made by go test ./appliance/config -update -->\n", "<!-- end of options -->\n"
	doc, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(doc), begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s: the marks of the table are missing", path)
	}
	var table bytes.Buffer
	if err := WriteMarkdown(&table); err != nil {
		t.Fatal(err)
	}
	want := head + begin + table.String() + end + tail
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want, string(doc)); diff != "" {
		t.Errorf("%s is not up to date, run with -update (-want +got):\n%s", path, diff)
	}
}
