//go:build !linux || (!amd64 && !arm64)

package libmlx5

import (
	"fmt"
	"runtime"
)

// qpBytes is not known elsewhere, nor used.
const qpBytes = 0

// Load fails: verbs exist on 64-bit Linux only.
func Load() (*Calls, error) {
	return nil, fmt.Errorf("%w: not on %s/%s", ErrNoLibrary, runtime.GOOS, runtime.GOARCH)
}
