package drive

import (
	"context"
	"errors"
)

func probeBlock(string) (Found, error) { return Found{}, errors.ErrUnsupported }

func openBlock(context.Context, string, Options) (*Drive, error) { return nil, errors.ErrUnsupported }

func createBlock(context.Context, string, CreateOptions) error { return errors.ErrUnsupported }
