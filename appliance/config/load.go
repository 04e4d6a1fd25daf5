package config

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"

	"github.com/BurntSushi/toml"
	"github.com/spf13/pflag"
)

// maxFileBytes limits the configuration file.
const maxFileBytes = 1 << 20

// Flags are the options as command-line flags, together with --config.
type Flags struct {
	set  *pflag.FlagSet
	file string
}

// NewFlags registers every option, and --config, on fs.
func NewFlags(fs *pflag.FlagSet) *Flags {
	f := &Flags{set: fs}
	defaults := Default()
	bindAll(fs, &defaults)
	fs.StringVar(&f.file, "config", "", "read options from the TOML `FILE`; flags override it")
	return f
}

// Config returns the validated configuration: the defaults, overridden by the file of --config,
// overridden by the flags that were given. Call it after the flags were parsed.
func (f *Flags) Config() (Config, error) {
	c := Default()
	if f.file != "" {
		if err := readFile(f.file, &c); err != nil {
			return Config{}, err
		}
	}
	to := pflag.NewFlagSet("", pflag.ContinueOnError)
	bindAll(to, &c)
	var errs []error
	f.set.Visit(func(given *pflag.Flag) {
		if dest := to.Lookup(given.Name); dest != nil {
			errs = append(errs, assign(dest.Value, given.Value))
		}
	})
	if err := errors.Join(errs...); err != nil {
		return Config{}, err
	}
	return c, c.Validate()
}

// assign copies the value of one flag to another of the same type; lists are replaced.
func assign(dest, src pflag.Value) error {
	if list, ok := src.(pflag.SliceValue); ok {
		return dest.(pflag.SliceValue).Replace(list.GetSlice())
	}
	return dest.Set(src.String())
}

// readFile decodes the TOML file at path over c.
func readFile(path string, c *Config) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	if info.Size() > maxFileBytes {
		return fmt.Errorf("read configuration: %s is larger than %d bytes", path, maxFileBytes)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	if err := decode(text, c); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// decode reads TOML strictly: a key that is no option is an error that says its line.
func decode(text []byte, c *Config) error {
	meta, err := toml.Decode(string(text), c)
	if err != nil {
		var at toml.ParseError
		if errors.As(err, &at) {
			return fmt.Errorf("line %d: %s", at.Position.Line, at.Message)
		}
		return errors.New(strings.TrimPrefix(err.Error(), "toml: "))
	}
	var errs []error
	for _, key := range meta.Undecoded() {
		errs = append(errs, fmt.Errorf("line %d: unknown option %q", lineOf(text, key), key.String()))
	}
	return errors.Join(errs...)
}

// lineOf finds the line where the last part of key is set or is a table's name. The decoder
// doesn't tell; 0 stands for a form that this doesn't find.
func lineOf(text []byte, key toml.Key) int {
	name := regexp.QuoteMeta(key[len(key)-1])
	form := regexp.MustCompile(`^\s*(\[+[^\]]*["'.\s\[]?` + name + `["']?\s*\]|["']?` + name + `["']?\s*=|.*\.` +
		name + `\s*=|.*[{,]\s*["']?` + name + `["']?\s*=)`)
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, maxFileBytes+1)
	for n := 1; lines.Scan(); n++ {
		if form.Match(lines.Bytes()) {
			return n
		}
	}
	return 0
}
