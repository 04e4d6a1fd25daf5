//go:build !linux

package drive

import (
	"context"
	"errors"
	"os"
)

func lockDirectory(string) (func(), error) { return func() {}, nil }

func allocate(*os.File, int64) error { return errors.ErrUnsupported }

func probeBlock(string) (Found, error) { return Found{}, errors.ErrUnsupported }

func openBlock(context.Context, string, Options) (*Drive, error) { return nil, errors.ErrUnsupported }

func createBlock(context.Context, string, CreateOptions) error { return errors.ErrUnsupported }
