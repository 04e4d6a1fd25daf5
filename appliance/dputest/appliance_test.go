package dputest

import (
	"crypto/tls"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/appliance/guest"
	"github.com/millrace/millrace/appliance/guest/nbd"
)

const (
	jbofDrives     = 6
	driveSizeBytes = 1 << 30
	metaEndBytes   = driveSizeBytes/8 + 1<<20
	failingDrive   = 1
	pulledDrive    = 4
)

// jbof is a guest on six drives that outlive it. The first half of them has sectors of 512 bytes, the others of 4096.
type jbof struct {
	t      *testing.T
	drives [jbofDrives]*nbd.Drive
	config guest.Config
	vm     *guest.VM
}

func newJBOF(t *testing.T, arch guest.Arch) *jbof {
	t.Helper()
	j := &jbof{t: t, config: guest.Config{Arch: arch, CPUs: 2, MemoryMiB: 1024, Forward: []int{s3Port, mgmtPort},
		Sets: []guest.Set{guest.GLibc(), guest.FileSystems(), guest.BusyBox()}, Files: []guest.File{buildMillrace(t, arch)}}}
	dir := t.TempDir()
	for i := range j.drives {
		socket := filepath.Join(dir, fmt.Sprint("nbd", i))
		sector := 512
		if i >= jbofDrives/2 {
			sector = 4096
		}
		drive, err := nbd.Serve(driveSizeBytes, socket, sector)
		if err != nil {
			t.Fatal(err)
		}
		drive.WriteThrough(commitBlock)
		j.drives[i] = drive
		t.Cleanup(func() { drive.Close() })
		j.config.Drives = append(j.config.Drives, guest.Drive{Source: "unix:" + socket, SectorBytes: sector})
	}
	return j
}

// commitBlock tells what may be the commit block of ext4's journal: a write of one block in the metadata partition. The
// kernel asks for it to be written through, and QEMU forgets that (nbd.Drive.WriteThrough).
func commitBlock(offset int64, n int) bool { return n == 4096 && offset < metaEndBytes }

// boot starts the guest. Drives named are left out.
func (j *jbof) boot(without ...int) {
	j.t.Helper()
	cfg := j.config
	cfg.Drives = append([]guest.Drive{}, cfg.Drives...)
	for _, i := range without {
		cfg.Drives[i].Source = ""
	}
	j.vm = start(j.t, cfg)
}

// serveEmpty serves the drives for the first time, and makes the bucket of loads. It returns where S3 is reached.
func (j *jbof) serveEmpty() (s *server, endpoint string) {
	j.t.Helper()
	s = serve(j.t, j.vm, j.args()...)
	if log := s.log.String(); !strings.Contains(log, "no RDMA hardware, soft RDMA only: libibverbs") { // these guests have no library
		j.t.Errorf("the server doesn't say that libibverbs is missing:\n%s", log)
	}
	endpoint = j.vm.Forwarded(s3Port)
	if err := connect(j.t, endpoint).CreateBucket(j.t.Context(), bucket); err != nil {
		j.t.Fatal(err)
	}
	return s, endpoint
}

// cutPower ends the guest in the middle of things. Of what it did not flush, a random half is lost.
func (j *jbof) cutPower() {
	j.t.Helper()
	j.vm.CutPower()
	seed := rand.Uint64()
	for i, d := range j.drives {
		lost, of, err := d.Drop(rand.New(rand.NewPCG(seed, uint64(i))))
		if err != nil {
			j.t.Fatal(err)
		}
		j.t.Logf("power cut, seed %d: drive %d lost %d of %d blocks that were not flushed", seed, i, lost, of)
	}
}

// args gives --drive for all drives that the guest has. A drive that is put back while something still has it open gets
// another name.
func (j *jbof) args() []string {
	j.t.Helper()
	list, err := output(j.t.Context(), j.t, j.vm, "sh", "-c", "cd /sys/block && busybox ls -d nvme*")
	if err != nil {
		j.t.Fatal(err)
	}
	var args []string
	for _, name := range strings.Fields(list) {
		args = append(args, "--drive", "/dev/"+name)
	}
	return args
}

// metric reads the sum of all samples of a metric, with labels that hold part.
func (j *jbof) metric(name, part string) float64 {
	j.t.Helper()
	web := &http.Client{Timeout: time.Minute, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer web.CloseIdleConnections()
	response, err := web.Get("https://" + j.vm.Forwarded(mgmtPort) + "/metrics")
	if err != nil {
		j.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, 4<<20))
	if err != nil {
		j.t.Fatal(err)
	}
	sum := 0.0
	for _, line := range strings.Split(string(text), "\n") {
		var value float64
		at := strings.LastIndexByte(line, ' ')
		if !strings.HasPrefix(line, name) || !strings.Contains(line, part) || at < 0 {
			continue
		}
		if _, err := fmt.Sscan(line[at:], &value); err == nil {
			sum += value
		}
	}
	return sum
}

// TestAppliance serves S3 from a guest on six NVMe drives. Under load, one drive fails, another is pulled, and then
// the power is cut. What was acknowledged has to be there, before and after the drives are back.
func TestAppliance(t *testing.T) {
	openCache(t)
	j := newJBOF(t, guest.ARM64)
	j.boot()
	s, endpoint := j.serveEmpty()
	l := newLoad(t)
	wait := l.begin(t.Context(), endpoint)
	out := func(n int) func(status) bool {
		return func(st status) bool { return st.Pool.Drives["in"] == jbofDrives-n }
	}
	l.more(60)
	j.drives[failingDrive].Set(nbd.Failing)
	s.await("the failing drive is out", out(1))
	l.more(30)
	if err := j.vm.PullDrive(t.Context(), pulledDrive); err != nil {
		t.Fatal(err)
	}
	j.wantOut(s.await("the pulled drive is out", out(2)))
	if n := j.metric("millrace_dropped_drives_total", ""); n != 2 {
		t.Errorf("millrace_dropped_drives_total is %v; want 2", n)
	}
	l.more(30)
	l.cut.Store(true)
	j.cutPower()
	wait()
	if t.Failed() {
		return
	}

	j.boot(pulledDrive)
	s = serve(t, j.vm, j.args()...)
	endpoint = j.vm.Forwarded(s3Port)
	objects, sizeBytes := l.verify(endpoint)
	t.Logf("%d calls; %d objects of %d MiB are as they were acknowledged, with two drives out", l.calls.Load(), objects, sizeBytes>>20)
	j.wantOut(s.await("two drives are out", out(2)))
	wait = l.begin(t.Context(), endpoint)
	l.more(20)
	l.cut.Store(true)
	s.stop()
	wait()

	j.drives[failingDrive].Set(nbd.Healthy)
	if err := j.vm.PlugDrive(t.Context(), pulledDrive, j.config.Drives[pulledDrive]); err != nil {
		t.Fatal(err)
	}
	j.awaitDrives(jbofDrives)
	s = serve(t, j.vm, j.args()...)
	s.await("all drives are in and filled", whole)
	objects, sizeBytes = l.verify(j.vm.Forwarded(s3Port))
	t.Logf("%d objects of %d MiB are as they were acknowledged, with all drives back", objects, sizeBytes>>20)
	s.stop()
	fsck(t, j.vm, j.args())
}

// wantOut wants that the status of the pool, and the metrics, name the failing drive and the pulled one. The drive in
// port n was given as the n-th when the pool was made: it has slot n.
func (j *jbof) wantOut(st status) {
	j.t.Helper()
	for _, d := range st.Drives {
		want := d.Slot != failingDrive && d.Slot != pulledDrive
		if in := d.State == "in"; in != want {
			j.t.Errorf("slot %d is %s (%s); want it in: %v", d.Slot, d.State, d.Error, want)
		}
		in := j.metric("millrace_drive_state", fmt.Sprintf(`{drive="%02d",state="in"}`, d.Slot))
		if (in == 1) != want {
			j.t.Errorf("the metrics say %v of slot %d being in; want %v", in, d.Slot, want)
		}
	}
}

// awaitDrives waits until the guest has so many.
func (j *jbof) awaitDrives(n int) {
	j.t.Helper()
	for end := time.Now().Add(time.Minute); len(j.args()) != 2*n; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			j.t.Fatalf("the guest has %v; want %d drives", j.args(), n)
		}
	}
}

// more waits until the workers have done so many more calls.
func (l *load) more(n int64) {
	l.t.Helper()
	goal, end := l.calls.Load()+n, time.Now().Add(readyWait)
	for l.calls.Load() < goal {
		if l.t.Failed() || time.Now().After(end) {
			l.t.Fatalf("%d calls; want %d", l.calls.Load(), goal)
		}
		time.Sleep(50 * time.Millisecond)
	}
}
