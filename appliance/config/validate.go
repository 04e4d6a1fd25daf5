package config

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/millrace/millrace/appliance/erasure"
)

// Validate says everything that is wrong with c, or nil. It touches no file and no address.
func (c *Config) Validate() error {
	return errors.Join(c.validateDrives(), c.validateScheme(), c.validateNetwork(), c.validateRest())
}

func (c *Config) validateDrives() error {
	var errs []error
	switch {
	case c.Dir == "" && len(c.DrivePaths) == 0:
		errs = append(errs, errors.New("no drives: give --dir DIR, or --drive PATH for each drive"))
	case c.Dir != "" && len(c.DrivePaths) > 0:
		errs = append(errs, errors.New("--dir and --drive exclude each other"))
	}
	if len(c.DrivePaths) > 0 && c.Drives != 0 {
		errs = append(errs, errors.New("--drives goes with --dir, not with --drive"))
	}
	if c.Drives < 0 || c.Drives > MaxDrives || len(c.DrivePaths) > MaxDrives {
		errs = append(errs, fmt.Errorf("drives: want 1 to %d of them", MaxDrives))
	}
	if c.DriveSize != 0 && c.DriveSize < MinDriveSize {
		errs = append(errs, fmt.Errorf("drive-size %v: want at least %v", c.DriveSize, MinDriveSize))
	}
	seen := make(map[string]bool)
	for _, path := range c.DrivePaths {
		if path == "" || seen[path] {
			errs = append(errs, fmt.Errorf("drive %q: empty or given twice", path))
		}
		seen[path] = true
	}
	return errors.Join(errs...)
}

func (c *Config) validateScheme() error {
	if c.Scheme == "" {
		return nil
	}
	scheme, err := erasure.ParseScheme(c.Scheme)
	if err != nil {
		return fmt.Errorf("scheme: %w", err)
	}
	drives := c.Drives
	if c.Dir == "" {
		drives = len(c.DrivePaths)
	}
	if drives > 0 && scheme.Shards() > drives {
		return fmt.Errorf("scheme %v needs %d drives, and there are %d", scheme, scheme.Shards(), drives)
	}
	return nil
}

func (c *Config) validateNetwork() error {
	var errs []error
	address := func(name, value string) {
		if _, port, err := net.SplitHostPort(value); err != nil || port == "" {
			errs = append(errs, fmt.Errorf("%s %q: want HOST:PORT", name, value))
		}
	}
	address("listen", c.Listen)
	address("mgmt-listen", c.MgmtListen)
	if c.RDMAListen != "" {
		address("rdma-listen", c.RDMAListen)
	}
	errs = append(errs, c.validateRDMA())
	if c.Pprof && !loopback(c.MgmtListen) {
		errs = append(errs, fmt.Errorf("pprof: %q is not a loopback address", c.MgmtListen))
	}
	if c.Region == "" {
		errs = append(errs, errors.New("region: empty"))
	}
	if slices.Contains(c.Domains, "") {
		errs = append(errs, errors.New("domain: empty"))
	}
	return errors.Join(errs...)
}

func (c *Config) validateRDMA() error {
	var errs []error
	switch c.RDMA {
	case RDMAAuto, RDMASoft, RDMAVerbs, RDMAOff, RDMANull:
	default:
		errs = append(errs, fmt.Errorf("rdma %q: want auto, soft, verbs or off", c.RDMA))
	}
	if _, err := c.RDMANetworks(); err != nil {
		errs = append(errs, err)
	}
	if c.RDMATimeout <= 0 {
		errs = append(errs, fmt.Errorf("rdma-timeout %v: want more than 0", c.RDMATimeout))
	}
	if c.RDMATrafficClass < 0 || c.RDMATrafficClass > 255 {
		errs = append(errs, fmt.Errorf("rdma-traffic-class %d: want 0 to 255", c.RDMATrafficClass))
	}
	if c.RDMATransfers < 1 {
		errs = append(errs, fmt.Errorf("rdma-transfers %d: want at least 1", c.RDMATransfers))
	}
	return errors.Join(errs...)
}

// RDMANetworks returns RDMAAllow, parsed.
func (c *Config) RDMANetworks() ([]netip.Prefix, error) {
	var list []netip.Prefix
	for _, text := range c.RDMAAllow {
		p, err := netip.ParsePrefix(text)
		if a, addrErr := netip.ParseAddr(text); addrErr == nil {
			p, err = a.Prefix(a.BitLen())
		}
		if err != nil {
			return nil, fmt.Errorf("rdma-allow %q: want an address or a network like 192.0.2.0/24", text)
		}
		list = append(list, p.Masked())
	}
	return list, nil
}

// loopback tells whether address is of this machine alone.
func loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	return host == "localhost" || net.ParseIP(host).IsLoopback()
}

func (c *Config) validateRest() error {
	var errs []error
	if c.ArenaSize < MinArenaSize {
		errs = append(errs, fmt.Errorf("arena-size %v: want at least %v", c.ArenaSize, MinArenaSize))
	}
	if c.MemoryLimit < MinMemoryLimit {
		errs = append(errs, fmt.Errorf("memory-limit %v: want at least %v", c.MemoryLimit, MinMemoryLimit))
	}
	if c.MaxConnections < 1 {
		errs = append(errs, fmt.Errorf("max-connections %d: want at least 1", c.MaxConnections))
	}
	if c.DrainTimeout < 0 {
		errs = append(errs, fmt.Errorf("drain-timeout %v: negative", c.DrainTimeout))
	}
	if c.ScrubInterval < 0 || c.ScrubInterval > 0 && c.ScrubInterval < MinScrubInterval {
		errs = append(errs, fmt.Errorf("scrub-interval %v: want 0 or at least %v", c.ScrubInterval, MinScrubInterval))
	}
	if c.ScrubRate < 0 || c.RepairRate < 0 {
		errs = append(errs, errors.New("scrub-rate, repair-rate: negative"))
	}
	if c.RelocateAfter <= 0 {
		errs = append(errs, fmt.Errorf("relocate-after %v: want more than 0", c.RelocateAfter))
	}
	if _, err := c.Replacements(); err != nil {
		errs = append(errs, err)
	}
	if c.LogFormat != LogText && c.LogFormat != LogJSON {
		errs = append(errs, fmt.Errorf("log-format %q: want text or json", c.LogFormat))
	}
	if _, err := c.Level(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Replacements returns Replace, parsed: a path for each slot, "" for the old place of a virtual drive.
func (c *Config) Replacements() (map[int]string, error) {
	list := map[int]string{}
	for _, text := range c.Replace {
		number, path, named := strings.Cut(text, "=")
		slot, err := strconv.Atoi(number)
		switch _, twice := list[slot]; {
		case err != nil || slot < 0 || slot >= MaxDrives || named && path == "":
			return nil, fmt.Errorf("replace %q: want SLOT or SLOT=PATH", text)
		case twice:
			return nil, fmt.Errorf("replace: slot %d twice", slot)
		case !named && c.Dir == "":
			return nil, fmt.Errorf("replace %q: want SLOT=PATH where there is no --dir", text)
		}
		list[slot] = path
	}
	return list, nil
}

// Level returns LogLevel as slog knows it.
func (c *Config) Level() (slog.Level, error) {
	switch c.LogLevel {
	case "debug":
		return slog.LevelDebug, nil
	case "info":
		return slog.LevelInfo, nil
	case "warn":
		return slog.LevelWarn, nil
	case "error":
		return slog.LevelError, nil
	}
	return 0, fmt.Errorf("log-level %q: want debug, info, warn or error", c.LogLevel)
}
