// Command demo shows S3 over RDMA on one machine: it serves a virtual JBOF in a temporary folder, puts a file of
// the size of a checkpoint by HTTP and by RDMA, gets each back by the other, compares the bytes, and prints
// what the client and the server counted.
//
// It is no benchmark: all runs on one machine, the drives are files, and the RDMA is that of the soft
// provider, over TCP. Its figures say nothing of a NIC that moves the bytes.
//
// Invariant: it ends by itself within its limit of time, with the server stopped and the folder removed, and
// its exit code is 0 only if every byte and every count was right.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/millrace/millrace/appliance/config"
)

const (
	drives    = 6
	scheme    = "4+2"
	probeSize = 32 * config.MiB
	// goal is how long the four transfers should take together at most.
	goal = 24 * time.Second
)

func main() {
	millrace := flag.String("millrace", "bin/millrace", "the binary to show")
	dir := flag.String("dir", "", "make the temporary folder in this one")
	limit := flag.Duration("limit", 55*time.Second, "give up after so long")
	size := config.GiB
	flag.Var(&size, "size", "size of the file at most; less where space or time is short")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, *limit)
	defer cancel()
	if err := run(ctx, *millrace, *dir, int64(size)); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// run does it all in a temporary folder.
func run(ctx context.Context, millrace, parent string, most int64) (err error) {
	root, err := os.MkdirTemp(parent, "millrace-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(root)) }()
	most, err = fitting(root, most)
	if err != nil {
		return err
	}
	s, err := startServer(ctx, millrace, root, most)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	fmt.Printf("a virtual JBOF of %d drives, %s; S3 at %s\n", drives, scheme, s.endpoint)
	d := &demo{server: s, millrace: millrace, root: root}
	size, err := d.choose(ctx, most)
	if err != nil {
		return err
	}
	return d.show(ctx, size)
}

// fitting is the largest size, up to most, for which there is space: the file, two copies of it, and both objects with
// their parity.
func fitting(root string, most int64) (int64, error) {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(root, &fs); err != nil {
		return 0, err
	}
	free := int64(fs.Bavail) * fs.Bsize
	const reserve = 512 << 20
	most = min(most, (free-reserve)/7) / int64(config.MiB) * int64(config.MiB)
	if most < int64(probeSize) {
		return 0, fmt.Errorf("%v free in %s: too little; -dir names another folder", config.Size(free), root)
	}
	return most, nil
}

// demo is one showing.
type demo struct {
	server   *server
	millrace string
	root     string
}

// choose measures the slowest of the transfers on a small file, and chooses a size that can be shown in time.
func (d *demo) choose(ctx context.Context, most int64) (int64, error) {
	if _, err := d.command(ctx, "mb", "s3://demo"); err != nil {
		return 0, err
	}
	probe, err := d.file("probe", int64(probeSize))
	if err != nil {
		return 0, err
	}
	start := time.Now()
	if _, err := d.transfer(ctx, "put", "off", probe, "s3://demo/probe"); err != nil {
		return 0, err
	}
	perByte := time.Since(start).Seconds() / float64(probeSize)
	size := min(most, int64(goal.Seconds()/4/perByte))
	size = max(size/int64(config.MiB)*int64(config.MiB), int64(probeSize))
	fmt.Printf("the file: %v", config.Size(size))
	if size < most {
		fmt.Print(" (as much as this machine does in the time)")
	}
	fmt.Println()
	return size, nil
}

// show does the four transfers and prints the table.
func (d *demo) show(ctx context.Context, size int64) error {
	source, err := d.file("checkpoint", size)
	if err != nil {
		return err
	}
	table := newTable(os.Stdout)
	defer table.flush()
	byRDMA, byHTTP := filepath.Join(d.root, "by-rdma"), filepath.Join(d.root, "by-http")
	for _, step := range []struct{ op, mode, from, to string }{
		{"put", "off", source, "s3://demo/by-http"},
		{"put", "require", source, "s3://demo/by-rdma"},
		{"get", "require", "s3://demo/by-http", byRDMA},
		{"get", "off", "s3://demo/by-rdma", byHTTP},
	} {
		t, err := d.transfer(ctx, step.op, step.mode, step.from, step.to)
		if err != nil {
			return err
		}
		table.row(step.op, t)
		if err := t.check(step.mode, size); err != nil {
			return fmt.Errorf("%s %s: %w", step.op, step.to, err)
		}
	}
	table.flush()
	for _, copied := range []string{byRDMA, byHTTP} {
		if err := same(source, copied); err != nil {
			return err
		}
	}
	fmt.Println("\nBoth files are the bytes that were put: what HTTP stored came back by RDMA, and the other way round.")
	fmt.Println("The server's counters agree with the client's. The RDMA was soft: iWARP over TCP, no hardware.")
	return nil
}

// file makes a file of bytes that can't be compressed.
func (d *demo) file(name string, size int64) (string, error) {
	path := filepath.Join(d.root, name)
	f, err := os.Create(path)
	if err != nil {
		return "", err
	}
	_, err = io.CopyN(f, noise(), size)
	return path, errors.Join(err, f.Close())
}

// same compares two files.
func same(a, b string) error {
	fa, err := os.Open(a)
	if err != nil {
		return err
	}
	defer fa.Close()
	fb, err := os.Open(b)
	if err != nil {
		return err
	}
	defer fb.Close()
	bufA, bufB := make([]byte, 1<<20), make([]byte, 1<<20)
	for {
		n, errA := io.ReadFull(fa, bufA)
		m, errB := io.ReadFull(fb, bufB)
		if n != m || string(bufA[:n]) != string(bufB[:m]) {
			return fmt.Errorf("%s and %s differ", a, b)
		}
		if errA != nil || errB != nil {
			return unlessEnd(errA, errB)
		}
	}
}

func unlessEnd(errs ...error) error {
	for _, err := range errs {
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return err
		}
	}
	return nil
}
