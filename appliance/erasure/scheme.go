// Package erasure is the geometry of a segment over its shards, and the Reed-Solomon coding between them.
// Data shards hold the object's own bytes (systematic code), so the mapping from a range to shard offsets
// is plain arithmetic.
//
// It does no I/O, holds no buffers and knows no checksums; of those it knows only that they guard blocks of
// BlockBytes, counted from the start of each shard. Package segment moves the bytes.
//
// Invariant: every logical byte of a segment is at exactly one place of one data shard, all shards of a
// segment have the same size, and any Data of them give back the others.
package erasure

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Limits of a scheme.
const (
	MaxData   = 16
	MaxParity = 4
	MaxShards = MaxData + MaxParity
)

// ErrScheme marks a scheme that can't be used.
var ErrScheme = errors.New("erasure scheme not supported")

// Scheme is how many data and parity shards a segment has. With one data shard the parity shards are
// copies of it.
type Scheme struct {
	Data   int // k
	Parity int // m
}

// ParseScheme reads the form "4+2". Its error is ErrScheme.
func ParseScheme(s string) (Scheme, error) {
	data, parity, ok := strings.Cut(s, "+")
	k, errData := parseCount(data)
	m, errParity := parseCount(parity)
	if !ok || errData != nil || errParity != nil {
		return Scheme{}, fmt.Errorf("%w: %.20q is not of the form \"4+2\"", ErrScheme, s)
	}
	scheme := Scheme{Data: k, Parity: m}
	return scheme, scheme.Validate()
}

func parseCount(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 8)
	if err == nil && strconv.FormatUint(n, 10) != s {
		err = strconv.ErrSyntax
	}
	return int(n), err
}

// Validate returns ErrScheme unless there are 1 … MaxData data and 0 … MaxParity parity shards.
func (s Scheme) Validate() error {
	if s.Data < 1 || s.Data > MaxData || s.Parity < 0 || s.Parity > MaxParity {
		return fmt.Errorf("%w: %v (1+0 to %d+%d)", ErrScheme, s, MaxData, MaxParity)
	}
	return nil
}

// Shards is the number of shards, k+m.
func (s Scheme) Shards() int { return s.Data + s.Parity }

// String returns the form "4+2".
func (s Scheme) String() string { return strconv.Itoa(s.Data) + "+" + strconv.Itoa(s.Parity) }
