//go:build !linux

package ibverbs

import (
	"errors"
	"os"
)

func pollable(int) (*os.File, error) { return nil, errors.ErrUnsupported }

func offHeap[T any](n int) ([]T, error) { return make([]T, n), nil }

func freeOffHeap[T any]([]T) {}
