package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spf13/pflag"

	"github.com/millrace/millrace/appliance/config"
	"github.com/millrace/millrace/s3/client"
)

// transferFlags are what get and put have in common.
type transferFlags struct {
	endpointFlags
	partSize config.Size
	parallel int
	json     bool
	quiet    bool
}

func (f *transferFlags) register(fs *pflag.FlagSet) {
	f.endpointFlags.register(fs)
	f.partSize = client.DefaultPartBytes
	fs.Var(&f.partSize, "part-size", "move objects larger than `SIZE` in parts of it")
	fs.IntVar(&f.parallel, "parallel", client.DefaultParallel, "move `N` parts at the same time")
	fs.BoolVar(&f.json, "json", false, "print the result as JSON")
	fs.BoolVarP(&f.quiet, "quiet", "q", false, "no progress bar")
}

func (f *transferFlags) check() error {
	if f.partSize < config.MiB || f.partSize > 5*config.GiB {
		return usagef("--part-size %v: want 1MiB to 5GiB", f.partSize)
	}
	if f.parallel < 1 || f.parallel > client.MaxParallel {
		return usagef("--parallel %d: want 1 to %d", f.parallel, client.MaxParallel)
	}
	return nil
}

// transferResult is what --json prints of one object moved.
type transferResult struct {
	Object    string  `json:"object"`
	File      string  `json:"file"`
	SizeBytes int64   `json:"size_bytes"`
	ETag      string  `json:"etag"`
	Parts     int     `json:"parts,omitempty"`
	Seconds   float64 `json:"seconds"`
	MiBPerS   float64 `json:"mib_per_s"`
	// Verified: the bytes were compared with the checksum of the whole object.
	Verified bool `json:"verified"`
	client.Transfer
}

func (r *transferResult) timed(start time.Time) {
	r.Seconds = time.Since(start).Seconds()
	r.MiBPerS = float64(r.SizeBytes) / (1 << 20) / max(r.Seconds, 1e-9)
}

// print prints the result: as JSON, or in words to standard error.
func (r *transferResult) print(env *environment, asJSON bool, verb string) error {
	if asJSON {
		return writeJSON(env.stdout, r)
	}
	checked := "verified"
	if !r.Verified {
		checked = "not verified: the server gave no checksum"
	}
	_, err := fmt.Fprintf(env.stderr, "%s %s, %d bytes in %.2f s (%.1f MiB/s by %s), %s\n",
		verb, r.Object, r.SizeBytes, r.Seconds, r.MiBPerS, carrier(r.Transfer), checked)
	return err
}

// carrier names the transport, with the provider, or with the reason why it was not RDMA.
func carrier(t client.Transfer) string {
	switch {
	case t.Transport == client.TransportRDMA:
		return "RDMA, " + t.Provider
	case t.Reason != "":
		return "HTTP: " + t.Reason
	}
	return "HTTP"
}

func getCommand() command {
	return command{
		name: "get", args: "s3://BUCKET/KEY [FILE|-]", summary: "download an object",
		details: `The object goes to FILE (- is standard output), by default to the last part of the key. FILE appears when
all bytes are there and match the object's checksum. ` + clientEnvironment,
		examples: `
millrace get s3://photos/2026/cat.jpg
millrace get s3://backups/db.tar /tmp/ --parallel 8
millrace get s3://backups/db.tar - | tar t`,
		flags: func(fs *pflag.FlagSet) runner {
			var f transferFlags
			f.register(fs)
			return f.get
		},
	}
}

func (f *transferFlags) get(ctx context.Context, env *environment, args []string) error {
	if len(args) < 1 || len(args) > 2 {
		return usagef("want s3://BUCKET/KEY and perhaps a FILE")
	}
	from, err := parseLocation(args[0])
	if err != nil {
		return err
	}
	if from.key == "" {
		return usagef("%q: no key", args[0])
	}
	target := ""
	if len(args) == 2 {
		target = args[1]
	}
	if target, err = targetFile(target, from.key); err != nil {
		return err
	}
	if target == "-" && f.json {
		return usagef("--json and - exclude each other: both are standard output")
	}
	if err := f.check(); err != nil {
		return err
	}
	c, err := f.client(env, f.parallel, (int64(f.parallel)+1)*int64(f.partSize))
	if err != nil {
		return err
	}
	defer c.Close()
	if target == "-" {
		return f.getToStream(ctx, env, c, from, env.stdout, target)
	}
	// What a name leads to is what is written; a device or a pipe is never replaced by a file.
	if followed, err := filepath.EvalSymlinks(target); err == nil {
		target = followed
	}
	if info, err := os.Stat(target); err == nil && !info.Mode().IsRegular() {
		w, err := os.OpenFile(target, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		return errors.Join(f.getToStream(ctx, env, c, from, w, target), w.Close())
	}
	return f.getToFile(ctx, env, c, from, target)
}

// targetFile finds the file's name: a folder gets the last part of the key.
func targetFile(target, key string) (string, error) {
	if target == "-" {
		return target, nil
	}
	info, err := os.Stat(target)
	folder := target == "" || strings.HasSuffix(target, "/") || err == nil && info.IsDir()
	if !folder {
		return target, nil
	}
	base := path.Base(key)
	if strings.HasSuffix(key, "/") || base == "." || base == ".." || strings.ContainsAny(base, "\\\x00") {
		return "", usagef("the key %q does not end in a file's name: give FILE", key)
	}
	return filepath.Join(target, base), nil
}

// getToStream writes front to back, to what has no place to write at.
func (f *transferFlags) getToStream(
	ctx context.Context, env *environment, c *client.Client, from location, w io.Writer, name string,
) error {
	start := time.Now()
	result, err := c.Get(ctx, from.bucket, from.key, w, client.GetOptions{})
	if err != nil {
		return err
	}
	r := transferResult{Object: from.String(), File: name, SizeBytes: result.Bytes, ETag: result.Info.ETag,
		Verified: result.Verified, Transfer: result.Transfer}
	r.timed(start)
	if f.quiet && !f.json {
		return nil
	}
	return r.print(env, f.json, "got")
}

func (f *transferFlags) getToFile(
	ctx context.Context, env *environment, c *client.Client, from location, target string,
) error {
	start := time.Now()
	temp, err := os.CreateTemp(filepath.Dir(target), "."+filepath.Base(target)+".part-*")
	if err != nil {
		return err
	}
	defer os.Remove(temp.Name()) // gone already after the rename
	info, err := c.Head(ctx, from.bucket, from.key)
	if err != nil {
		temp.Close()
		return err
	}
	bar := newProgress(env, f.quiet || f.json, from.key, info.SizeBytes)
	result, err := c.Download(ctx, from.bucket, from.key, &serialWriter{w: temp}, client.DownloadOptions{Info: &info,
		PartBytes: int64(f.partSize), Parallel: f.parallel, Progress: bar.add})
	bar.finish()
	// CreateTemp gives 0600; a download is an ordinary file.
	err = errors.Join(err, temp.Chmod(0o644), temp.Close())
	if err != nil {
		return err
	}
	if err := os.Rename(temp.Name(), target); err != nil {
		return err
	}
	r := transferResult{Object: from.String(), File: target, SizeBytes: result.Bytes, ETag: result.Info.ETag,
		Verified: result.Verified, Transfer: result.Transfer}
	r.timed(start)
	return r.print(env, f.json, "got")
}

// serialWriter lets one goroutine write at a time. The kernel lets no more write to a file at once either, and has those that
// wait burn their processors meanwhile (the lock of the inode spins).
type serialWriter struct {
	mu sync.Mutex
	w  io.WriterAt
}

// WriteAt implements io.WriterAt.
func (s *serialWriter) WriteAt(b []byte, off int64) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.WriteAt(b, off)
}

func putCommand() command {
	return command{
		name: "put", args: "FILE|- s3://BUCKET/[KEY]", summary: "upload a file",
		details: `The file (- is standard input) becomes one object; a key that is empty or ends in / gets the file's name.
Large files go as a multipart upload, several parts at the same time. ` + clientEnvironment,
		examples: `
millrace put cat.jpg s3://photos/2026/
tar c . | millrace put - s3://backups/tree.tar
millrace put disk.img s3://images/disk.img --part-size 64MiB --parallel 8 --json`,
		flags: func(fs *pflag.FlagSet) runner {
			p := &putFlags{}
			p.register(fs)
			fs.StringVar(&p.contentType, "content-type", "", "`TYPE` of the object (default by the file's name)")
			return p.put
		},
	}
}

type putFlags struct {
	transferFlags
	contentType string
}

func (f *putFlags) put(ctx context.Context, env *environment, args []string) error {
	if len(args) != 2 {
		return usagef("want FILE and s3://BUCKET/KEY")
	}
	source := args[0]
	to, err := parseLocation(args[1])
	if err != nil {
		return err
	}
	if to.key == "" || strings.HasSuffix(to.key, "/") {
		if source == "-" {
			return usagef("%q: standard input needs a whole key", args[1])
		}
		to.key += filepath.Base(source)
	}
	if err := f.check(); err != nil {
		return err
	}
	body, size, err := openSource(env, source)
	if err != nil {
		return err
	}
	defer body.Close()
	c, err := f.client(env, f.parallel, (int64(f.parallel)+1)*int64(f.partSize))
	if err != nil {
		return err
	}
	defer c.Close()
	start := time.Now()
	bar := newProgress(env, f.quiet || f.json, source, size)
	result, err := c.Upload(ctx, to.bucket, to.key, body, client.UploadOptions{
		PutOptions: client.PutOptions{ContentType: firstOf(f.contentType, mime.TypeByExtension(path.Ext(to.key)))},
		PartBytes:  int64(f.partSize), Parallel: f.parallel, SizeBytes: size, Progress: bar.add})
	bar.finish()
	if err != nil {
		return err
	}
	r := transferResult{Object: to.String(), File: source, SizeBytes: result.SizeBytes, ETag: result.ETag,
		Parts: result.Parts, Verified: result.ChecksumVerified, Transfer: result.Transfer}
	r.timed(start)
	return r.print(env, f.json, "put")
}

// openSource opens the file, or standard input; its size is 0 where it isn't known.
func openSource(env *environment, source string) (io.ReadCloser, int64, error) {
	if source == "-" {
		return io.NopCloser(env.stdin), 0, nil
	}
	f, err := os.Open(source)
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err == nil && info.IsDir() {
		err = fmt.Errorf("%s is a folder", source)
	}
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	if !info.Mode().IsRegular() {
		return f, 0, nil
	}
	return f, info.Size(), nil
}
