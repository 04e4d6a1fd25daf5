//go:build !linux

package libibverbs

import (
	"errors"
	"os"
)

func pollable(int) (*os.File, error) { return nil, errors.ErrUnsupported }
