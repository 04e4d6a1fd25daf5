package main

import (
	"context"
	"fmt"

	"github.com/spf13/pflag"

	"github.com/millrace/millrace/s3/client"
)

func rmCommand() command {
	return command{
		name: "rm", args: "s3://BUCKET/KEY ...", summary: "remove objects",
		details:  "With -r every key with the prefix is removed. " + clientEnvironment,
		examples: "millrace rm s3://photos/2026/cat.jpg\nmillrace rm -r s3://photos/2025/",
		flags: func(fs *pflag.FlagSet) runner {
			var f removeFlags
			f.register(fs)
			fs.BoolVarP(&f.recursive, "recursive", "r", false, "remove all keys with the prefix")
			fs.BoolVar(&f.json, "json", false, "print the number of objects removed as JSON")
			return f.rm
		},
	}
}

type removeFlags struct {
	endpointFlags
	recursive, json bool
}

func (f *removeFlags) rm(ctx context.Context, env *environment, args []string) error {
	if len(args) == 0 {
		return usagef("want s3://BUCKET/KEY")
	}
	var where []location
	for _, arg := range args {
		l, err := parseLocation(arg)
		if err != nil {
			return err
		}
		if l.key == "" && !f.recursive {
			return usagef("%q: no key; -r removes all objects of a bucket", arg)
		}
		where = append(where, l)
	}
	c, err := f.client(env, 0, 0)
	if err != nil {
		return err
	}
	defer c.Close()
	removed := 0
	for _, l := range where {
		n := 1
		if f.recursive {
			n, err = removeAll(ctx, c, l.bucket, l.key)
		} else {
			err = c.Delete(ctx, l.bucket, l.key)
		}
		if err != nil {
			return err
		}
		removed += n
	}
	if f.json {
		return writeJSON(env.stdout, map[string]int{"removed": removed})
	}
	return nil
}

// removeAll removes every key with the prefix, a page at a time, and tells how many there were.
func removeAll(ctx context.Context, c *client.Client, bucket, prefix string) (int, error) {
	removed := 0
	var keys []string
	flush := func() error {
		if len(keys) == 0 {
			return nil
		}
		err := c.DeleteMany(ctx, bucket, keys)
		removed += len(keys)
		keys = keys[:0]
		return err
	}
	for entry, err := range c.List(ctx, bucket, client.ListOptions{Prefix: prefix}) {
		if err != nil {
			return removed, err
		}
		if keys = append(keys, entry.Key); len(keys) == client.MaxDeleteKeys {
			if err := flush(); err != nil {
				return removed, err
			}
		}
	}
	return removed, flush()
}

func mbCommand() command {
	return command{name: "mb", args: "s3://BUCKET", summary: "make a bucket", details: clientEnvironment,
		examples: "millrace mb s3://photos",
		flags: func(fs *pflag.FlagSet) runner {
			var f endpointFlags
			f.register(fs)
			return func(ctx context.Context, env *environment, args []string) error {
				c, bucket, err := f.bucket(env, args)
				if err != nil {
					return err
				}
				defer c.Close()
				return c.CreateBucket(ctx, bucket)
			}
		}}
}

func rbCommand() command {
	return command{name: "rb", args: "s3://BUCKET", summary: "remove a bucket", details: clientEnvironment,
		examples: "millrace rb s3://photos\nmillrace rb --force s3://scratch",
		flags: func(fs *pflag.FlagSet) runner {
			var f endpointFlags
			f.register(fs)
			force := fs.Bool("force", false, "remove its objects first")
			return func(ctx context.Context, env *environment, args []string) error {
				c, bucket, err := f.bucket(env, args)
				if err != nil {
					return err
				}
				defer c.Close()
				if *force {
					if _, err := removeAll(ctx, c, bucket, ""); err != nil {
						return fmt.Errorf("empty the bucket: %w", err)
					}
				}
				return c.DeleteBucket(ctx, bucket)
			}
		}}
}

// bucket returns the client and the bucket of a command that takes just that.
func (f *endpointFlags) bucket(env *environment, args []string) (*client.Client, string, error) {
	if len(args) != 1 {
		return nil, "", usagef("want one s3://BUCKET")
	}
	l, err := parseLocation(args[0])
	if err != nil {
		return nil, "", err
	}
	if l.key != "" {
		return nil, "", usagef("%q: want a bucket, without a key", args[0])
	}
	c, err := f.client(env, 0, 0)
	return c, l.bucket, err
}
