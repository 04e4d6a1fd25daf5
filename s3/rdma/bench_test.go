package rdma

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"github.com/millrace/millrace/s3/gateway"
	"github.com/millrace/millrace/verbs"
	"github.com/millrace/millrace/verbs/iwarp"
	"github.com/millrace/millrace/verbs/nullverbs"
)

// BenchmarkTransfer opens a transfer, moves 1 MiB of registered memory, and closes it: by a provider that
// moves nothing, what the rest costs; by the soft one, both sides.
func BenchmarkTransfer(b *testing.B) {
	const n = 1 << 20
	client := iwarp.Open(iwarp.Config{})
	defer client.Close()
	region, err := client.Register(make([]byte, n))
	if err != nil {
		b.Fatal(err)
	}
	l, err := client.Listen(netip.MustParseAddrPort("127.0.0.1:0"), nil)
	if err != nil {
		b.Fatal(err)
	}
	binding, err := region.Bind(0, n, verbs.RemoteRead|verbs.RemoteWrite)
	if err != nil {
		b.Fatal(err)
	}
	r := gateway.RDMARequest{
		Window: binding.Window(l.Endpoint()), SizeBytes: n, Peer: netip.MustParseAddr("127.0.0.1"), AccessKey: "AK",
	}
	for _, device := range []verbs.Device{nullverbs.Open(), iwarp.Open(iwarp.Config{})} {
		defer device.Close()
		memory := make([]byte, n)
		t, err := New(Config{Device: device, Memory: memory})
		if err != nil {
			b.Fatal(err)
		}
		defer t.Close()
		for _, write := range []bool{true, false} {
			b.Run(fmt.Sprintf("%s/write=%v", device.Info().Provider, write), func(b *testing.B) {
				b.ReportAllocs()
				b.SetBytes(n)
				for b.Loop() {
					benchmarkOne(b, t, r, memory, write)
				}
			})
		}
	}
}

func benchmarkOne(b *testing.B, t *Transport, r gateway.RDMARequest, memory []byte, write bool) {
	x, err := t.Open(context.Background(), r)
	if err != nil {
		b.Fatal(err)
	}
	if write {
		_, err = x.Write(memory)
	} else {
		_, err = x.Read(memory)
	}
	if err != nil {
		b.Fatal(err)
	}
	x.Close()
}
