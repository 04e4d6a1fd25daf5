//go:build linux

package ibverbs_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/millrace/millrace/verbs"
	"github.com/millrace/millrace/verbs/ibverbs"
)

// BenchmarkTransfer moves bytes between two windows of one device, by its own address. It needs a device.
func BenchmarkTransfer(b *testing.B) {
	d, addr := openHardware(b, ibverbs.Config{})
	r := registerHardware(b, d, 2<<20)
	c, w := linkPair(b, d, addr, r)
	for _, n := range []int{4 << 10, 64 << 10, 1 << 20} {
		for _, pieces := range []int{1, 16} {
			b.Run(fmt.Sprintf("WRITE %d KiB in %d", n>>10, pieces), func(b *testing.B) {
				info := d.Info()
				info.MaxMessageBytes = int64(n / pieces)
				req := verbs.NewRequester(info, 32)
				local := [][]byte{r.Bytes()[1<<20:][:n]}
				b.SetBytes(int64(n))
				b.ReportAllocs()
				for b.Loop() {
					if err := req.Write(context.Background(), c, w, 0, local, false); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
