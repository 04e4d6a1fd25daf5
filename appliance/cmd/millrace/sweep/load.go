package sweep

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/s3/client"
	"github.com/millrace/millrace/verbs"
)

// Load is what one process does of a row: closed loops of one operation on objects of one size.
type Load struct {
	Op        Op
	Bucket    string
	Prefix    string // of the keys of this size
	SizeBytes int64
	Loops     int
	Keys      int
	Verify    bool
	Checksum  bool
	// Duration, Count and MaxBytes end it, as in Config.
	Duration time.Duration
	Count    int64
	MaxBytes int64
	// First and Step number the keys that are put: First, First+Step, … Several processes have different ones.
	First, Step int64
}

// Outcome is what a Load gave.
type Outcome struct {
	Ops, Bytes, Entries, Errors int64
	FirstError                  string
	Latencies                   []time.Duration
	CPUSeconds, Seconds         float64
	// Transfer is that of an operation, by HTTP if there was one; RDMAOps and RDMABytes are those that RDMA carried, Served what the
	// device saw of it.
	Transfer           client.Transfer
	RDMAOps, RDMABytes int64
	Served             verbs.Traffic
	// Keys is the number of keys that were put.
	Keys int64
}

// Worker does loads. Prepare makes everything ready; Run starts at once.
type Worker interface {
	Prepare(ctx context.Context, l Load) error
	Run(ctx context.Context) (Outcome, error)
}

// local is the Worker that works in this process.
type local struct {
	to      Endpoint
	load    Load
	bodies  *bodies
	buffers *memory // one piece of it for each loop
	keys    atomic.Int64
}

// memory is mapped and registered, and all there already: the first use of a page costs more than many later ones, above all in
// a virtual machine.
type memory struct {
	bytes      []byte
	registered *client.Memory
}

func newMemory(to Endpoint, size int64) (*memory, error) {
	b, err := unix.Mmap(-1, 0, int(max(size, 1)), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes: %w", size, err)
	}
	_ = unix.Madvise(b, unix.MADV_HUGEPAGE) // they are as good without
	clear(b)
	m := &memory{bytes: b}
	if m.registered, err = to.Register(b); err != nil {
		return nil, errors.Join(err, unix.Munmap(b))
	}
	return m, nil
}

func (m *memory) close() error {
	if m == nil {
		return nil
	}
	return errors.Join(m.registered.Close(), unix.Munmap(m.bytes))
}

// Prepare implements Worker. What the same size needs is kept from one load to the next.
func (w *local) Prepare(_ context.Context, l Load) (err error) {
	w.keys.Store(0)
	stride := w.load.SizeBytes
	if w.bodies == nil || stride != l.SizeBytes {
		if err := w.close(); err != nil {
			return err
		}
		if w.bodies, err = newBodies(w.to, l.SizeBytes); err != nil {
			return err
		}
	}
	w.load = l
	need := l.SizeBytes * int64(l.Loops)
	if l.Op == Put && l.SizeBytes > stampMax || l.Op == Head || l.Op == List {
		need = 0 // bodies are put from where they are
	}
	if w.buffers != nil && int64(len(w.buffers.bytes)) >= need {
		return nil
	}
	if err := w.buffers.close(); err != nil {
		return err
	}
	w.buffers, err = newMemory(w.to, need)
	return err
}

func (w *local) close() error {
	err := errors.Join(w.buffers.close(), w.bodies.close())
	w.buffers, w.bodies = nil, nil
	return err
}

// buffer is the memory of one loop.
func (w *local) buffer(loop int) []byte {
	size := int(w.load.SizeBytes)
	if len(w.buffers.bytes) < (loop+1)*size {
		return nil
	}
	return w.buffers.bytes[loop*size : (loop+1)*size : (loop+1)*size]
}

// Run implements Worker.
func (w *local) Run(ctx context.Context) (Outcome, error) {
	tallies := make([]Outcome, w.load.Loops)
	budget := &budget{count: w.load.Count, bytes: w.load.MaxBytes}
	served, cpu, start := w.served(), ownCPU(), time.Now()
	if w.load.Duration > 0 {
		budget.end = start.Add(w.load.Duration)
	}
	var group sync.WaitGroup
	for loop := range tallies {
		group.Go(func() { w.loop(ctx, loop, budget, &tallies[loop]) })
	}
	group.Wait()
	out := Outcome{Seconds: time.Since(start).Seconds(), CPUSeconds: (ownCPU() - cpu).Seconds(), Keys: w.keys.Load()}
	for i := range tallies {
		out.add(&tallies[i])
	}
	out.Served = difference(w.served(), served)
	return out, ctx.Err()
}

// served is what the device of the endpoint has seen so far.
func (w *local) served() verbs.Traffic {
	if d := w.to.Device(); d != nil {
		return d.Counters().Served
	}
	return verbs.Traffic{}
}

func difference(a, b verbs.Traffic) verbs.Traffic {
	return verbs.Traffic{WriteOps: a.WriteOps - b.WriteOps, WriteBytes: a.WriteBytes - b.WriteBytes,
		ReadOps: a.ReadOps - b.ReadOps, ReadBytes: a.ReadBytes - b.ReadBytes}
}

// add adds what another loop, or another process, has done meanwhile.
func (o *Outcome) add(t *Outcome) {
	o.Ops += t.Ops
	o.Bytes += t.Bytes
	o.Entries += t.Entries
	o.Errors += t.Errors
	o.CPUSeconds += t.CPUSeconds
	o.Seconds = max(o.Seconds, t.Seconds)
	o.Latencies = append(o.Latencies, t.Latencies...)
	o.RDMAOps += t.RDMAOps
	o.RDMABytes += t.RDMABytes
	o.Served.WriteOps += t.Served.WriteOps
	o.Served.WriteBytes += t.Served.WriteBytes
	o.Served.ReadOps += t.Served.ReadOps
	o.Served.ReadBytes += t.Served.ReadBytes
	if o.FirstError == "" {
		o.FirstError = t.FirstError
	}
	o.carried(t.Transfer)
}

// carried takes note of a transfer: one by HTTP tells more than many by RDMA.
func (o *Outcome) carried(t client.Transfer) {
	if o.Transfer.Transport == "" || o.Transfer.Transport == client.TransportRDMA && t.Transport == client.TransportHTTP {
		o.Transfer = t
	}
}

// budget ends a row.
type budget struct {
	end          time.Time // zero for no end
	count, bytes int64     // 0 for no limit
	started      atomic.Int64
	moved        atomic.Int64
}

// next lets one more operation start.
func (b *budget) next() bool {
	if !b.end.IsZero() && !time.Now().Before(b.end) || b.bytes > 0 && b.moved.Load() >= b.bytes {
		return false
	}
	return b.count <= 0 || b.started.Add(1) <= b.count
}

// maxErrors ends a loop: a server that refuses everything is not worth waiting for.
const maxErrors = 100

func (w *local) loop(ctx context.Context, loop int, b *budget, t *Outcome) {
	random := rand.New(rand.NewPCG(uint64(w.load.First)<<32+uint64(loop), uint64(w.load.SizeBytes)))
	buf := w.buffer(loop)
	for ctx.Err() == nil && t.Errors < maxErrors && b.next() {
		start := time.Now()
		bytes, via, err := w.once(ctx, random, buf, t)
		if err != nil {
			t.Errors++
			if t.FirstError == "" {
				t.FirstError = err.Error()
			}
			continue
		}
		t.Latencies = append(t.Latencies, time.Since(start))
		t.Ops++
		t.Bytes += bytes
		t.carried(via)
		if via.Transport == client.TransportRDMA {
			t.RDMAOps++
			t.RDMABytes += via.RDMABytes
		}
		b.moved.Add(bytes)
	}
}

// once does one operation and returns the bytes that it moved.
func (w *local) once(ctx context.Context, random *rand.Rand, buf []byte, t *Outcome) (int64, client.Transfer, error) {
	l := &w.load
	http := client.Transfer{Transport: client.TransportHTTP}
	switch l.Op {
	case Put:
		n := l.First + l.Step*(w.keys.Add(1)-1)
		o := client.PutOptions{NoChecksum: !l.Checksum}
		result, err := w.to.Put(ctx, l.Bucket, keyOf(l.Prefix, n), w.bodies.body(n, buf), o)
		return l.SizeBytes, result.Transfer, err
	case Get:
		n := random.Int64N(int64(l.Keys))
		result, err := w.to.GetBuffer(ctx, l.Bucket, keyOf(l.Prefix, n), buf, client.GetOptions{NoVerify: true})
		if err == nil && result.Bytes != l.SizeBytes {
			err = fmt.Errorf("get: %d bytes, not %d", result.Bytes, l.SizeBytes)
		}
		if err == nil && l.Verify && !w.bodies.is(n, buf) {
			err = errors.New("get: the content is not what was put")
		}
		return l.SizeBytes, result.Transfer, err
	case Head:
		info, err := w.to.Head(ctx, l.Bucket, keyOf(l.Prefix, random.Int64N(int64(l.Keys))))
		if err == nil && info.SizeBytes != l.SizeBytes {
			err = fmt.Errorf("head: %d bytes, not %d", info.SizeBytes, l.SizeBytes)
		}
		return 0, http, err
	}
	n := int64(0)
	for _, err := range w.to.List(ctx, l.Bucket, client.ListOptions{Prefix: l.Prefix}) {
		if err != nil {
			return 0, http, err
		}
		n++
	}
	if n != int64(l.Keys) {
		return 0, http, fmt.Errorf("list: %d keys, not %d", n, l.Keys)
	}
	t.Entries += n
	return 0, http, nil
}

func keyOf(prefix string, n int64) string { return fmt.Sprintf("%s%08d", prefix, n) }

// ownCPU is the user and system time of this process.
func ownCPU() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
