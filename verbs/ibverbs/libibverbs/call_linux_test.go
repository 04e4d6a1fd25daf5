//go:build amd64 || arm64

package libibverbs

import (
	"os"
	"testing"

	"github.com/ebitengine/purego"
)

// TestCallsAllocateNothing: calling C costs no memory of Go's.
func TestCallsAllocateNothing(t *testing.T) {
	getpid, err := purego.Dlsym(purego.RTLD_DEFAULT, "getpid")
	if err != nil {
		t.Skip(err)
	}
	l := &library{}
	l.args.New = func() any { return new([3]uintptr) }
	var pid int32
	n := testing.AllocsPerRun(100, func() { pid = l.call(getpid, 1, 2, 3) })
	if n != 0 || int(pid) != os.Getpid() {
		t.Errorf("getpid() = %d with %v allocations; want %d with none", pid, n, os.Getpid())
	}
}
