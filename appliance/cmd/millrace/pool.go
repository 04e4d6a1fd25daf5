package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/pflag"

	"github.com/millrace/millrace/mgmt/api"
)

func poolCommand() command {
	return command{
		name: "pool", args: "status|scrub [DIR]", summary: "show the pool of a running server, or start a scrub of it",
		details: `
status shows the pool, how far repair, filling and scrub have come, and its drives by slot. scrub begins to read and verify all
data of all drives now. ` + mgmtEnvironment,
		examples: `
millrace pool status ./var/demo
millrace pool status ./var/demo --watch
millrace pool status --mgmt https://10.0.0.7:9443 --credentials ./key --insecure --json
millrace pool scrub ./var/demo`,
		flags: func(fs *pflag.FlagSet) runner {
			f := &poolFlags{}
			f.register(fs)
			fs.BoolVar(&f.watch, "watch", false, "status: show it again every two seconds, until interrupted")
			fs.BoolVar(&f.json, "json", false, "print JSON, an object each time")
			return f.run
		},
	}
}

type poolFlags struct {
	mgmtFlags
	watch, json bool
}

// watchInterval is the time between two pictures of --watch.
const watchInterval = 2 * time.Second

func (f *poolFlags) run(ctx context.Context, env *environment, args []string) error {
	if len(args) == 0 || args[0] != "status" && args[0] != "scrub" {
		return usagef("want status or scrub")
	}
	dir, err := stateFolder(args[1:])
	if err != nil {
		return err
	}
	c, err := f.client(env, dir)
	if err != nil {
		return err
	}
	defer c.Close()
	if args[0] == "scrub" {
		return f.scrub(ctx, env, c)
	}
	for {
		if err := f.status(ctx, env, c); err != nil {
			return err
		}
		if !f.watch {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(watchInterval):
		}
	}
}

func (f *poolFlags) scrub(ctx context.Context, env *environment, c *api.Client) error {
	s, err := c.StartScrub(ctx)
	if err != nil {
		return err
	}
	if f.json {
		return writeJSON(env.stdout, s)
	}
	_, err = fmt.Fprintln(env.stdout, "a scrub of all drives begins; millrace pool status shows how far it is")
	return err
}

// poolStatus is what status prints as JSON.
type poolStatus struct {
	Pool   api.Pool    `json:"pool"`
	Drives []api.Drive `json:"drives"`
}

func (f *poolFlags) status(ctx context.Context, env *environment, c *api.Client) (err error) {
	var s poolStatus
	if s.Pool, err = c.Pool(ctx); err != nil {
		return err
	}
	if s.Drives, err = c.Drives(ctx); err != nil {
		return err
	}
	if f.json {
		return writeJSON(env.stdout, s)
	}
	var picture strings.Builder
	if f.watch && env.terminal {
		picture.WriteString("\x1b[H\x1b[2J")
	}
	drawPool(&picture, &s, time.Now())
	_, err = io.WriteString(env.stdout, picture.String())
	return err
}

func drawPool(w io.Writer, s *poolStatus, now time.Time) {
	p := &s.Pool
	fmt.Fprintf(w, "pool    %s  %s over %d drives  %s\n", p.ID, p.Scheme, len(s.Drives), strings.ToUpper(string(p.Status)))
	fmt.Fprintf(w, "space   %s %3d%%  %s of %s used; room for %s of objects\n", bar(p.RawUsedBytes, p.RawBytes, 30),
		percent(p.RawUsedBytes, p.RawBytes), binarySize(p.RawUsedBytes), binarySize(p.RawBytes), binarySize(p.ObjectFreeBytes))
	fmt.Fprintf(w, "repair  %s\n", repairText(&p.Repair))
	fill := "all drives have their records"
	if p.Filling {
		fill = fmt.Sprintf("%d index records copied to drives that lack them", p.FilledRecords)
	}
	fmt.Fprintf(w, "fill    %s\n", fill)
	fmt.Fprintf(w, "scrub   %s\n\n", scrubText(&p.Scrub, now))
	drawDrives(w, s.Drives, now)
}

func repairText(r *api.Repair) string {
	switch {
	case !r.Running && r.SegmentsFailed > 0:
		return fmt.Sprintf("%d segments can't be mended now", r.SegmentsFailed)
	case !r.Running:
		return "nothing to do"
	case r.Counting:
		return fmt.Sprintf("counting what is missing: %d segments so far", r.Segments)
	}
	text := progressText(&r.Progress) + fmt.Sprintf("  segments that miss %d", r.MissingShards)
	if r.SegmentsFailed > 0 {
		text += fmt.Sprintf(", %d not mended", r.SegmentsFailed)
	}
	return text
}

func scrubText(s *api.Scrub, now time.Time) string {
	var text string
	switch {
	case s.Running:
		text = progressText(&s.Progress)
	case s.Finished != nil:
		text = "ended " + ago(now.Sub(*s.Finished))
	default:
		text = "never yet"
	}
	if s.DamagedShards > 0 {
		text += fmt.Sprintf(", %d damaged shards found", s.DamagedShards)
	}
	if !s.Running && s.Next != nil {
		text += ", next " + ahead(s.Next.Sub(now))
	}
	return text
}

func progressText(p *api.Progress) string {
	left := "-:--"
	if p.SecondsLeft > 0 {
		left = clock(time.Duration(p.SecondsLeft) * time.Second)
	}
	return fmt.Sprintf("%s %3d%%  %s of %s  %s/s  %s left", bar(p.DoneBytes, p.TotalBytes, 30), percent(p.DoneBytes, p.TotalBytes),
		binarySize(p.DoneBytes), binarySize(p.TotalBytes), binarySize(p.BytesPerSecond), left)
}

func drawDrives(w io.Writer, drives []api.Drive, now time.Time) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "SLOT\tSTATE\tUSED\tOF\tERRORS\tSCRUB\tPATH")
	for i := range drives {
		d := &drives[i]
		scrub := "-"
		switch s := &d.Scrub; {
		case s.Running:
			scrub = fmt.Sprintf("%d%% %s/s", percent(s.DoneBytes, s.TotalBytes), binarySize(s.BytesPerSecond))
		case s.Finished != nil:
			scrub = ago(now.Sub(*s.Finished))
		}
		fmt.Fprintf(t, "%s\t%s\t%s %3d%%\t%s\t%d\t%s\t%s\n", slotName(d.Slot), stateText(d, now), bar(d.UsedBytes, d.SizeBytes, 10),
			percent(d.UsedBytes, d.SizeBytes), binarySize(d.SizeBytes), d.ReadErrors+d.ChecksumErrors, scrub, firstOf(d.Path, "-"))
	}
	t.Flush()
	for i := range drives {
		if drives[i].Error != "" {
			fmt.Fprintf(w, "slot %s failed: %s\n", slotName(drives[i].Slot), drives[i].Error)
		}
	}
}

func stateText(d *api.Drive, now time.Time) string {
	if d.OutSince == nil && d.Slow {
		return d.State + ", slow"
	}
	if d.OutSince == nil {
		return d.State
	}
	return d.State + " " + clock(now.Sub(*d.OutSince))
}

// bar draws a share of the whole.
func bar(part, whole int64, width int) string {
	full := 0
	if whole > 0 {
		full = int(float64(min(part, whole)) / float64(whole) * float64(width))
	}
	return "[" + strings.Repeat("=", full) + strings.Repeat(" ", width-full) + "]"
}

func percent(part, whole int64) int {
	if whole <= 0 {
		return 0
	}
	return int(float64(min(part, whole)) / float64(whole) * 100)
}

// clock prints a time as minutes and seconds, or hours, or days.
func clock(d time.Duration) string {
	switch {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	case d >= time.Hour:
		return fmt.Sprintf("%d:%02dh", int(d.Hours()), int(d.Minutes())%60)
	}
	d = max(d, 0)
	return fmt.Sprintf("%d:%02d", int(d.Minutes()), int(d.Seconds())%60)
}

func ago(d time.Duration) string {
	if d < time.Minute {
		return "just now"
	}
	return clock(d) + " ago"
}

func ahead(d time.Duration) string {
	if d < time.Minute {
		return "now"
	}
	return "in " + clock(d)
}
