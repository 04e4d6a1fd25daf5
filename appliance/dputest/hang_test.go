package dputest

import (
	"testing"

	"github.com/millrace/millrace/appliance/guest"
	"github.com/millrace/millrace/appliance/guest/nbd"
)

// TestHangingDrive lets a drive swallow all requests under load. It has to be taken out, no call may fail, and the
// server has to end as it should although the kernel still waits for the drive.
func TestHangingDrive(t *testing.T) {
	t.Parallel()
	openCache(t)
	j := newJBOF(t, guest.ARM64)
	// The product's own deadline is to be tested, not the kernel's, which is 30 s by default as well.
	j.config.Modules = []string{"nvme_core io_timeout=240"}
	j.boot()
	s, endpoint := j.serveEmpty()
	l := newLoad(t)
	wait := l.begin(t.Context(), endpoint)
	l.more(40)
	j.drives[failingDrive].Set(nbd.Hanging)
	s.await("the hanging drive is out", func(st status) bool { return st.Pool.Drives["in"] == jbofDrives-1 })
	l.more(40)
	l.cut.Store(true)
	if _, err := output(t.Context(), t, j.vm, "busybox", "killall", "millrace"); err != nil {
		t.Fatal(err)
	}
	wait()
	s.awaitLog("drive does not answer and is left as it is")
	j.drives[failingDrive].Set(nbd.Failing) // the kernel gives up, and the process can end
	s.awaitEnd()
	j.drives[failingDrive].Set(nbd.Healthy)
	s = serve(t, j.vm, j.args()...)
	s.await("all drives are in and filled", whole)
	objects, sizeBytes := l.verify(j.vm.Forwarded(s3Port))
	t.Logf("%d objects of %d MiB are as they were acknowledged", objects, sizeBytes>>20)
	s.stop()
	fsck(t, j.vm, j.args())
}
