package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Size is a number of bytes that is written with its unit: "4GiB", "512MiB", "10GB", "65536".
// It serves as a flag value, and as a TOML string.
type Size int64

// Units of Size.
const (
	KiB Size = 1 << 10
	MiB Size = 1 << 20
	GiB Size = 1 << 30
	TiB Size = 1 << 40
)

// sizeUnits are the units that ParseSize knows.
var sizeUnits = []struct {
	name  string
	bytes Size
}{
	{"TiB", TiB}, {"GiB", GiB}, {"MiB", MiB}, {"KiB", KiB},
	{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"KB", 1e3}, {"B", 1},
}

// ParseSize reads a whole number of bytes with an optional unit (B, KB, MB, GB, TB in powers of
// 1000; KiB, MiB, GiB, TiB in powers of 1024; upper and lower case alike).
func ParseSize(s string) (Size, error) {
	text := strings.TrimSpace(s)
	end := 0
	for end < len(text) && text[end] >= '0' && text[end] <= '9' {
		end++
	}
	n, err := strconv.ParseInt(text[:end], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("size %q: want a whole number and a unit, as 4GiB", s)
	}
	unit := strings.TrimSpace(text[end:])
	if unit == "" {
		return Size(n), nil
	}
	for _, u := range sizeUnits {
		if !strings.EqualFold(unit, u.name) {
			continue
		}
		if n > math.MaxInt64/int64(u.bytes) {
			return 0, fmt.Errorf("size %q: too large", s)
		}
		return Size(n) * u.bytes, nil
	}
	return 0, fmt.Errorf("size %q: unknown unit %q (B, KB, MB, GB, TB, KiB, MiB, GiB, TiB)", s, unit)
}

// String gives the exact form with the smallest number, "4GiB" for 1<<32; ParseSize reads it back.
func (s Size) String() string {
	best := sizeUnits[len(sizeUnits)-1]
	for _, u := range sizeUnits {
		if s%u.bytes == 0 && u.bytes > best.bytes {
			best = u
		}
	}
	if s == 0 {
		return "0"
	}
	return strconv.FormatInt(int64(s/best.bytes), 10) + best.name
}

// Set implements pflag.Value.
func (s *Size) Set(text string) error {
	v, err := ParseSize(text)
	if err != nil {
		return err
	}
	*s = v
	return nil
}

// Type implements pflag.Value; it is what the help text shows.
func (s *Size) Type() string { return "size" }

// UnmarshalText implements encoding.TextUnmarshaler, for TOML.
func (s *Size) UnmarshalText(text []byte) error { return s.Set(string(text)) }

// MarshalText implements encoding.TextMarshaler, for TOML.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }
