package main

import (
	"context"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/pflag"
)

func driveCommand() command {
	return command{
		name: "drive", args: "list [DIR]", summary: "list the drives of a running server",
		details: `
Lists the slots of the pool: which drive is in each, where it was found, and what it has done and
failed to do since the start. ` + mgmtEnvironment,
		examples: `
millrace drive list ./var/demo
millrace drive list --mgmt https://10.0.0.7:9443 --credentials ./key --insecure --json`,
		flags: func(fs *pflag.FlagSet) runner {
			f := &mgmtFlags{}
			f.register(fs)
			asJSON := fs.Bool("json", false, "print one JSON object a drive")
			return func(ctx context.Context, env *environment, args []string) error {
				if len(args) == 0 || args[0] != "list" {
					return usagef("want list")
				}
				return listDrives(ctx, env, f, args[1:], *asJSON)
			}
		},
	}
}

func listDrives(ctx context.Context, env *environment, f *mgmtFlags, args []string, asJSON bool) error {
	dir, err := stateFolder(args)
	if err != nil {
		return err
	}
	c, err := f.client(env, dir)
	if err != nil {
		return err
	}
	defer c.Close()
	drives, err := c.Drives(ctx)
	if err != nil {
		return err
	}
	if asJSON {
		for i := range drives {
			if err := writeJSON(env.stdout, drives[i]); err != nil {
				return err
			}
		}
		return nil
	}
	t := tabwriter.NewWriter(env.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "SLOT\tSTATE\tDRIVE\tUSED\tOF\tSHARDS\tREAD\tWRITTEN\tREAD ERRORS\tBAD BLOCKS\tPATH")
	for i := range drives {
		d := &drives[i]
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\t%d\t%d\t%s\n", slotName(d.Slot), stateText(d, time.Now()), d.ID,
			binarySize(d.UsedBytes), binarySize(d.SizeBytes), d.Shards, binarySize(int64(d.ReadBytes)),
			binarySize(int64(d.WrittenBytes)), d.ReadErrors, d.ChecksumErrors, firstOf(d.Path, "-"))
	}
	return t.Flush()
}
