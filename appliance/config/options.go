package config

import (
	"time"

	"github.com/spf13/pflag"
)

// option is one row of the table of options: a name, bound to a field of a Config.
type option struct {
	name string
	doc  string // for the help text and the document; a word in back quotes names the value
	// unset says what the zero value means, where it stands for "not said".
	unset string
	bind  func(fs *pflag.FlagSet, c *Config, name, doc string)
}

func text(field func(*Config) *string) func(*pflag.FlagSet, *Config, string, string) {
	return func(fs *pflag.FlagSet, c *Config, name, doc string) {
		fs.StringVar(field(c), name, *field(c), doc)
	}
}

func texts(field func(*Config) *[]string) func(*pflag.FlagSet, *Config, string, string) {
	return func(fs *pflag.FlagSet, c *Config, name, doc string) {
		fs.StringArrayVar(field(c), name, *field(c), doc)
	}
}

func number(field func(*Config) *int) func(*pflag.FlagSet, *Config, string, string) {
	return func(fs *pflag.FlagSet, c *Config, name, doc string) {
		fs.IntVar(field(c), name, *field(c), doc)
	}
}

func boolean(field func(*Config) *bool) func(*pflag.FlagSet, *Config, string, string) {
	return func(fs *pflag.FlagSet, c *Config, name, doc string) {
		fs.BoolVar(field(c), name, *field(c), doc)
	}
}

func duration(field func(*Config) *time.Duration) func(*pflag.FlagSet, *Config, string, string) {
	return func(fs *pflag.FlagSet, c *Config, name, doc string) {
		fs.DurationVar(field(c), name, *field(c), doc)
	}
}

func size(field func(*Config) *Size) func(*pflag.FlagSet, *Config, string, string) {
	return func(fs *pflag.FlagSet, c *Config, name, doc string) { fs.Var(field(c), name, doc) }
}

// options is the table of all options, in the order of the help text and the document.
var options = []option{
	{"dir", "folder `DIR` of a virtual JBOF, made at the first start; it also holds credentials and certificate", "",
		text(func(c *Config) *string { return &c.Dir })},
	{"drives", "make `N` virtual drives (first start only)", "6",
		number(func(c *Config) *int { return &c.Drives })},
	{"drive-size", "`SIZE` of each drive that is a folder (first start only)", "4GiB",
		size(func(c *Config) *Size { return &c.DriveSize })},
	{"drive", "use the block device or folder at `PATH` as a drive, instead of --dir (repeatable)", "",
		texts(func(c *Config) *[]string { return &c.DrivePaths })},
	{"state-dir", "folder `DIR` for credentials and certificate; needed with --drive", "the value of dir",
		text(func(c *Config) *string { return &c.StateDir })},
	{"scheme", "erasure scheme `K+M`, data and parity shards (first start only)", "by the number of drives",
		text(func(c *Config) *string { return &c.Scheme })},
	{"listen", "serve S3 at `ADDR`", "", text(func(c *Config) *string { return &c.Listen })},
	{"mgmt-listen", "serve health and metrics at `ADDR` (https)", "",
		text(func(c *Config) *string { return &c.MgmtListen })},
	{"rdma", "RDMA `MODE`: auto, soft, verbs (RDMA hardware or no start) or off; auto is soft, and hardware where there is any", "",
		text(func(c *Config) *string { return &c.RDMA })},
	{"rdma-listen", "accept RDMA connections at `ADDR` from clients that can't be reached themselves; of hardware with --rdma verbs, else of soft", "",
		text(func(c *Config) *string { return &c.RDMAListen })},
	{"rdma-allow", "`NETWORK` (address or CIDR) that RDMA tokens may name besides the client's own address (repeatable)",
		"",
		texts(func(c *Config) *[]string { return &c.RDMAAllow })},
	{"rdma-crc", "protect RDMA messages of the soft provider by CRCs, even where the client would do without", "",
		boolean(func(c *Config) *bool { return &c.RDMACRC })},
	{"rdma-timeout", "give up a transfer by RDMA after `DURATION`; clients wait 10s", "",
		duration(func(c *Config) *time.Duration { return &c.RDMATimeout })},
	{"rdma-transfers", "do at most `N` transfers by RDMA at a time; more wait", "",
		number(func(c *Config) *int { return &c.RDMATransfers })},
	{"rdma-traffic-class", "traffic class of the packets of RDMA hardware: DSCP × 4, `N`", "",
		number(func(c *Config) *int { return &c.RDMATrafficClass })},
	{"region", "S3 region `NAME` that signatures must have", "", text(func(c *Config) *string { return &c.Region })},
	{"domain", "`DOMAIN` whose sub-domains are buckets, for virtual-host requests (repeatable)", "",
		texts(func(c *Config) *[]string { return &c.Domains })},
	{"arena-size", "`SIZE` of the memory for object bytes in flight; requests wait when it is used up", "",
		size(func(c *Config) *Size { return &c.ArenaSize })},
	{"memory-limit", "soft limit `SIZE` of the memory beside the arena; GOMEMLIMIT goes before it", "",
		size(func(c *Config) *Size { return &c.MemoryLimit })},
	{"max-connections", "accept at most `N` S3 connections at a time; more wait", "",
		number(func(c *Config) *int { return &c.MaxConnections })},
	{"drain-timeout", "wait at most `DURATION` for the requests in progress at a stop", "",
		duration(func(c *Config) *time.Duration { return &c.DrainTimeout })},
	{"scrub-interval", "read and verify all data of each drive every `DURATION`, 0 for never", "",
		duration(func(c *Config) *time.Duration { return &c.ScrubInterval })},
	{"scrub-rate", "read at most `SIZE` a second of each drive for that, 0 for no limit; clients come first in any case", "",
		size(func(c *Config) *Size { return &c.ScrubRate })},
	{"repair-rate", "write at most `SIZE` a second to make lost data anew, 0 for no limit; clients come first in any case", "",
		size(func(c *Config) *Size { return &c.RepairRate })},
	{"relocate-after", "make the data of a drive that is gone anew on the others after `DURATION`", "",
		duration(func(c *Config) *time.Duration { return &c.RelocateAfter })},
	{"replace", "make a new drive for `SLOT[=PATH]`, whose drive is gone for good; of a virtual JBOF in its old place (repeatable)", "",
		texts(func(c *Config) *[]string { return &c.Replace })},
	{"log-format", "log `FORMAT`: text or json", "", text(func(c *Config) *string { return &c.LogFormat })},
	{"log-level", "least `LEVEL` to log: debug, info, warn or error", "",
		text(func(c *Config) *string { return &c.LogLevel })},
	{"pprof", "serve Go profiles at /debug/pprof/ of the management address, which must be a loopback one", "",
		boolean(func(c *Config) *bool { return &c.Pprof })},
}

// bindAll registers every option on fs, bound to c, with c's values as the defaults.
func bindAll(fs *pflag.FlagSet, c *Config) {
	for _, o := range options {
		doc := o.doc
		if o.unset != "" {
			doc += " (default " + o.unset + ")"
		}
		o.bind(fs, c, o.name, doc)
	}
}
