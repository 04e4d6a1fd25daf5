// Package config is the one configuration of the appliance: a struct with its defaults, a strict
// TOML file, command-line flags that override the file, and the check of all of it.
//
// It is not a live settings store, and it opens nothing: what it names is opened by
// appliance/server. Secrets are not part of it; they come from the environment or DIR/credentials.
//
// Invariant: an option has one name, which is its flag, its key in the file and its row in
// docs/configuration.md; and a Config that Validate accepts contradicts itself nowhere.
package config

import "time"

// Config is what `millrace serve` can be told. The zero value of a field that has "first start"
// in its description means that it was not said.
type Config struct {
	// Dir holds a virtual JBOF (drives/00 …) and, unless StateDir is set, the state files.
	Dir string `toml:"dir"`
	// StateDir holds the state files: credentials and the management certificate.
	StateDir string `toml:"state-dir"`
	// Drives is the number of virtual drives made in Dir at the first start.
	Drives int `toml:"drives"`
	// DriveSize is the size of the data area of drives that are folders, in bytes.
	DriveSize Size `toml:"drive-size"`
	// DrivePaths are real drives or drive directories, instead of Dir.
	DrivePaths []string `toml:"drive"`
	// Scheme is the erasure scheme "K+M" of a pool that is made at the first start.
	Scheme string `toml:"scheme"`

	Listen        string        `toml:"listen"`      // the S3 address
	MgmtListen    string        `toml:"mgmt-listen"` // the management address
	RDMA          string        `toml:"rdma"`        // RDMAAuto …
	RDMAListen    string        `toml:"rdma-listen"` // where clients open sessions
	RDMAAllow     []string      `toml:"rdma-allow"`  // networks that tokens may name
	RDMACRC       bool          `toml:"rdma-crc"`    // of the soft provider
	RDMATimeout   time.Duration `toml:"rdma-timeout"`
	RDMATransfers int           `toml:"rdma-transfers"` // at once
	// RDMATrafficClass is that of the packets of RDMA hardware: DSCP × 4.
	RDMATrafficClass int           `toml:"rdma-traffic-class"`
	Region           string        `toml:"region"`     // the S3 region that signatures must name
	Domains          []string      `toml:"domain"`     // suffixes for virtual-host style
	ArenaSize        Size          `toml:"arena-size"` // the arena of I/O buffers, in bytes
	MemoryLimit      Size          `toml:"memory-limit"`
	MaxConnections   int           `toml:"max-connections"` // open S3 connections
	DrainTimeout     time.Duration `toml:"drain-timeout"`
	// ScrubInterval is the time between two scrubs of a drive, 0 for none; ScrubRate bounds what a scrub reads of each
	// drive, RepairRate what a repair writes of all together, in bytes a second, 0 for no bound.
	ScrubInterval time.Duration `toml:"scrub-interval"`
	ScrubRate     Size          `toml:"scrub-rate"`
	RepairRate    Size          `toml:"repair-rate"`
	// RelocateAfter is how long a drive is waited for before its data is made anew on the others.
	RelocateAfter time.Duration `toml:"relocate-after"`
	// Replace names slots whose drives are gone for good, each with where the new one is: "3" or "3=/dev/nvme7n1".
	Replace   []string `toml:"replace"`
	LogFormat string   `toml:"log-format"` // LogText or LogJSON
	LogLevel  string   `toml:"log-level"`  // debug, info, warn or error
	Pprof     bool     `toml:"pprof"`
}

// The values of RDMA.
const (
	RDMAAuto  = "auto"
	RDMASoft  = "soft"
	RDMAVerbs = "verbs"
	RDMAOff   = "off"
	// RDMANull moves no bytes: what is stored through it is garbage. It is for measuring what the rest
	// costs, and not in the help text.
	RDMANull = "null"
)

// The values of LogFormat.
const (
	LogText = "text"
	LogJSON = "json"
)

// Used at the first start where Drives and DriveSize were not said.
const (
	DefaultDrives    = 6
	DefaultDriveSize = 4 * GiB
)

// Limits of the options.
const (
	MaxDrives      = 200
	MinDriveSize   = 64 * MiB
	MinArenaSize   = 16 * MiB
	MinMemoryLimit = 64 * MiB
	// MinScrubInterval keeps a scrub from following the last one at once.
	MinScrubInterval = time.Hour
)

// Default returns the configuration that holds where nothing else was said.
func Default() Config {
	return Config{
		Listen:           "127.0.0.1:9000",
		MgmtListen:       "127.0.0.1:9443",
		RDMA:             RDMAAuto,
		RDMACRC:          true,
		RDMATimeout:      8 * time.Second,
		RDMATransfers:    256,
		RDMATrafficClass: 96,
		Region:           "us-east-1",
		ArenaSize:        96 * MiB,
		MemoryLimit:      128 * MiB,
		MaxConnections:   4096,
		DrainTimeout:     30 * time.Second,
		ScrubInterval:    14 * 24 * time.Hour,
		ScrubRate:        64 * MiB,
		RelocateAfter:    10 * time.Minute,
		LogFormat:        LogText,
		LogLevel:         "info",
	}
}

// StatePath returns the folder of the state files: StateDir, else Dir, else "".
func (c *Config) StatePath() string {
	if c.StateDir != "" {
		return c.StateDir
	}
	return c.Dir
}
