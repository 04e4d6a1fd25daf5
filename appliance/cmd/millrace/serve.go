package main

import (
	"context"
	"log/slog"

	"github.com/spf13/pflag"

	"github.com/millrace/millrace/appliance/config"
	"github.com/millrace/millrace/appliance/server"
)

func serveCommand() command {
	return command{
		name: "serve", summary: "run the appliance: S3 over drives",
		details: `
With --dir a virtual JBOF of file drives is made in DIR/drives at the first start. With --drive, real drives
or folders are used. The first access key comes from MILLRACE_ROOT_ACCESS_KEY and MILLRACE_ROOT_SECRET_KEY;
without them one is generated, printed once and kept in DIR/credentials.`,
		examples: `
millrace serve --dir ./var/demo
millrace serve --dir ./var/demo --drives 8 --drive-size 1GiB --scheme 6+2 --listen 0.0.0.0:9000
millrace serve --drive /dev/nvme0n1 --drive /dev/nvme1n1 --drive /dev/nvme2n1 --state-dir /var/lib/millrace
millrace serve --config /etc/millrace.toml --log-format json`,
		flags: func(fs *pflag.FlagSet) runner {
			flags := config.NewFlags(fs)
			return func(ctx context.Context, env *environment, args []string) error {
				if len(args) > 0 {
					return usagef("unexpected argument %q", args[0])
				}
				c, err := flags.Config()
				if err != nil {
					return usagef("%v", err)
				}
				return server.Run(ctx, c, server.Options{Stdout: env.stdout, Logger: newLogger(&c, env), Version: version,
					Getenv: env.getenv})
			}
		},
	}
}

// newLogger logs to standard error.
func newLogger(c *config.Config, env *environment) *slog.Logger {
	level, _ := c.Level() // validated
	options := &slog.HandlerOptions{Level: level}
	if c.LogFormat == config.LogJSON {
		return slog.New(slog.NewJSONHandler(env.stderr, options))
	}
	return slog.New(slog.NewTextHandler(env.stderr, options))
}
