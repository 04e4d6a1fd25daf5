//go:build !linux

package mlx5dc

import "os"

// pollable fails: there are no devices.
func pollable(int) (*os.File, error) { return nil, ErrUnsupported }
