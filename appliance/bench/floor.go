package main

import (
	"fmt"
	"io"
	"syscall"

	"github.com/millrace/millrace/appliance/config"
	"github.com/millrace/millrace/appliance/erasure"
	"github.com/millrace/millrace/s3/checksum"
)

// floorBytes is about how many bytes of objects each floor is measured over.
const floorBytes = 4 * gib

// printFloors measures what a server can't do without, CPU s/GiB of object bytes: the checksum of each block on GET, the
// parity and the checksums of all shards on PUT. Once over one stripe, which stays in the cache, and once over as much memory as
// the arena has by default: what drives and adapters bring is not in the cache of the core that takes it.
func printFloors(o options, w io.Writer) error {
	var coders erasure.Coders
	coder, err := coders.Coder(o.scheme)
	if err != nil {
		return err
	}
	stripe := o.scheme.Shards() * erasure.UnitBytes
	cached := newStripes(o.scheme, 1)
	arena := newStripes(o.scheme, int(config.Default().ArenaSize)/stripe)
	for _, at := range []struct {
		name    string
		stripes [][][]byte
	}{{"from the cache", cached}, {fmt.Sprintf("from %d MiB of memory", len(arena)*stripe/mib), arena}} {
		get, put := 0.0, 0.0
		for _, f := range []struct {
			perGiB *float64
			encode bool
		}{{&get, false}, {&put, true}} {
			if *f.perGiB, err = floor(o.scheme, coder, at.stripes, f.encode); err != nil {
				return err
			}
		}
		if _, err := fmt.Fprintf(w, "floor %s, CPU s/GiB: GET %.3f (checksums), PUT %.3f (checksums and parity of %v)\n",
			at.name, get, put, o.scheme); err != nil {
			return err
		}
	}
	return nil
}

func newStripes(s erasure.Scheme, n int) [][][]byte {
	stripes := make([][][]byte, max(n, 1))
	for i := range stripes {
		stripes[i] = make([][]byte, s.Shards())
		for j := range stripes[i] {
			stripes[i][j] = make([]byte, erasure.UnitBytes)
			for k := range stripes[i][j] {
				stripes[i][j][k] = byte(i + j + k) // pages of their own
			}
		}
	}
	return stripes
}

// floor goes over the stripes again and again: block by block, encoded if need be, and its checksums.
func floor(s erasure.Scheme, coder *erasure.Coder, stripes [][][]byte, encode bool) (float64, error) {
	blocks := make([][]byte, s.Shards())
	sum := checksum.New(checksum.CRC64NVME)
	var done int64
	before := cpuSeconds()
	for done < floorBytes {
		for _, stripe := range stripes {
			for at := 0; at < erasure.UnitBytes; at += erasure.BlockBytes {
				for j := range blocks {
					blocks[j] = stripe[j][at : at+erasure.BlockBytes]
				}
				object := len(blocks) // so many of them are an object's bytes
				if encode {
					if err := coder.Encode(blocks); err != nil {
						return 0, err
					}
					object = s.Data
				}
				for _, b := range blocks {
					sum.Reset()
					_, _ = sum.Write(b)
				}
				done += int64(object) * erasure.BlockBytes
			}
		}
	}
	return (cpuSeconds() - before) * gib / float64(done), nil
}

// cpuSeconds is the user and system time of this process.
func cpuSeconds() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}
