package preflight

import (
	"os"

	"github.com/millrace/millrace/verbs/dcb"
	"github.com/millrace/millrace/verbs/fabric"
)

// Host returns this machine. library tries to load libibverbs; nil means that this build can't.
func Host(library func() error) System {
	return System{
		Sys: os.DirFS("/sys"), Proc: os.DirFS("/proc"), Kernel: fabric.Host(), Library: library, DCB: dcb.Get, Open: open,
	}
}

func open(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return f.Close()
}
