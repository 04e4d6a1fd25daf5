//go:build !linux

package drive

import (
	"errors"
	"os"
)

func lockDirectory(string) (func(), error) { return func() {}, nil }

func allocate(*os.File, int64) error { return errors.ErrUnsupported }
