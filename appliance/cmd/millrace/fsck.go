package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/pflag"

	"github.com/millrace/millrace/appliance/config"
	"github.com/millrace/millrace/appliance/inspect"
	"github.com/millrace/millrace/appliance/object"
	"github.com/millrace/millrace/appliance/server"
)

// errFaults is the end of a check that found faults. They are printed before.
var errFaults = errors.New("faults found")

func fsckCommand() command {
	return command{
		name: "fsck", args: "DIR", summary: "check the drives of a pool that is not being served",
		details: `
Compares everything that the records on the drives say: with each other, with the shards that are there, and with the free
space. With --deep it also reads all data and verifies its checksums. DIR is a virtual JBOF; real drives are
given by --drive instead. No byte of a drive is changed: what a start would complete or clear up after a
crash is done on a copy, in the system's folder for temporary files (TMPDIR), and reported.
Drives that are missing are reported; as long as the pool can lose them they are no fault.
Exit code: 0 if the pool is sound, 1 if there are faults or it could not be checked, 2 for wrong usage.`,
		examples: `
millrace fsck ./var/demo
millrace fsck --deep --json ./var/demo
millrace fsck --drive /dev/nvme0n1 --drive /dev/nvme1n1 --drive /dev/nvme2n1`,
		flags: func(fs *pflag.FlagSet) runner {
			f := &fsckFlags{}
			f.register(fs)
			fs.BoolVar(&f.deep, "deep", false, "read all data, too")
			fs.BoolVar(&f.json, "json", false, "print JSON")
			fs.BoolVarP(&f.quiet, "quiet", "q", false, "no progress bar")
			return f.run
		},
	}
}

// drivesFlags say which drives to look at.
type drivesFlags struct {
	drives  []string
	verbose bool
}

func (f *drivesFlags) register(fs *pflag.FlagSet) {
	fs.StringArrayVar(&f.drives, "drive", nil, "look at the block device or folder at `PATH`, instead of DIR (repeatable)")
	fs.BoolVarP(&f.verbose, "verbose", "v", false, "log what happens to standard error")
}

// open opens the drives of the one argument DIR, or of --drive.
func (f *drivesFlags) open(ctx context.Context, env *environment, args []string) (*inspect.Drives, error) {
	paths := f.drives
	switch {
	case len(args) > 1:
		return nil, usagef("unexpected argument %q", args[1])
	case len(args) == 1 && len(paths) > 0:
		return nil, usagef("DIR and --drive exclude each other")
	case len(args) == 1:
		var err error
		if paths, err = server.VirtualDrives(args[0]); err != nil {
			return nil, err
		}
		if len(paths) == 0 {
			return nil, usagef("%s: no drives in it", args[0])
		}
	case len(paths) == 0:
		return nil, usagef("want DIR or --drive PATH")
	}
	log := slog.New(slog.DiscardHandler)
	if f.verbose {
		log = slog.New(slog.NewTextHandler(env.stderr, nil))
	}
	return inspect.Open(ctx, paths, log)
}

type fsckFlags struct {
	drivesFlags
	deep, json, quiet bool
}

func (f *fsckFlags) run(ctx context.Context, env *environment, args []string) (err error) {
	drives, err := f.open(ctx, env, args)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, drives.Close()) }()
	stop := func() {}
	if f.deep {
		stop = follow(env, f.quiet || f.json, drives)
	}
	report, err := drives.Fsck(ctx, f.deep)
	stop()
	if err != nil {
		return err
	}
	if f.json {
		err = writeJSON(env.stdout, report)
	} else {
		err = printReport(env.stdout, report)
	}
	if err == nil && !report.Sound {
		err = errFaults
	}
	return err
}

// follow draws a bar of what a deep check has read, until it is stopped.
func follow(env *environment, quiet bool, drives *inspect.Drives) (stop func()) {
	_, total := drives.Progress()
	bar := newProgress(env, quiet, "reading", total)
	ended, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			read, _ := drives.Progress()
			bar.done.Store(read)
			select {
			case <-ended:
				return
			case <-time.After(progressInterval):
			}
		}
	}()
	return func() {
		close(ended)
		<-done
		bar.finish()
	}
}

// maxShownFaults bounds the faults of one kind that are printed for people.
const maxShownFaults = 20

func printReport(w io.Writer, r *inspect.Report) error {
	if r.Pool != "" {
		fmt.Fprintf(w, "pool %s, scheme %s, map of epoch %d\n\n", r.Pool, r.Scheme, r.Epoch)
	}
	slices.SortStableFunc(r.Drives, func(a, b inspect.DriveReport) int { return a.Slot - b.Slot })
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "SLOT\tSTATE\tUSED\tOF\tSHARDS\tDRIVE\tPATH")
	for _, d := range r.Drives {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%d\t%s\t%s\n", slotName(d.Slot), d.State, binarySize(d.DataBytes-d.FreeBytes),
			binarySize(d.DataBytes), d.Shards, firstOf(d.Drive, "-"), firstOf(d.Path, "-"))
	}
	t.Flush()
	fmt.Fprintf(w, "\nchecked: %d records, %d segments, %d shards", r.Records, r.Segments, r.Shards)
	if r.Deep {
		fmt.Fprintf(w, ", and %s of data read\n", binarySize(r.ReadBytes))
	} else {
		fmt.Fprint(w, "; the data itself was not read (--deep reads it)\n")
	}
	if r.RolledForward+r.Broken > 0 {
		fmt.Fprintf(w, "the next start completes %d changes and frees %d shards of writes that were broken off; that is no fault\n",
			r.RolledForward, r.Broken)
	}
	if r.Degraded > 0 {
		fmt.Fprintf(w, "degraded: %d segments can be read, and have fewer shards than they should\n", r.Degraded)
	}
	printFaults(w, r)
	var err error
	if r.Sound {
		_, err = fmt.Fprintln(w, "the pool is sound"+missingNote(r))
	} else {
		_, err = fmt.Fprintln(w, "the pool is NOT sound"+missingNote(r))
	}
	return err
}

func missingNote(r *inspect.Report) string {
	var slots []string
	for _, d := range r.Drives {
		if d.State == inspect.Missing {
			slots = append(slots, slotName(d.Slot))
		}
	}
	if len(slots) == 0 {
		return ""
	}
	return "; missing: slot " + strings.Join(slots, ", ")
}

func printFaults(w io.Writer, r *inspect.Report) {
	for _, kind := range faultKinds() {
		n := r.FaultCount[kind.kind]
		if n == 0 {
			continue
		}
		fmt.Fprintf(w, "\n%s (%d)\n", kind.what, n)
		shown := 0
		for _, f := range r.Faults {
			if f.Kind == kind.kind && shown < maxShownFaults {
				shown++
				fmt.Fprintln(w, "  "+object.Fault{Kind: f.Kind, Slot: f.Slot, Text: f.Text}.String())
			}
		}
		if n > shown {
			fmt.Fprintf(w, "  and %d more\n", n-shown)
		}
		fmt.Fprintf(w, "  What to do: %s\n", kind.advice)
	}
	if !r.Sound {
		fmt.Fprintln(w)
	}
}

// faultKind tells people what a kind of fault means and what helps.
type faultKind struct {
	kind         object.FaultKind
	what, advice string
}

func faultKinds() []faultKind {
	return []faultKind{
		{inspect.PoolFault, "drives that can't be used, or no pool to open",
			"find out why from the text. A drive that can't be opened counts as missing at a start; with more of them missing " +
				"than the scheme has parity shards, bring drives back before anything else."},
		{object.LostFault, "segments that can't be read any more",
			"bring missing drives back. What remains lost must come from another copy: these objects give errors, all others are whole."},
		{object.DriveFault, "drives whose own records contradict each other",
			"take the drive out (pull it, or move its folder away) and serve the pool without it: its shards are made anew on the others."},
		{object.RecordFault, "index records that can't be right",
			"store these objects again, or delete them. If one drive has many, take it out."},
		{object.ReplicaFault, "index records that differ between drives",
			"if one drive differs from all others, take it out and bring it back after a start: it is then filled anew from the others."},
		{object.DataFault, "data that does not match its checksum",
			"serve the pool and run millrace pool scrub: the blocks are made anew from the other shards. If it happens again, replace the drive."},
		{object.MissingFault, "shards that are missing",
			"serve the pool: they are made anew from the other shards in the background."},
		{object.PlaceFault, "records on a drive that they do not belong to",
			"nothing; they are removed when drives are next filled."},
		{object.OrphanFault, "shards that nothing refers to",
			"nothing is lost but their space. It is free again when the drive is taken out and brought back."},
	}
}

func slotName(slot int) string {
	if slot < 0 {
		return "-"
	}
	return fmt.Sprintf("%02d", slot)
}

// binarySize prints a size with three digits or so.
func binarySize(n int64) string {
	units := []struct {
		name string
		size config.Size
	}{{"TiB", config.TiB}, {"GiB", config.GiB}, {"MiB", config.MiB}, {"KiB", config.KiB}}
	for _, u := range units {
		if n >= int64(u.size) {
			return fmt.Sprintf("%.1f %s", float64(n)/float64(u.size), u.name)
		}
	}
	return fmt.Sprintf("%d B", n)
}
