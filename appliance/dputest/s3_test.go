package dputest

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/appliance/guest"
)

// s3Drives of the server in a pair of guests are 2+1.
const s3Drives = 3

// startServerAndClient boots two guests with Soft-RoCE between them: in the left one millrace serves, reached only over the
// fabric. Both have the program.
func startServerAndClient(t *testing.T, arch guest.Arch, args ...string) (server *server, client *guest.VM) {
	t.Helper()
	cfg := guest.Config{
		Arch: arch, MemoryMiB: 1024, Files: []guest.File{buildMillrace(t, arch)},
		Sets: []guest.Set{guest.Verbs(), guest.BusyBox(), guest.FileSystems()}, Drives: drives(t, s3Drives),
	}
	left, right := startPair(t, cfg)
	for i := range s3Drives {
		args = append(args, "--drive", fmt.Sprintf("/dev/nvme%dn1", i))
	}
	return serve(t, left, append([]string{"--scheme", "2+1", "--arena-size", "128MiB"}, args...)...), right
}

// s3 runs a client command in a guest, against the server at the left address.
func s3(t *testing.T, vm *guest.VM, args ...string) string {
	t.Helper()
	out := &strings.Builder{}
	c := credential()
	err := vm.Run(t.Context(), guest.Command{
		Args: append([]string{millrace}, args...), Stdout: out, Stderr: out,
		Env: []string{"AWS_ACCESS_KEY_ID=" + c.AccessKey, "AWS_SECRET_ACCESS_KEY=" + c.SecretKey,
			fmt.Sprintf("AWS_ENDPOINT_URL=http://%s:%d", leftAddress, s3Port)},
	})
	if err != nil {
		t.Fatalf("millrace %v: %v\n%s", args, err, out)
	}
	return out.String()
}

// TestS3OverRoCE moves objects between two guests by the libibverbs provider, through windows that the server connects to, and
// through sessions that the client connects; both sides' counters must agree.
func TestS3OverRoCE(t *testing.T) {
	for _, tc := range []struct {
		arch guest.Arch
		mode string // --rdma of the server
	}{{guest.ARM64, "verbs"}, {guest.AMD64, "auto"}} {
		t.Run(string(tc.arch), func(t *testing.T) {
			openCache(t)
			_, client := startServerAndClient(t, tc.arch, "--rdma", tc.mode, "--rdma-listen", leftAddress+":9010")
			file := filepath.Join("/tmp", "file")
			run := func(args ...string) {
				t.Helper()
				if out, err := output(t.Context(), t, client, args...); err != nil {
					t.Fatalf("%v: %v\n%s", args, err, out)
				}
			}
			run("busybox", "dd", "if=/dev/urandom", "of="+file, "bs=1M", "count=20")
			ways := [][]string{{"--rdma", "require", "--rdma-provider", "ibverbs"}}
			if tc.mode == "verbs" {
				ways = append(ways, append(ways[0], "--rdma-connect", leftAddress+":9010"))
			} else {
				ways = append(ways, []string{"--rdma", "require", "--rdma-provider", "soft"},
					[]string{"--rdma", "require", "--rdma-provider", "soft", "--rdma-connect", leftAddress + ":9010"})
			}
			for i, way := range ways {
				bucket := fmt.Sprint("s3://bucket", i)
				s3(t, client, "mb", bucket)
				put := s3(t, client, append([]string{"put", file, bucket + "/o", "--json"}, way...)...)
				get := s3(t, client, append([]string{"get", bucket + "/o", file + "2", "--json"}, way...)...)
				provider := way[3]
				for _, out := range []string{put, get} {
					if !strings.Contains(out, `"transport":"rdma"`) || !strings.Contains(out, `"provider":"`+provider+`"`) {
						t.Errorf("%v: %s; want it by RDMA of %s", way, out, provider)
					}
				}
				run("busybox", "cmp", file, file+"2")
				s3(t, client, append([]string{"get", bucket + "/o", file + "3", "--rdma", "off"}, "--json")...)
				run("busybox", "cmp", file, file+"3")
				for _, op := range []string{"get", "put"} { // fails where the counters differ
					t.Log(s3(t, client, append([]string{"bench", op, "--sizes", "64KiB,2MiB", "--concurrency", "4", "--count", "4", "--keys", "4",
						"--mgmt", fmt.Sprintf("https://%s:%d", leftAddress, mgmtPort), "--insecure"}, way...)...))
				}
			}
		})
	}
}

// TestPairs runs the tests of hipobj-rc-v2 over real queue pairs: server and client in one guest.
func TestPairs(t *testing.T) {
	openCache(t)
	guestTest(t, guest.Config{
		Arch: guest.ARM64, Sets: []guest.Set{guest.Verbs()}, MemoryMiB: 1024,
		Links: []guest.Link{{Name: "rxe0", Type: "rxe", NetDev: "eth1"}},
		Fabric: &guest.Fabric{
			Socket: filepath.Join(t.TempDir(), "fabric"), Listen: true, Addresses: []string{leftAddress + "/24"},
		},
	}, "../../s3/rdma", "TestPair", "-rc-device", "rxe0", "-rc-address", leftAddress)
}
