package dputest

import (
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/millrace/millrace/appliance/guest"
)

const iwarpPackage = "../../verbs/iwarp"

// TestSIW has the soft provider and the kernel's software iWARP as peers, in one guest: siw's sockets are the kernel's
// own, so an ordinary program reaches them at the address of its interface. rping of the distribution uses siw.
func TestSIW(t *testing.T) {
	c := openCache(t)
	if runtime.GOARCH != string(guest.AMD64) {
		t.Skip("siw is built with the compiler of this machine, for amd64")
	}
	siw, err := c.SIW(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	peer := filepath.Join(t.TempDir(), "siwpeer")
	build := exec.CommandContext(t.Context(), "gcc", "-O1", "-o", peer, iwarpPackage+"/testdata/siwpeer.c", "-lrdmacm", "-libverbs")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v (needs librdmacm-dev): %v\n%s", build.Args, err, out)
	}
	cfg := guest.Config{
		Arch: guest.AMD64, Sets: []guest.Set{guest.Verbs(), guest.BusyBox()}, Files: []guest.File{{Path: "/test/siwpeer", Source: peer}},
		Modules: []string{"crc32c_generic", siw}, Links: []guest.Link{{Name: "siw0", Type: "siw", NetDev: "eth1"}},
		Fabric: &guest.Fabric{Socket: filepath.Join(t.TempDir(), "fabric"), Listen: true, Addresses: []string{leftAddress + "/24"}},
	}
	guestTest(t, cfg, iwarpPackage, "TestSIW", "-siw", leftAddress)
}
