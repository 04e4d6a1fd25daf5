//go:build !linux || (!amd64 && !arm64)

package libibverbs

import (
	"fmt"
	"runtime"
)

// Load fails: verbs exist on 64-bit Linux only.
func Load() (*Calls, error) {
	return nil, fmt.Errorf("%w: not on %s/%s", ErrNoLibrary, runtime.GOOS, runtime.GOARCH)
}
