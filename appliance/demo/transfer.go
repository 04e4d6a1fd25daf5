package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/millrace/millrace/appliance/cmd/millrace/sweep"
	"github.com/millrace/millrace/s3/client"
)

// transfer is one file moved, as the client and the server saw it.
type transfer struct {
	MiBPerS  float64 `json:"mib_per_s"`
	Seconds  float64 `json:"seconds"`
	Verified bool    `json:"verified"`
	client.Transfer
	clientCPU, serverCPU float64
	// counted are the bytes that the server's counters of RDMA rose by.
	counted int64
}

// transfer runs put or get, and reads the server's counters before and after it.
func (d *demo) transfer(ctx context.Context, op, mode, from, to string) (transfer, error) {
	var t transfer
	metrics := sweep.NewMetrics(d.server.mgmt)
	before, err := metrics.Read(ctx, false)
	if err != nil {
		return t, err
	}
	r, err := d.command(ctx, op, from, to, "--rdma", mode, "--json")
	if err != nil {
		return t, err
	}
	after, err := metrics.Read(ctx, false)
	if err != nil {
		return t, err
	}
	if err := json.Unmarshal(r.output, &t); err != nil {
		return t, fmt.Errorf("the output of %s: %w", op, err)
	}
	t.clientCPU, t.serverCPU = r.cpu.Seconds(), after.CPUSeconds-before.CPUSeconds
	for label, m := range after.RDMA {
		t.counted += m.Bytes - before.RDMA[label].Bytes
	}
	return t, nil
}

// check holds the counts against one another.
func (t *transfer) check(mode string, size int64) error {
	want, transport := int64(0), client.TransportHTTP
	if mode == "require" {
		want, transport = size, client.TransportRDMA
	}
	switch {
	case t.Transport != transport:
		return fmt.Errorf("carried by %s, not %s", t.Transport, transport)
	case t.RDMABytes != want || t.counted != want:
		return fmt.Errorf("the client counted %d bytes by RDMA, the server %d; want %d", t.RDMABytes, t.counted, want)
	case !t.Verified:
		return fmt.Errorf("the checksum was not verified")
	}
	return nil
}

// table prints the transfers.
type table struct{ w *tabwriter.Writer }

func newTable(out io.Writer) *table {
	t := &table{tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)}
	fmt.Fprintln(t.w, "\ntransport\tseconds\tMiB/s\tclient CPU s\tserver CPU s\tby RDMA, client\tby RDMA, server\tchecksum\t")
	return t
}

func (t *table) row(op string, x transfer) {
	checksum := "not verified"
	if x.Verified {
		checksum = "verified"
	}
	transport := x.Transport
	if x.Provider != "" {
		transport += " (" + x.Provider + ")"
	}
	fmt.Fprintf(t.w, "%s\t%s\t%.2f\t%.0f\t%.2f\t%.2f\t%d\t%d\t%s\t\n", op, transport, x.Seconds, x.MiBPerS,
		x.clientCPU, x.serverCPU, x.RDMABytes, x.counted, checksum)
}

func (t *table) flush() { _ = t.w.Flush() }
