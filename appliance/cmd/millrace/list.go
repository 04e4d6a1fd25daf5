package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"github.com/millrace/millrace/s3/client"
)

func lsCommand() command {
	return command{
		name: "ls", args: "[s3://BUCKET[/PREFIX]]", summary: "list buckets or objects",
		details: "Without an argument it lists buckets; with one, what is in the folder, or, with -r, every key\n" +
			"with the prefix. " + clientEnvironment,
		examples: "millrace ls\nmillrace ls s3://photos/2026/\nmillrace ls -r s3://photos --json",
		flags: func(fs *pflag.FlagSet) runner {
			var f listFlags
			f.register(fs)
			fs.BoolVarP(&f.recursive, "recursive", "r", false, "list all keys, not folders")
			fs.BoolVar(&f.json, "json", false, "print one JSON object a line")
			return f.ls
		},
	}
}

type listFlags struct {
	endpointFlags
	recursive, json bool
}

// listLine is what --json prints of one entry.
type listLine struct {
	Bucket    string     `json:"bucket"`
	Key       string     `json:"key,omitempty"`
	Prefix    string     `json:"prefix,omitempty"`
	SizeBytes *int64     `json:"size_bytes,omitempty"`
	ETag      string     `json:"etag,omitempty"`
	Modified  *time.Time `json:"modified,omitempty"`
}

func (f *listFlags) ls(ctx context.Context, env *environment, args []string) error {
	if len(args) > 1 {
		return usagef("unexpected argument %q", args[1])
	}
	var where location
	if len(args) == 1 && args[0] != "s3://" {
		var err error
		if where, err = parseLocation(args[0]); err != nil {
			return err
		}
	}
	c, err := f.client(env, 0, 0)
	if err != nil {
		return err
	}
	defer c.Close()
	if where.bucket == "" {
		return f.buckets(ctx, env, c)
	}
	options := client.ListOptions{Prefix: where.key, Delimiter: "/"}
	if f.recursive {
		options.Delimiter = ""
	}
	for entry, err := range c.List(ctx, where.bucket, options) {
		if err != nil {
			return err
		}
		if err := f.print(env, where.bucket, entry); err != nil {
			return err
		}
	}
	return nil
}

func (f *listFlags) print(env *environment, bucket string, e client.Entry) (err error) {
	switch {
	case f.json && e.IsPrefix:
		return writeJSON(env.stdout, listLine{Bucket: bucket, Prefix: e.Key})
	case f.json:
		return writeJSON(env.stdout, listLine{Bucket: bucket, Key: e.Key, SizeBytes: &e.SizeBytes, ETag: e.ETag,
			Modified: &e.Modified})
	case e.IsPrefix:
		_, err = fmt.Fprintf(env.stdout, "%19s  %15s  %s\n", "", "", e.Key)
	default:
		_, err = fmt.Fprintf(env.stdout, "%s  %15d  %s\n", e.Modified.Format(time.DateTime), e.SizeBytes, e.Key)
	}
	return err
}

func (f *listFlags) buckets(ctx context.Context, env *environment, c *client.Client) error {
	buckets, err := c.ListBuckets(ctx)
	if err != nil {
		return err
	}
	for _, b := range buckets {
		if f.json {
			err = writeJSON(env.stdout, b)
		} else {
			_, err = fmt.Fprintf(env.stdout, "%s  %s\n", b.Created.Format(time.DateTime), b.Name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
