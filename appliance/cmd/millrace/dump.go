package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/millrace/millrace/appliance/inspect"
)

func dumpCommand() command {
	return command{
		name: "dump", args: "DIR", summary: "show the records on the drives of a pool that is not being served",
		details: `
Prints what is on each drive, readable: superblock, map, buckets, objects, uploads and parts, the bookkeeping, and the shards with
where their bytes are and the checksum of every 64 KiB. The kinds are: ` + strings.Join(inspect.Kinds(), ", ") + `.
The bytes of objects are not shown, nor what may be secret. Nothing is changed; see millrace fsck --help.`,
		examples: `
millrace dump ./var/demo --slot 0 --limit 10
millrace dump ./var/demo --bucket photos --key cats/1.jpg
millrace dump --drive /dev/nvme0n1 --kind superblock,map --json`,
		flags: func(fs *pflag.FlagSet) runner {
			f := &dumpFlags{}
			f.register(fs)
			fs.StringSliceVar(&f.filter.Kinds, "kind", nil, "only entries of these kinds: a list of `KIND`")
			fs.IntVar(&f.filter.Slot, "slot", -1, "only the drive of slot `N`")
			fs.StringVar(&f.filter.Bucket, "bucket", "", "only what belongs to the bucket `NAME`")
			fs.StringVar(&f.filter.Key, "key", "", "only what belongs to the object or the uploads of `KEY` (with --bucket)")
			fs.IntVar(&f.filter.Limit, "limit", 0, "at most `N` entries of each kind from each drive")
			fs.BoolVar(&f.json, "json", false, "print one JSON object a line")
			return f.run
		},
	}
}

type dumpFlags struct {
	drivesFlags
	filter inspect.Filter
	json   bool
}

func (f *dumpFlags) run(ctx context.Context, env *environment, args []string) (err error) {
	drives, err := f.open(ctx, env, args)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, drives.Close()) }()
	err = drives.Dump(ctx, f.filter, func(e inspect.Entry) error {
		if f.json {
			return writeJSON(env.stdout, e)
		}
		return f.print(env, e)
	})
	if errors.Is(err, inspect.ErrFilter) {
		return usagef("%v", err)
	}
	return err
}

// print shows an entry as a heading and indented JSON.
func (f *dumpFlags) print(env *environment, e inspect.Entry) error {
	var b strings.Builder
	fmt.Fprintf(&b, "slot %s  %s  %s\n", slotName(e.Slot), e.Kind, firstOf(e.Key, e.Path))
	switch {
	case e.Error != "":
		fmt.Fprintf(&b, "    not readable: %s\n", e.Error)
	case e.Value != nil:
		text, err := json.MarshalIndent(e.Value, "    ", "  ")
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "    %s\n", text)
	}
	_, err := env.stdout.Write([]byte(b.String()))
	return err
}
